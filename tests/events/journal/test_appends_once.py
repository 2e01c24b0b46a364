"""Whatever becomes of requests and answers, the journal holds every frame once, in the order its writer wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate_events.frame import decode
from tidegate_events.journal import closing, generations, nats_append
from tidegate_events.journal.base import Appended, Conflict, JournalUnavailableError, Raw
from tidegate_events.journal.nats import NatsJournal

from tests.events.journal.unreliable import Fault, UnreliableClient
from tests.events.writing import frame

FRAMES_PER_WRITER = 4
ROLL_TRIES_MAX = 60


# Runs of faults, so that several in a row and long quiet stretches both come up; their number is finite, so that
# everything settles in the end.
def _runs(faults: Iterable[Fault]) -> st.SearchStrategy[list[Fault]]:
    runs = st.lists(st.tuples(st.sampled_from(list(faults)), st.integers(1, 4)), max_size=40)
    return runs.map(lambda drawn: [fault for fault, count in drawn for _ in range(count)])


FAULTS = _runs(Fault)
FAULTS_AT_ONCE = _runs(set(Fault) - {Fault.REQUEST_LATE, Fault.REQUEST_TWICE})


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here takes time: a lost answer is known to be lost at once."""
    monkeypatch.setattr(nats_append, "RETRY_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(nats_append, "APPEND_TRIES_MAX", 1000)
    monkeypatch.setattr(nats_append, "NOT_STORED_SECONDS_MAX", 1e9)
    monkeypatch.setattr(closing, "REST_WAIT_SECONDS", 0.0)


async def roll(client: UnreliableClient) -> None:
    """Close the last generation and open the next, each repeated until its answer comes, as a keeper would."""
    number = len(client.streams.by_name)
    for _ in range(ROLL_TRIES_MAX):
        with suppress(JournalUnavailableError):
            await closing.close(client, number)  # type: ignore[arg-type]
            await closing.open_next(client, number, max_bytes=1024)  # type: ignore[arg-type]
            return
        await asyncio.sleep(0)
    raise AssertionError("the roll never got through")


async def write(journal: NatsJournal, name: str, guarded: bool) -> list[int]:
    """Append a writer's frames one after the other, as services do; return the sequences they were given."""
    last, given_seqs = 0, []
    for number in range(1, FRAMES_PER_WRITER + 1):
        answer = await journal.append(
            f"tg.fact.gateway.{name}", frame(name, number), expected_last=last if guarded else None
        )
        assert isinstance(answer, Appended), answer
        last = answer.seq
        given_seqs.append(last)
        await asyncio.sleep(0)
    return given_seqs


def written(messages: list[Raw], name: str) -> list[tuple[int, int]]:
    """Return (number, sequence) of a writer's frames, in the journal's order."""
    frames = [(decode(raw.data).writer, raw.seq) for raw in messages]
    return [(writer.writer_seq, seq) for writer, seq in frames if writer.instance == name]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=FAULTS, rolls=st.lists(st.integers(0, 6), max_size=3), seed=st.integers(0, 2**32), guard=st.booleans())
async def test_every_frame_is_there_once_and_in_order(
    faults: list[Fault], rolls: list[int], seed: int, guard: bool
) -> None:
    client = UnreliableClient(iter(faults), Random(seed).randrange)
    client.streams.create(generations.stream_config(max_bytes=1024))
    names = {"guarded": True, "free": False, "other": guard}

    async def roll_now_and_then() -> None:
        for turns in rolls:
            for _ in range(turns):
                await asyncio.sleep(0)
            await roll(client)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(roll_now_and_then())
        writing = {name: tasks.create_task(write(NatsJournal(client), name, held)) for name, held in names.items()}  # type: ignore[arg-type]
    client.arrive()
    messages = client.streams.all_messages()
    assert [raw.seq for raw in messages] == list(range(1, len(messages) + 1))
    for name, task in writing.items():
        assert written(messages, name) == list(enumerate(task.result(), start=1))
    assert len(messages) == FRAMES_PER_WRITER * len(names)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=FAULTS_AT_ONCE, seed=st.integers(0, 2**32), rolled=st.integers(0, 12), guarded=st.booleans())
async def test_reading_back_is_enough_where_the_server_has_forgotten_the_ids(
    faults: list[Fault], seed: int, rolled: int, guarded: bool
) -> None:
    client = UnreliableClient(iter(faults), Random(seed).randrange, remember_ids=False)
    client.streams.create(generations.stream_config(max_bytes=1024))
    journal = NatsJournal(client)  # type: ignore[arg-type]

    async def roll_once() -> None:
        for _ in range(rolled):
            await asyncio.sleep(0)
        await roll(client)

    async def append(number: int) -> int:
        answer = await journal.append("tg.fact.gateway.free", frame("free", number))
        assert isinstance(answer, Appended)
        return answer.seq

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(roll_once())
        alone = tasks.create_task(write(journal, "alone", guarded))
        # Several appends of one writer at the same time: its last frame alone does not tell whether one is in.
        at_once = [tasks.create_task(append(number)) for number in range(1, FRAMES_PER_WRITER + 1)]
    messages = client.streams.all_messages()
    assert written(messages, "alone") == list(enumerate(alone.result(), start=1))
    assert sorted(written(messages, "free")) == list(enumerate((task.result() for task in at_once), start=1))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=FAULTS, seed=st.integers(0, 2**32), rolled=st.booleans())
async def test_of_two_writers_with_one_guard_one_wins_and_the_other_knows(
    faults: list[Fault], seed: int, rolled: bool
) -> None:
    client = UnreliableClient(iter(faults), Random(seed).randrange)
    client.streams.create(generations.stream_config(max_bytes=1024))
    journals = {name: NatsJournal(client) for name in ("a", "b")}  # type: ignore[arg-type]

    async def append(name: str, number: int, guard: int) -> Appended | Conflict:
        await asyncio.sleep(0)
        return await journals[name].append("tg.decision", frame(name, number), expected_last=guard)

    last, before_last = 0, 0
    for number in range(1, 4):
        answers = dict(zip("ab", await asyncio.gather(*(append(name, number, last) for name in "ab")), strict=True))
        won = [name for name, answer in answers.items() if isinstance(answer, Appended)]
        assert len(won) == 1, answers
        seq = answers[won[0]].seq  # type: ignore[union-attr]
        (lost,) = (answer for answer in answers.values() if isinstance(answer, Conflict))
        assert lost == Conflict(expected=last, actual=seq)
        last, before_last = seq, last
        if rolled and number == 2:
            await roll(client)
        stale = await journals[won[0]].append("tg.decision", frame("c", number), expected_last=before_last)
        assert stale == Conflict(expected=before_last, actual=last)
    client.arrive()
    assert [raw.seq for raw in client.streams.all_messages()] == [1, 2, 3]


def test_the_server_remembers_ids_for_longer_than_an_append_is_tried() -> None:
    assert generations.DUPLICATE_WINDOW_SECONDS > 3 * nats_append.APPEND_SECONDS_MAX
