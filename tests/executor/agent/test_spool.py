"""The spool: nothing acknowledged is lost, and the journal gets every fact exactly once, whatever is killed when."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate_events.events import AnyEvent, PhaseChanged
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Appended, Conflict, JournalUnavailableError, Recorded
from tidegate_events.journal.memory import MemoryJournal
from tidegate_executor.spool import publisher as publishing
from tidegate_executor.spool import spool as spooling
from tidegate_executor.spool.publisher import FactPublisher, NodeTakenError
from tidegate_executor.spool.records import UserMessage
from tidegate_executor.spool.segments import LogCorruptError, SegmentLog
from tidegate_executor.spool.spool import Spool, SpoolFullError

SUBJECT = "tg.fact.node.n1"


def fact(number: int) -> PhaseChanged:
    return PhaseChanged(id="", at_ns=1, tenant="t", job=f"j{number}", attempt=1, rank=0, phase="p")


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


class DoubtfulJournal(MemoryJournal):
    """Loses answers: of the appends named in `lost_answers`, the frame is written but the caller hears nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.appends = 0
        self.lost_answers: set[int] = set()
        self.away: set[int] = set()

    async def append(self, subject: str, frame: Frame, *, expected_last: int | None = None) -> Appended | Conflict:
        self.appends += 1
        if self.appends in self.away:
            raise JournalUnavailableError("away")
        result = await super().append(subject, frame, expected_last=expected_last)
        if self.appends in self.lost_answers:
            raise JournalUnavailableError("the answer was lost")
        return result

    def forget_recent_ids(self) -> None:
        """As a server does after its duplicate window."""
        self._seq_by_frame_id.clear()

    @property
    def jobs(self) -> list[str]:
        return [event.job for recorded in self._frames for event in recorded.frame.events]  # type: ignore[union-attr]


@asynccontextmanager
async def running(*coroutines: Coroutine[Any, Any, None]):  # type: ignore[no-untyped-def]
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def opened(root: Path, epoch: int) -> tuple[Spool, dict[str, bytes]]:
    spool = Spool(root / "spool", root / "states", node="n1", epoch=epoch)
    return spool, spool.open()


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooling, "COALESCE_SECONDS", 0.001)
    monkeypatch.setattr(publishing, "RETRY_WAIT_SECONDS", 0.001)


async def test_facts_put_together_become_one_frame_and_reach_the_journal(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path, 1)
    journal = DoubtfulJournal()
    publisher = FactPublisher(journal, SUBJECT, epoch=1)
    async with running(spool.run_flusher(), spool.run_facts(publisher.send)):
        await asyncio.gather(spool.put([fact(1)]), spool.put([fact(2)]), spool.put([fact(3)]))
        await spool.drained()
    assert journal.jobs == ["j1", "j2", "j3"]
    last = await journal.last(SUBJECT)
    assert last is not None
    assert last.seq == 1
    assert [event.id for event in last.frame.events] == [f"node-n1-1-1-{index}" for index in range(3)]
    spool.close()


async def test_who_wants_to_know_is_told_the_number_of_a_fact_in_the_journal_once(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path, 1)
    journal = DoubtfulJournal()
    told: list[tuple[str, int]] = []
    publisher = FactPublisher(journal, SUBJECT, epoch=1)
    async with running(spool.run_flusher(), spool.run_facts(publisher.send)):
        for number in (1, 2):
            await spool.put([fact(number)], on_journaled=lambda seq, who=f"j{number}": told.append((who, seq)))
            await spool.put(states={"a": raw(number)}, on_journaled=lambda seq: told.append(("no fact", seq)))
            await spool.drained()
    found = {e.job: each.seq async for each in journal.read(0, await journal.end()) for e in each.frame.events}  # type: ignore[union-attr]
    assert dict(told) == found
    assert len(told) == 2
    spool.close()


async def test_state_and_fact_survive_together(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path, 1)
    async with running(spool.run_flusher()):
        await spool.put([fact(1)], states={"a": raw({"n": 1}), "b": raw(7)})
        await spool.put(states={"a": raw({"n": 2}), "b": None})
    spool.close()
    again, states = opened(tmp_path, 2)
    assert states == {"a": b'{"n":2}'}
    assert again.unsent_facts == 1
    again.close()


async def test_a_put_that_may_be_dropped_is_refused_when_too_much_waits_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spooling, "PENDING_BYTES_DROPPABLE", 100)
    spool, _ = opened(tmp_path, 1)
    async with running(spool.run_flusher()):
        await spool.put([fact(1)], droppable=True)
        with pytest.raises(SpoolFullError):
            spool.put([fact(2)], droppable=True)
        await spool.put([fact(3)])
    assert spool.unsent_facts == 2
    spool.close()


async def test_segments_are_deleted_when_sent_and_their_states_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_executor.spool.segments.SEGMENT_BYTES", 400)
    spool, _ = opened(tmp_path, 1)
    publisher = FactPublisher(journal := DoubtfulJournal(), SUBJECT, epoch=1)
    async with running(spool.run_flusher(), spool.run_facts(publisher.send)):
        for number in range(40):
            await spool.put([fact(number)], states={f"k{number % 3}": raw(number)})
        await spool.put(states={"k0": None})
        await spool.drained()
    spool.close()
    assert len(list((tmp_path / "spool").glob("*.log"))) <= 3
    again, states = opened(tmp_path, 2)
    assert states == {"k1": b"37", "k2": b"38"}
    assert again.unsent_facts == 0
    assert journal.jobs == [f"j{number}" for number in range(40)]
    again.close()


