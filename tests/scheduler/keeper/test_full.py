"""A journal that became full while its keeper was away goes on when the keeper is back, whatever was left unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest
from nats.aio.client import Client
from tidegate_events import events as e
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import JournalFullError
from tidegate_events.journal.closing import close, open_next
from tidegate_events.journal.generations import generations
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.subjects import fact
from tidegate_scheduler.keeper.shell import Keeper

from tests.scheduler.keeper.bench import GENERATION_BYTES, PADDING_BYTES, History, keeper, result, settings

FRAMES_MAX = 1000


async def fill(journal: NatsJournal) -> None:
    """Append until the journal takes not even a small frame."""
    for padding in ("x" * PADDING_BYTES, "x"):
        with pytest.raises(JournalFullError):
            await append_for_ever(journal, padding)


async def append_for_ever(journal: NatsJournal, padding: str) -> None:
    for _ in range(FRAMES_MAX):
        await journal.append(fact("gateway", "full"), _frame(await journal.end(), padding))


def _frame(epoch: int, padding: str) -> Frame:
    writer = Writer("gateway", "full", epoch, 0)
    event = e.CancelRequested(id=writer.event_id(0), at_ns=1, tenant="t", job="no", actor=padding)
    return Frame(writer, (event,))


async def until_trimmed(client: Client, made: Keeper, number: int) -> None:
    for _ in range(6):
        await made._until_done("keep", made.keep)
        await made._until_done("archive", made.archive)
        if (await generations(client))[0].number == number:
            return


@pytest.mark.parametrize("rolls", [1, 2])
async def test_a_generation_that_filled_before_its_opening_was_said(
    client: Client, history: History, archive_dir: Path, rolls: int
) -> None:
    """The keeper dies between opening a generation and saying so, and is away until that one is full."""
    await history.run_a_job()
    for number in range(1, rolls + 1):
        await close(client, number)
        await open_next(client, number, max_bytes=GENERATION_BYTES)
        await fill(history.journal)
    made = keeper(client, settings(archive_dir))
    await made.begin()
    await made.keep()
    await history.run_a_job()
    again = keeper(client, settings(archive_dir))  # one that finds it so
    await again.begin()
    await until_trimmed(client, again, rolls + 2)
    await history.run_a_job()
    found = await result(client, archive_dir)
    assert [generation for generation, *_ in found.opened] == list(range(2, rolls + 3))
    assert [number for number, *_ in found.archived] == list(range(1, rolls + 2))
    assert found.archived[0][4] is False
    assert all(snapshot for *_, snapshot in found.archived[1:])
    assert [number for number, _, live in found.streams] == [rolls + 2]
    await history.settle()
    assert found.state_digest == history.state.digest()
