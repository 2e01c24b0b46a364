"""The contract of the journal port, on every adapter: what the rest of Tidegate may rely on."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from tidegate_events.frame import MAX_FRAME_BYTES, Frame, Writer
from tidegate_events.journal.base import Appended, Conflict, Journal

from tests.events.writing import frame, read, take

ONE = "tg.fact.gateway.g1"
TWO = "tg.fact.gateway.g2"


async def test_an_empty_journal_has_no_end_and_no_last(journal: Journal) -> None:
    assert await journal.end() == 0
    assert await journal.last(ONE) is None
    assert await read(journal, 0, 0) == []


async def test_sequences_count_from_one_over_all_subjects(journal: Journal) -> None:
    subjects = [ONE, TWO, ONE, TWO]
    for seq, subject in enumerate(subjects, start=1):
        instance = subject.rsplit(".", 1)[-1]
        assert await journal.append(subject, frame(instance, seq)) == Appended(seq)
    assert await journal.end() == 4
    recorded = await read(journal, 0, 4)
    assert [r.seq for r in recorded] == [1, 2, 3, 4]
    assert [r.subject for r in recorded] == subjects
    assert [r.frame for r in recorded] == [frame(s.rsplit(".", 1)[-1], n) for n, s in enumerate(subjects, start=1)]


async def test_last_is_the_subjects_own(journal: Journal) -> None:
    await journal.append(ONE, frame("g1", 1))
    await journal.append(TWO, frame("g2", 1))
    last = await journal.last(ONE)
    assert last is not None
    assert (last.seq, last.subject, last.frame) == (1, ONE, frame("g1", 1))
    assert await journal.last("tg.fact.gateway.g3") is None


async def test_read_is_open_below_and_closed_above(journal: Journal) -> None:
    for seq in range(1, 6):
        await journal.append(ONE, frame("g1", seq))
    assert [r.seq for r in await read(journal, 1, 4)] == [2, 3, 4]
    assert await read(journal, 3, 3) == []
    assert await read(journal, 4, 2) == []


async def test_a_frame_of_many_events_stays_one_frame(journal: Journal) -> None:
    writer = Writer("gateway", "g1", 1, 1)
    events = tuple(frame("g1", n).events[0] for n in range(1, 201))
    await journal.append(ONE, Frame(writer, events))
    (recorded,) = await read(journal, 0, 1)
    assert recorded.frame == Frame(writer, events)


async def test_a_guard_holds_and_breaks(journal: Journal) -> None:
    assert await journal.append(ONE, frame("g1", 1), expected_last=0) == Appended(1)
    assert await journal.append(TWO, frame("g2", 1)) == Appended(2)
    assert await journal.append(ONE, frame("g1", 2), expected_last=1) == Appended(3)
    assert await journal.append(ONE, frame("g1", 3), expected_last=1) == Conflict(expected=1, actual=3)
    assert await journal.append(ONE, frame("g1", 3), expected_last=0) == Conflict(expected=0, actual=3)
    assert await journal.append(ONE, frame("g1", 3), expected_last=99) == Conflict(expected=99, actual=3)
    assert await journal.append("tg.fact.gateway.g3", frame("g3", 1), expected_last=3) == Conflict(3, 0)
    assert await journal.end() == 3


@pytest.mark.parametrize("guard", [None, 0])
async def test_a_frame_that_is_written_already_is_answered_so(journal: Journal, guard: int | None) -> None:
    assert await journal.append(ONE, frame("g1", 1), expected_last=guard) == Appended(1)
    assert await journal.append(ONE, frame("g1", 1), expected_last=guard) == Appended(1, duplicate=True)
    await journal.append(ONE, frame("g1", 2))
    assert await journal.append(ONE, frame("g1", 1), expected_last=guard) == Appended(1, duplicate=True)
    assert await journal.end() == 2


async def test_of_racing_guarded_writers_one_wins_each_round(journal: Journal) -> None:
    last, rounds = 0, 20
    for number in range(1, rounds + 1):
        # Followers that wake up at each append are what makes the race real for the memory adapter.
        followers = [asyncio.create_task(take(journal, last, 1)) for _ in range(3)]
        await asyncio.sleep(0)
        answers = await asyncio.gather(
            *(journal.append("tg.decision", frame(name, number), expected_last=last) for name in ("a", "b", "c"))
        )
        won = [answer for answer in answers if isinstance(answer, Appended)]
        lost = [answer for answer in answers if isinstance(answer, Conflict)]
        assert len(won) == 1, answers
        assert not won[0].duplicate
        assert lost == [Conflict(expected=last, actual=won[0].seq)] * 2
        last = won[0].seq
        for follower in followers:
            assert [r.seq for r in await follower] == [last]
    assert await journal.end() == rounds


async def test_unguarded_writers_side_by_side_lose_nothing(journal: Journal) -> None:
    names = ("a", "b", "c", "d")

    async def write(name: str) -> list[int]:
        answers = [await journal.append(f"tg.fact.gateway.{name}", frame(name, n)) for n in range(1, 26)]
        return [answer.seq for answer in answers if isinstance(answer, Appended)]

    given = await asyncio.gather(*(write(name) for name in names))
    assert sorted(seq for seqs in given for seq in seqs) == list(range(1, 101))
    recorded = await read(journal, 0, 100)
    for name in names:
        own = [r.frame.writer.writer_seq for r in recorded if r.frame.writer.instance == name]
        assert own == list(range(1, 26))


async def test_follow_yields_the_past_and_then_the_present(journal: Journal) -> None:
    await journal.append(ONE, frame("g1", 1))
    await journal.append(ONE, frame("g1", 2))
    taken: list[int] = []
    async with asyncio.timeout(30), aclosing(journal.follow(0)) as frames:
        async for recorded in frames:
            taken.append(recorded.seq)
            if recorded.seq == 2:
                await journal.append(ONE, frame("g1", 3))
            if recorded.seq == 3:
                break
    assert taken == [1, 2, 3]


async def test_follow_begins_after_what_is_named_and_waits_for_it(journal: Journal) -> None:
    await journal.append(ONE, frame("g1", 1))
    follower = asyncio.create_task(take(journal, 1, 2))
    await asyncio.sleep(0)
    await journal.append(ONE, frame("g1", 2))
    await journal.append(ONE, frame("g1", 3))
    assert [r.seq for r in await follower] == [2, 3]


async def test_followers_do_not_take_from_each_other(journal: Journal) -> None:
    followers = [asyncio.create_task(take(journal, 0, 30)) for _ in range(3)]
    for number in range(1, 31):
        await journal.append(ONE, frame("g1", number))
    for follower in followers:
        assert [r.seq for r in await follower] == list(range(1, 31))


async def test_a_follower_can_be_cancelled(journal: Journal) -> None:
    follower = asyncio.create_task(take(journal, 0, 1))
    await asyncio.sleep(0.05)
    follower.cancel()
    with pytest.raises(asyncio.CancelledError):
        await follower
    assert await journal.append(ONE, frame("g1", 1)) == Appended(1)


async def test_an_empty_frame_is_refused(journal: Journal) -> None:
    with pytest.raises(ValueError, match="at least one event"):
        await journal.append(ONE, Frame(Writer("gateway", "g1", 1, 1), ()))
    assert await journal.end() == 0


async def test_the_largest_frame_fits_and_a_larger_one_is_refused(journal: Journal) -> None:
    with pytest.raises(ValueError, match="append it in parts"):
        await journal.append(ONE, frame("g1", 1, padding="x" * MAX_FRAME_BYTES))
    assert await journal.end() == 0
    largest = frame("g1", 1, padding="x" * (MAX_FRAME_BYTES - 500))
    assert await journal.append(ONE, largest) == Appended(1)
    (recorded,) = await read(journal, 0, 1)
    assert recorded.frame == largest
