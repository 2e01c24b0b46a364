"""Dead letters as Prometheus reads them: how many wait, how many came, how many were let go unseen."""

from __future__ import annotations

from pathlib import Path

from nats.js.api import StreamConfig
from tidegate_events import bus, deadletter
from tidegate_events.deadletter import StoredLetter, nats_letters
from tidegate_metrics.letter_count import LetterCount
from tidegate_metrics.polls import NatsPolls

from tests.metrics.letters import letter
from tests.support.nats import NatsServer


def test_a_letter_counts_once_whatever_becomes_of_it() -> None:
    count = LetterCount()
    count.apply(StoredLetter(letter(seq=1), 1))
    count.forget(1)
    assert (count.open(), count.set_aside) == ({"checkpoint": 1}, {}), "what lay there is not what came"
    count.apply(StoredLetter(letter(seq=2), 2))
    count.apply(StoredLetter(letter(seq=2, state="retry"), 3))
    count.apply(StoredLetter(letter(seq=2), 4))
    assert (count.open(), count.set_aside) == ({"checkpoint": 2}, {"checkpoint": 1})
    count.apply(StoredLetter(letter(seq=1, state="dropped"), 5))
    count.apply(StoredLetter(letter(seq=2, state="handled"), 6))
    assert (count.open(), count.set_aside) == ({"checkpoint": 0}, {"checkpoint": 1})
    count.apply(StoredLetter(letter(seq=2), 7))
    assert (count.open(), count.set_aside) == ({"checkpoint": 1}, {"checkpoint": 2})


def test_what_the_stream_let_go_is_expired_unless_it_was_dealt_with() -> None:
    count = LetterCount()
    count.forget(0)
    for revision, each in enumerate((letter(seq=1), letter(seq=2, state="handled"), letter("projector", 3)), 1):
        count.apply(StoredLetter(each, revision))
    count.forget(3)
    assert count.expired == {"checkpoint": 1}
    assert count.open() == {"checkpoint": 0, "projector": 1}


async def test_it_is_read_on_from_the_bus(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    await server.start()
    client = await bus.connect(bus.BusSettings(url=server.url))
    try:
        polls, count = NatsPolls(client), LetterCount()
        await polls.count_letters(count)
        assert not count.known, "without the stream nothing is known"
        await client.jetstream().add_stream(StreamConfig.from_response(deadletter.stream_config(max_bytes=2**20)))
        letters = nats_letters(client)
        await letters.add(letter(seq=1))
        await polls.count_letters(count)
        await letters.add(letter("projector", 2))
        await letters.drop("checkpoint", "1.0", by="op", reason="", now_ns=1)
        await polls.count_letters(count)
        assert count.open() == {"checkpoint": 0, "projector": 1}
        assert (count.set_aside, count.expired) == ({"projector": 1}, {})
    finally:
        await client.close()
        server.stop()
