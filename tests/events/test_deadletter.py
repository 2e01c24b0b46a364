"""Registers, positions and dead letters, in memory and on a real server that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from tidegate_events import bus, deadletter, positions
from tidegate_events.clock import ManualClock
from tidegate_events.consumer import DurableReader, ReaderPorts, ReaderSettings
from tidegate_events.deadletter import DeadLetter, DeadLetters, Failure, NoLetterError, encode_event, nats_letters
from tidegate_events.events import CancelRequested, Event
from tidegate_events.journal.base import Appended
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.lanes import Delivery, Position
from tidegate_events.positions import nats_positions
from tidegate_events.register import nats as register_nats
from tidegate_events.register.base import Kept, Register, RegisterUnavailableError, Stale
from tidegate_events.register.memory import MemoryRegister
from tidegate_events.register.nats import NatsRegister

from tests.events.writing import frame
from tests.support.nats import NatsServer

BYTES_MAX = 4 * 1024 * 1024
SECONDS_MAX = 60
SUBJECT = "tg.fact.gateway.g1"


async def create(client: Client, config: dict[str, Any]) -> None:
    answer = await client.request(f"$JS.API.STREAM.CREATE.{config['name']}", msgspec.json.encode(config), timeout=5)
    assert "error" not in msgspec.json.decode(answer.data), answer.data


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    """Yield a connection to a server that has the streams of consumers."""
    made = await bus.connect(bus.BusSettings(url=server.url))
    await create(made, deadletter.stream_config(max_bytes=BYTES_MAX))
    await create(made, positions.stream_config(max_bytes=BYTES_MAX))
    yield made
    await made.close()


@pytest.fixture(params=["memory", "nats"])
def register(request: pytest.FixtureRequest) -> Register:
    """Yield each adapter in turn."""
    if request.param == "memory":
        return MemoryRegister()
    return NatsRegister(request.getfixturevalue("client"), deadletter.DEADLETTER_STREAM, deadletter.DEADLETTER_PREFIX)


def letter(consumer: str = "mailer", seq: int = 5, index: int = 0, **more: Any) -> DeadLetter:
    event = CancelRequested(id="e", at_ns=1, tenant="lab", job="j-1")
    fields = {"kind": "CancelRequested", "job": "j-1", "error_type": "ValueError", "error_text": "no", "attempts": 5}
    fields |= {"first_at_ns": 10, "last_at_ns": 20, "event": encode_event(event), **more}
    return DeadLetter(consumer=consumer, seq=seq, index=index, **fields)  # type: ignore[arg-type]


# ---- the port ----


async def test_a_value_is_replaced_by_whoever_has_seen_it(register: Register) -> None:
    assert await register.get("a.1") is None
    first = await register.put("a.1", b"one", 0)
    assert isinstance(first, int)
    assert await register.get("a.1") == Kept("a.1", b"one", first)
    assert await register.put("a.1", b"other", 0) == Stale(0, first)
    assert await register.put("a.2", b"none", 7) == Stale(7, 0)
    second = await register.put("a.1", b"two", first)
    assert isinstance(second, int)
    assert second > first
    assert await register.get("a.1") == Kept("a.1", b"two", second)


async def test_what_changed_since_a_revision_is_told_once_and_in_order(register: Register) -> None:
    revisions = [await register.put(key, key.encode(), 0) for key in ("a.1", "b.1", "a.2")]
    changed = await register.put("a.1", b"again", revisions[0])  # type: ignore[arg-type]
    found, after = [], 0
    while (kept := await register.next(after, "a")) is not None:
        found.append((kept.key, kept.data))
        after = kept.revision
    assert found == [("a.2", b"a.2"), ("a.1", b"again")]
    assert after == changed
    everything = await register.next(0)
    assert everything is not None
    assert everything.key == "b.1"
    assert await register.oldest() == revisions[1]
    assert await register.next(after) is None


async def test_of_racing_writers_one_wins(register: Register) -> None:
    answers = await asyncio.gather(*(register.put("a.1", str(n).encode(), 0) for n in range(8)))
    (won,) = [answer for answer in answers if isinstance(answer, int)]
    assert answers.count(Stale(0, won)) == 7


async def test_a_change_wakes_up_those_who_wait_for_its_keys(register: Register) -> None:
    async with register.changes("a") as mine, register.changes("b") as others:
        await register.put("a.1", b"", 0)
        async with asyncio.timeout(SECONDS_MAX):
            await mine.wait()
        assert not others.is_set()


# ---- letters ----


async def test_a_letter_is_kept_once_and_goes_through_its_life(register: Register) -> None:
    letters = DeadLetters(register)
    await letters.add(letter())
    await letters.add(letter(error_text="another", attempts=9))
    (stored,) = [each async for each in letters.newer(0)]
    assert stored.letter == letter()
    asked = await letters.ask_retry("mailer", "5.0", by="op", reason="fixed", now_ns=30)
    assert (asked.state, asked.by, asked.reason, asked.changed_at_ns) == ("retry", "op", "fixed", 30)
    assert asked.event == letter().event
    await letters.failed_again("mailer", "5.0", Failure("OSError", "still", 2, 40, 50))
    found = await letters.find("mailer", "5.0")
    assert found is not None
    assert (found.letter.state, found.letter.error_type, found.letter.attempts) == ("dead", "OSError", 7)
    assert (found.letter.first_at_ns, found.letter.last_at_ns) == (10, 50)
    dropped = await letters.drop("mailer", "5.0", by="op", reason="no use", now_ns=60)
    assert (dropped.state, bytes(dropped.event)) == ("dropped", b"null")
    for change in (letters.drop, letters.ask_retry):
        with pytest.raises(NoLetterError, match="is dropped already"):
            await change("mailer", "5.0", by="op", reason="", now_ns=70)
    # A consumer that was slower changes nothing any more.
    await letters.settle("mailer", "5.0", 80)
    await letters.failed_again("mailer", "5.0", Failure("OSError", "late", 1, 80, 80))
    after = await letters.find("mailer", "5.0")
    assert after is not None
    assert after.letter == dropped


async def test_an_event_that_fails_after_its_letter_was_closed_gets_another(register: Register) -> None:
    letters = DeadLetters(register)
    await letters.add(letter())
    await letters.settle("mailer", "5.0", 30)
    await letters.add(letter(error_text="once more"))
    (stored,) = [each async for each in letters.newer(0)]
    assert (stored.letter.state, stored.letter.error_text) == ("dead", "once more")


async def test_a_letter_that_is_not_there_is_refused_with_a_hint(register: Register) -> None:
    with pytest.raises(NoLetterError, match=r"mailer has no dead letter 1\.0; see `tidegate deadletter ls`"):
        await DeadLetters(register).drop("mailer", "1.0", by="op", reason="", now_ns=1)


async def test_what_is_no_letter_hides_no_other(register: Register) -> None:
    letters = DeadLetters(register)
    await register.put("mailer.1.0", b"{", 0)
    await register.put("mailer.2.0", msgspec.json.encode(letter(seq=3)), 0)
    await letters.add(letter())
    assert [stored.letter.place async for stored in letters.newer(0)] == ["5.0"]


async def test_errors_of_any_length_fit(register: Register) -> None:
    letters = DeadLetters(register)
    event = CancelRequested(id="e", at_ns=1, tenant="lab", job="j", actor="x" * 899_000)
    await letters.add(letter(error_text='"' * 10**6, event=encode_event(event)))
    (stored,) = [each async for each in letters.newer(0)]
    assert stored.letter.event == encode_event(event)
    assert len(stored.letter.error_text) == deadletter.ERROR_CHARS_MAX


async def test_followers_of_a_consumer_see_what_comes_and_no_others(register: Register) -> None:
    letters = DeadLetters(register)
    await letters.add(letter())
    seen: list[tuple[str, str]] = []
    async with asyncio.timeout(SECONDS_MAX):
        async for stored in letters.follow("mailer", 0):
            seen.append((stored.letter.place, stored.letter.state))
            if len(seen) == 1:
                await letters.add(letter("other", 6))
                await letters.ask_retry("mailer", "5.0", by="op", reason="", now_ns=1)
            if len(seen) == 2:
                break
    assert seen == [("5.0", "dead"), ("5.0", "retry")]


# ---- what only the real one can show ----


async def test_a_full_stream_lets_the_oldest_go_and_takes_the_new(client: Client, server: NatsServer) -> None:
    letters = nats_letters(client)
    for seq in range(1, 8):
        await letters.add(letter(seq=seq, event=encode_event("x" * 800_000)))
    kept = [stored async for stored in letters.newer(0)]
    assert [stored.letter.seq for stored in kept] == list(range(8 - len(kept), 8))
    assert 1 < len(kept) < 7
    assert await letters.oldest() == kept[0].revision


async def test_an_answer_that_got_lost_is_found_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    register = NatsRegister(client, deadletter.DEADLETTER_STREAM, deadletter.DEADLETTER_PREFIX)
    call = register._call
    lost = 2

    async def losing(subject: str, data: bytes, headers: dict[str, str] | None = None) -> dict[str, Any]:
        nonlocal lost
        answer = await call(subject, data, headers)
        if headers and lost:
            lost -= 1
            raise RegisterUnavailableError("the answer got lost")
        return answer

    monkeypatch.setattr(register_nats, "RETRY_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(register, "_call", losing)
    revision = await register.put("a.1", b"mine", 0)
    assert await register.get("a.1") == Kept("a.1", b"mine", revision)  # type: ignore[arg-type]
    assert lost == 1, "once written, it is not written again"


async def test_without_its_stream_a_register_says_so(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_nats, "RETRY_WAIT_SECONDS", 0.01)
    client = await bus.connect(bus.BusSettings(url=server.url))
    for ask in (
        lambda it: it.get("a.1"),
        lambda it: it.put("a.1", b"", 0),
        lambda it: it.next(0),
        lambda it: it.oldest(),
    ):
        with pytest.raises(RegisterUnavailableError):
            await ask(NatsRegister(client, deadletter.DEADLETTER_STREAM, deadletter.DEADLETTER_PREFIX))
    await client.close()


class Mailer:
    """Notes each event; those of `failing` jobs fail."""

    retriable = ()

    def __init__(self, failing: set[str]) -> None:
        self.failing = failing
        self.calls: list[int] = []

    def lane(self, event: Event) -> str | None:
        return "all" if isinstance(event, CancelRequested) else None

    async def handle(self, delivery: Delivery) -> None:
        self.calls.append(delivery.seq)
        if delivery.event.job in self.failing:  # type: ignore[attr-defined]
            raise ValueError("cannot be mailed")


async def test_a_consumer_goes_on_over_kills_of_the_server_and_of_itself(
    server: NatsServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadletter, "LOOK_SECONDS", 0.2)
    journal = NatsJournal(client)
    await journal.ensure_stream(max_bytes=BYTES_MAX)
    mailer = Mailer({"j-g1-7", "j-g1-25"})
    reading = ReaderSettings(name="mailer", tries_max=2, pause_seconds=0.01, save_events=5, save_seconds=0.05)

    def reader() -> DurableReader:
        ports = ReaderPorts(journal, nats_positions(client), nats_letters(client), ManualClock())
        return DurableReader(reading, ports, mailer)

    async with asyncio.timeout(SECONDS_MAX):
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(reader().run())
            for number in range(1, 31):
                if number in {10, 20}:
                    server.kill9()
                    await server.start()
                assert isinstance(await journal.append(SUBJECT, frame("g1", number)), Appended)
            await becomes(client, "25.0", "dead")
            running.cancel()
        server.kill9()
        await server.start()
        mailer.failing.clear()
        await nats_letters(client).ask_retry("mailer", "25.0", by="op", reason="fixed", now_ns=1)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(reader().run())
            await kept(client, 30)
            await becomes(client, "25.0", "handled")
            running.cancel()
    assert await state(client, "7.0") == "dead"
    assert set(mailer.calls) == set(range(1, 31))
    assert mailer.calls.count(7) >= 2
    assert mailer.calls.index(8) < mailer.calls.index(26)
    assert (await nats_positions(client).load("mailer")) == Position(30, "gateway/g1/1/30")
    # Bound to the bucket as any client sees it.
    bucket = await client.jetstream().key_value(positions.POSITIONS_BUCKET)
    assert msgspec.json.decode((await bucket.get("mailer")).value or b"")["seq"] == 30


async def kept(client: Client, seq: int) -> None:
    while True:
        try:
            if (await nats_positions(client).load("mailer")).seq >= seq:
                return
        except RegisterUnavailableError:
            pass  # the server was killed a moment ago
        await asyncio.sleep(0.02)


async def becomes(client: Client, place: str, wanted: str) -> None:
    while await state(client, place) != wanted:  # noqa: ASYNC110 - the bus tells nobody else
        await asyncio.sleep(0.02)


async def state(client: Client, place: str) -> str:
    stored = await nats_letters(client).find("mailer", place)
    return "" if stored is None else stored.letter.state
