"""One term on a journal in memory: the guard refuses a deposed leader, the lease stops it before, epochs go up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tidegate_events import events as e
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Appended
from tidegate_events.journal.memory import MemoryJournal
from tidegate_events.subjects import DECISION, fact
from tidegate_scheduler.fold import Fold
from tidegate_scheduler.leadership import DeposedError, Leadership
from tidegate_scheduler.policy.parameters import Parameters

NOW = 1_700_000_000_000_000_000


class Term:
    """A scheduler's fold and its term, of which a test says whether it has the lease."""

    def __init__(self, journal: MemoryJournal, instance: str, epoch: int) -> None:
        self.fold = Fold(journal)
        self.has_lease = True
        self.leadership = Leadership(journal, self.fold, (instance, epoch), lambda: self.has_lease)
        self.folding = asyncio.create_task(self.fold.run())

    async def begin(self) -> None:
        await self.leadership.begin(NOW)

    async def stop_folding(self) -> None:
        """As a stopped process: history goes on without it."""
        self.folding.cancel()
        await asyncio.gather(self.folding, return_exceptions=True)


@pytest.fixture
async def journal() -> AsyncIterator[MemoryJournal]:
    yield MemoryJournal()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


def unreachable(number: int) -> tuple[e.AnyEvent, ...]:
    return (e.NodeUnreachable(id=f"u-{number}", at_ns=NOW, node="n1", incarnation=1),)


async def test_a_term_begins_with_its_election_and_appends_after_it(journal: MemoryJournal) -> None:
    term = Term(journal, "s1", 3)
    await term.begin()
    assert term.fold.state.header.epoch == 3
    assert await term.leadership.append(unreachable(1)) == 2
    await term.leadership.set_policy(Parameters(), NOW)
    await term.leadership.set_policy(Parameters(), NOW)
    assert await journal.end() == 3, "the same policy is not journaled again"


async def test_a_deposed_leaders_append_is_refused_though_it_believes_in_its_lease(journal: MemoryJournal) -> None:
    first = Term(journal, "s1", 1)
    await first.begin()
    await first.stop_folding()
    second = Term(journal, "s2", 2)
    await second.begin()
    with pytest.raises(DeposedError, match="another one leads"):
        await first.leadership.append(unreachable(1))
    assert await journal.end() == 2
    assert await second.leadership.append(unreachable(2)) == 3


async def test_a_leader_that_folded_its_successor_appends_nothing_though_the_guard_would_hold(
    journal: MemoryJournal,
) -> None:
    first, second = Term(journal, "s1", 1), Term(journal, "s2", 2)
    await first.begin()
    await second.begin()
    await first.fold.reach(2)
    with pytest.raises(DeposedError, match="epoch 2 leads"):
        await first.leadership.append(unreachable(1))
    assert await journal.end() == 2


async def test_without_the_lease_nothing_is_appended(journal: MemoryJournal) -> None:
    term = Term(journal, "s1", 1)
    term.has_lease = False
    with pytest.raises(DeposedError, match="lease"):
        await term.begin()
    term.has_lease = True
    await term.begin()
    term.has_lease = False
    with pytest.raises(DeposedError, match="lease"):
        await term.leadership.append(unreachable(1))
    assert await journal.end() == 1


async def test_an_election_that_meets_the_old_leaders_last_frame_is_repeated(journal: MemoryJournal) -> None:
    first, second = Term(journal, "s1", 1), Term(journal, "s2", 2)
    await first.begin()
    await second.fold.reach(1)
    await second.stop_folding()
    await first.leadership.append(unreachable(1))  # the second one has not folded it: its guard fails at first
    second.folding = asyncio.create_task(second.fold.run())
    await second.begin()
    assert [r.frame.writer.epoch async for r in journal.read(0, 9)] == [1, 1, 2]


@pytest.mark.parametrize("epoch", [1, 2])
async def test_an_epoch_that_the_journal_has_is_not_elected_again(journal: MemoryJournal, epoch: int) -> None:
    elected = e.LeaderElected(id="2-leader", at_ns=NOW, epoch=2, instance="s9")
    answer = await journal.append(DECISION, Frame(Writer("scheduler", "s9", 2, 0), (elected,)))
    assert isinstance(answer, Appended)
    term = Term(journal, "s1", epoch)
    await term.fold.reach(1)
    with pytest.raises(DeposedError, match="was elected before"):
        await term.begin()
    assert await journal.end() == 1


async def test_a_fold_goes_on_from_the_state_it_was_given(journal: MemoryJournal) -> None:
    term = Term(journal, "s1", 1)
    await term.begin()
    await term.stop_folding()
    submitter = Writer("gateway", "g1", 1, 0)
    event = e.CancelRequested(id="c", at_ns=NOW, tenant="t", job="j")
    await journal.append(fact("gateway", "g1"), Frame(submitter, (event,)))
    again = Fold(journal, term.fold.state)
    folding = asyncio.create_task(again.run())
    await again.reach(2)
    assert again.state is term.fold.state
    assert again.state.header.epoch == 1
    folding.cancel()
    await asyncio.gather(folding, return_exceptions=True)