async def test_an_agent_whose_name_was_taken_ends() -> None:
    journal = MemoryJournal()
    await FactPublisher(journal, SUBJECT, epoch=2).send(Frame(Writer("node", "n1", 2, 1), (fact(1),)))
    for epoch in (1, 2):
        with pytest.raises(NodeTakenError, match="did not write"):
            await FactPublisher(journal, SUBJECT, epoch=epoch).send(Frame(Writer("node", "n1", epoch, 1), (fact(2),)))
    await FactPublisher(journal, SUBJECT, epoch=3).send(Frame(Writer("node", "n1", 3, 1), (fact(3),)))
    assert await journal.end() == 2


async def test_user_messages_wait_alone(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path, 1)
    publisher = FactPublisher(journal := DoubtfulJournal(), SUBJECT, epoch=1)
    stored: list[str] = []
    there = asyncio.Event()

    async def store(messages: Any) -> None:
        await there.wait()
        stored.extend(message.id for message in messages)

    async with running(spool.run_flusher(), spool.run_facts(publisher.send), spool.run_user(store)):
        await spool.put(user=[UserMessage("u1", "tg.user.t", raw({}))])
        await spool.put([fact(1)], user=[UserMessage("u2", "tg.user.t", raw({}))])
        await spool.drained()
        assert journal.jobs == ["j1"]
        there.set()
        await asyncio.wait_for(until(lambda: stored == ["u1", "u2"]), 5)
        await asyncio.wait_for(until(lambda: spool.pending_bytes == 0), 5)
    spool.close()


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110 - a bounded wait of a test
        await asyncio.sleep(0.005)


def test_a_torn_tail_is_cut_at_every_byte(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path / "log")
    log.open()
    log.append(b"first")
    log.append(b"second record")
    log.close()
    (path,) = (tmp_path / "log").glob("*.log")
    data = path.read_bytes()
    for size in range(len(data)):
        torn = tmp_path / f"torn{size}"
        torn.mkdir()
        (torn / path.name).write_bytes(data[:size])
        expected = [b"first"] if size >= len(b"first") + 8 else []
        for _ in range(2):
            log = SegmentLog(torn)
            assert [payload for _, payload in log.open()] == expected
            log.close()


def test_a_damaged_record_in_the_middle_is_refused(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path)
    log.open()
    log.append(b"first")
    log.append(b"second")
    log.close()
    (path,) = tmp_path.glob("*.log")
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogCorruptError):
        SegmentLog(tmp_path).open()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 4)),
        st.tuples(st.just("kill"), st.integers(0, 40)),
        st.tuples(st.just("drain"), st.just(0)),
        st.tuples(st.just("away"), st.integers(1, 3)),
        st.tuples(st.just("lose_answer"), st.integers(1, 3)),
        st.tuples(st.just("forget_ids"), st.just(0)),
    ),
    max_size=14,
)


@given(STEPS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_acknowledged_fact_is_journaled_exactly_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    root = tmp_path_factory.mktemp("spool")
    try:
        asyncio.run(_history(root, steps))
    finally:
        shutil.rmtree(root)


async def _history(root: Path, steps: list[tuple[str, int]]) -> None:
    journal = DoubtfulJournal()
    acknowledged: list[str] = []
    epoch = number = 0
    todo = [*steps, ("drain", 0)]
    while todo:
        epoch += 1
        spool, states = opened(root, epoch)
        if acknowledged:
            assert int(states["newest"]) >= int(acknowledged[-1][1:])
        publisher = FactPublisher(journal, SUBJECT, epoch=epoch)
        torn = 0
        async with running(spool.run_flusher(), spool.run_facts(publisher.send)):
            while todo:
                what, amount = todo.pop(0)
                if what == "put":
                    names = [f"j{number + offset}" for offset in range(amount)]
                    facts: list[AnyEvent] = [fact(number + offset) for offset in range(amount)]
                    number += amount
                    await spool.put(facts, states={"newest": raw(number - 1)})
                    acknowledged.extend(names)
                elif what == "drain":
                    await asyncio.wait_for(spool.drained(), 10)
                elif what == "away":
                    journal.away |= {journal.appends + 1 + offset for offset in range(amount)}
                elif what == "lose_answer":
                    journal.lost_answers |= {journal.appends + 1 + offset for offset in range(amount)}
                elif what == "forget_ids":
                    journal.forget_recent_ids()
                else:
                    torn = amount
                    break
        spool.close()
        # What the kill leaves: the log as it is on disk, and perhaps the beginning of a record nobody was promised.
        if torn:
            newest = max((root / "spool").glob("*.log"))
            with newest.open("ab") as file:
                file.write((b"\x00\x00\x00\x60" + b"x" * 40)[:torn])
    assert journal.jobs == acknowledged


async def test_reading_back_uses_the_port(tmp_path: Path) -> None:
    """The publisher relies on `last` alone to settle a doubt: the frame before a lost answer is not written twice."""
    spool, _ = opened(tmp_path, 1)
    journal = DoubtfulJournal()
    journal.lost_answers = {1}
    publisher = FactPublisher(journal, SUBJECT, epoch=1)
    async with running(spool.run_flusher(), spool.run_facts(publisher.send)):
        await spool.put([fact(1)])
        journal.forget_recent_ids()
        await asyncio.wait_for(spool.drained(), 5)
    recorded: Recorded | None = await journal.last(SUBJECT)
    assert recorded is not None
    assert recorded.seq == 1
    spool.close()
