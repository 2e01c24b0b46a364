"""Where a fold begins: the newest usable snapshot, or the beginning of the journal."""

from __future__ import annotations

from contextlib import aclosing

import structlog
from nats.aio.client import Client
from tidegate_events.journal.base import JournalGapError, JournalUnavailableError
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.subjects import DECISION, speaks_for

from tidegate_scheduler.snapshot_store import SnapshotStore
from tidegate_scheduler.state import State

log = structlog.get_logger()


async def load_state(client: Client, at_most: int | None = None) -> State:
    """Return the state of the newest usable snapshot up to sequence `at_most`; an empty one where there is none.

    Fold what follows `state.seq` on it. A snapshot of another journal (a store that was made anew, or brought back from
    a copy, beside snapshots that were not) is not used. Raises JournalUnavailableError where the journal itself does
    not answer.
    """
    journal = NatsJournal(client)
    end = await journal.end()
    try:
        state = await SnapshotStore(client).newest(end if at_most is None else min(at_most, end))
    except JournalUnavailableError as error:
        # They only make a start fast: the journal alone is enough.
        log.warning("snapshots_unavailable", why=str(error))
        state = None
    if state is not None and not await is_of(journal, state):
        log.error("snapshot_of_another_journal", seq=state.seq, digest=state.digest())
        state = None
    if state is None:
        log.info("starts_from_the_beginning", end=end)
        return State()
    log.info("starts_from_snapshot", seq=state.seq, digest=state.digest(), end=end)
    return state


async def is_of(journal: NatsJournal, state: State) -> bool:
    """Say whether the state knows the frame that it follows. Where that was trimmed, nothing speaks against it."""
    try:
        async with aclosing(journal.read(state.seq - 1, state.seq)) as frames:
            last = await anext(frames)
    except JournalGapError:
        return True
    writer = last.frame.writer
    mark, known = (writer.epoch, writer.writer_seq), state.writers.get(f"{writer.service}/{writer.instance}", (0, -1))
    if (last.subject == DECISION) != (state.decision_seq == last.seq):
        return False
    if not speaks_for(last.subject, writer):
        return True
    if writer.service == "scheduler":
        # No decision of a leader is written twice, so this one is the last that the state has seen of it.
        return writer.epoch < state.header.epoch or mark == known
    return mark <= known
