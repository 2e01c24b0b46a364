"""Where a fold begins: the newest usable snapshot, or the beginning of the journal."""

from __future__ import annotations

import structlog
from nats.aio.client import Client
from tidegate_events.journal.base import JournalUnavailableError
from tidegate_events.journal.nats import NatsJournal

from tidegate_scheduler.snapshot import SnapshotStore
from tidegate_scheduler.state import State

log = structlog.get_logger()


async def load_state(client: Client, at_most: int | None = None) -> State:
    """Return the state of the newest usable snapshot up to sequence `at_most`; an empty one where there is none.

    Fold what follows `state.seq` on it. A snapshot beyond the journal's end is of another journal, so it is not used.
    Raises JournalUnavailableError where the journal itself does not answer.
    """
    end = await NatsJournal(client).end()
    try:
        state = await SnapshotStore(client).newest(end if at_most is None else min(at_most, end))
    except JournalUnavailableError as error:
        # They only make a start fast: the journal alone is enough.
        log.warning("snapshots_unavailable", why=str(error))
        state = None
    if state is None:
        log.info("starts_from_the_beginning", end=end)
        return State()
    log.info("starts_from_snapshot", seq=state.seq, digest=state.digest(), end=end)
    return state
