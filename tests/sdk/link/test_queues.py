"""What waits between the job and the wire: bounded, counted, in order."""

import math
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate import AgentUnreachableError, FrameError, protocol
from tidegate.link import outbox as outboxes
from tidegate.link.outbox import Outbox
from tidegate.link.phases import BURST, LEAVE_SECONDS, PER_SECOND, PhaseLane
from tidegate.link.reports import WINDOWS_MAX, Reports

MESSAGE = {"kind": "publish"}


def sent(outbox: Outbox) -> list[int]:
    reader = protocol.FrameReader()
    numbers = []
    while (frame := outbox.next_frame()) is not None:
        numbers.extend(message["seq"] for message in reader.feed(frame))
    return numbers


def test_messages_are_sent_again_until_acknowledged() -> None:
    outbox = Outbox()
    assert [outbox.put(MESSAGE) for _ in range(4)] == [1, 2, 3, 4]
    assert sent(outbox) == [1, 2, 3, 4]
    assert sent(outbox) == []
    outbox.acknowledge(2)
    outbox.rewind()
    assert outbox.first_seq == 3
    assert sent(outbox) == [3, 4]
    outbox.rewind(4)
    assert sent(outbox) == [4]
    outbox.acknowledge(4)
    assert outbox.empty
    assert outbox.first_seq == 5


@given(st.lists(st.sampled_from(["put", "send", "ack", "rewind"]), max_size=60), st.data())
def test_whatever_happens_the_receiver_sees_every_number_in_order(steps: list[str], data: st.DataObject) -> None:
    outbox, reader, seen, put = Outbox(), protocol.FrameReader(), 0, 0
    for step in [*steps, "rewind", *["send"] * 70]:
        if step == "put":
            put = outbox.put(MESSAGE)
        elif step == "send" and (frame := outbox.next_frame()) is not None:
            (message,) = reader.feed(frame)
            assert message["seq"] <= seen + 1, "a gap"
            seen = max(seen, message["seq"])
        elif step == "ack" and seen:
            outbox.acknowledge(data.draw(st.integers(0, seen)))
        elif step == "rewind":
            outbox.rewind(data.draw(st.integers(0, put + 1)))
            outbox.rewind()
    assert seen == put


def test_a_full_outbox_waits_then_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "MESSAGES_MAX", 3)
    outbox = Outbox()
    for _ in range(3):
        outbox.put(MESSAGE)
    with pytest.raises(AgentUnreachableError, match=r"'publish' message was refused: 3 earlier ones wait"):
        outbox.put(MESSAGE, wait_seconds=0.01)
    threading.Timer(0.05, lambda: outbox.acknowledge(1)).start()
    assert outbox.put(MESSAGE, wait_seconds=10) == 4, "a refused message takes no number"


def test_nobody_waits_on_a_link_that_is_gone() -> None:
    outbox = Outbox()
    seq = outbox.put(MESSAGE)
    threading.Timer(0.05, lambda: outbox.fail(None)).start()
    assert outbox.wait_acknowledged(seq, 30) is False


def test_a_message_too_long_for_a_frame_takes_no_number() -> None:
    outbox = Outbox()
    with pytest.raises(FrameError, match="at most 65536 bytes"):
        outbox.put({"kind": "publish", "payload": "x" * 70_000})
    assert outbox.put(MESSAGE) == 1


def test_report_windows_are_dropped_oldest_first_and_counted() -> None:
    reports = Reports()
    for step in range(WINDOWS_MAX + 5):
        reports.add(({"a": float(step)}, step, None, 2 * step + 1))
        reports.add(({"a": step + 0.5, "b": 1.0}, None, 0.5, 2 * step + 2))
        reports.close_window()
    assert reports.dropped == 10
    first = reports.take()
    assert first is not None
    assert (first["step"], first["metrics"], first["merged"], first["dropped"]) == (5, {"a": 5.5, "b": 1}, 1, 10)
    second = reports.take()
    assert second is not None
    assert second["dropped"] == 0, "said once"


def test_an_empty_window_is_no_message() -> None:
    reports = Reports()
    reports.close_window()
    assert reports.take() is None


@given(st.floats())
def test_every_float_can_be_reported(value: float) -> None:
    encoded = protocol.encode_metric(value)
    frame = protocol.encode_frame({"kind": "report", "x": encoded})
    (message,) = protocol.FrameReader().feed(frame)
    back = float(message["x"])
    assert back == value or (math.isnan(back) and math.isnan(value))


@given(st.binary(max_size=40), st.lists(st.integers(1, 7), min_size=1))
def test_frames_come_through_whatever_the_pieces(noise: bytes, sizes: list[int]) -> None:
    messages = [{"kind": "a", "n": n, "text": noise.hex()} for n in range(4)]
    stream = b"".join(protocol.encode_frame(message) for message in messages)
    reader, found, position, index = protocol.FrameReader(), [], 0, 0
    while position < len(stream):
        size = sizes[index % len(sizes)]
        found.extend(reader.feed(stream[position : position + size]))
        position, index = position + size, index + 1
    assert found == messages


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\x02[]", b"\0\0\0\x01x"])
def test_what_is_not_a_frame_is_an_error(data: bytes) -> None:
    with pytest.raises(FrameError):
        list(protocol.FrameReader().feed(data))


class Lane:
    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[dict[str, Any]] = []
        self.lane = PhaseLane(self._put, lambda: self.now)

    def _put(self, message: dict[str, Any]) -> int:
        self.sent.append(message)
        return len(self.sent)

    @property
    def names(self) -> list[Any]:
        return [message["phase"] for message in self.sent]


def test_a_phase_goes_out_at_once_and_its_end_a_little_later() -> None:
    lane = Lane()
    lane.lane.change("sampling", 1, direct=True)
    assert lane.names == ["sampling"]
    lane.lane.change(None, 2, direct=True)
    lane.lane.tick()
    assert lane.names == ["sampling"], "the next phase mostly follows"
    lane.now += LEAVE_SECONDS
    lane.lane.tick()
    assert lane.names == ["sampling", None]


def test_an_end_is_replaced_by_the_next_phase() -> None:
    lane = Lane()
    for name in ("sampling", None, "learning", None):
        lane.lane.change(name, None, direct=True)
    assert lane.names == ["sampling", "learning"]
    assert [message["merged"] for message in lane.sent] == [0, 0]


def test_above_the_pace_entries_are_merged_and_the_newest_is_sent() -> None:
    lane = Lane()
    for _ in range(100):
        lane.lane.change("sampling", None, direct=True)
        lane.lane.change("learning", None, direct=True)
    assert len(lane.sent) == BURST
    lane.now += 1 / PER_SECOND
    lane.lane.tick()
    assert lane.names[-1] == "learning"
    assert lane.sent[-1]["merged"] == 200 - BURST - 1
    lane.lane.tick()
    assert len(lane.sent) == BURST + 1


def test_while_the_agent_is_away_only_the_newest_is_kept() -> None:
    lane = Lane()
    for index in range(50):
        lane.lane.change("sampling" if index % 2 else "learning", index, direct=False)
    assert lane.sent == []
    lane.lane.flush()
    assert [(message["phase"], message["merged"]) for message in lane.sent] == [("sampling", 49)]
