"""The codec of frames: what was written is read again, and what is not a frame stops the reader."""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate_events.events import CancelRequested, Event
from tidegate_events.frame import (
    KINDS,
    MAX_FRAME_BYTES,
    Frame,
    UnreadableFrameError,
    Writer,
    decode,
    encode,
)

from tests.events.examples import EXAMPLES
from tests.events.writing import frame

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
INTEGER = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
WRITERS = st.builds(
    Writer, st.sampled_from(["gateway", "scheduler", "node", "checkpoint"]), TEXT, INTEGER, st.integers(1, 2**53)
)


def struct(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy that sets every field of a Struct; versions stay 1."""
    hints = get_type_hints(kind)
    fields = {name: st.just(1) if name == "v" else of(hints[name]) for name in kind.__struct_fields__}
    return st.builds(kind, **fields)


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a field's type."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return struct(hint)
    plain = {str: TEXT, int: INTEGER, bool: st.booleans(), float: FLOAT, type(None): st.none()}
    if hint in plain:
        return plain[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        return st.lists(of(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(of(arguments[0]), of(arguments[1]), max_size=3)
    if str(hint).startswith("typing.Literal"):
        return st.sampled_from(arguments)
    return st.one_of([of(argument) for argument in arguments])


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_event_of_any_kind_comes_back_equal_and_in_the_same_bytes(kind: type[Event], data: st.DataObject) -> None:
    events = tuple(data.draw(st.lists(struct(kind), min_size=1, max_size=3)))
    written = Frame(data.draw(WRITERS), events)
    again = decode(encode(written))
    assert again == written
    assert encode(again) == encode(written)


def test_many_kinds_in_one_frame_keep_their_order() -> None:
    written = Frame(Writer("scheduler", "s1", 7, 912), EXAMPLES)  # type: ignore[arg-type]
    assert decode(encode(written)) == written


def test_names_derived_from_a_writer_are_stable() -> None:
    writer = Writer("scheduler", "s1", 7, 912)
    assert writer.frame_id == "scheduler/s1/7/912"
    assert writer.event_id(3) == "scheduler-s1-7-912-3"


def changed(**fields: Any) -> bytes:
    document = msgspec.json.decode(encode(frame()))
    document["events"][0].update(fields)
    return msgspec.json.encode(document)


def test_a_newer_version_stops_the_reader() -> None:
    assert decode(changed(v=1)) == frame()
    with pytest.raises(UnreadableFrameError, match="CancelRequested v2 is newer"):
        decode(changed(v=2))


def test_a_newer_kind_stops_the_reader() -> None:
    with pytest.raises(UnreadableFrameError, match="MoonLanded"):
        decode(changed(kind="MoonLanded"))


def test_a_field_of_another_type_stops_the_reader() -> None:
    with pytest.raises(UnreadableFrameError, match="at_ns"):
        decode(changed(at_ns="soon"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\x00\xff\xfe",
        b'{"writer": {}, "events": []}',
        b"[" * 100_000,
        encode(frame())[:-1],
        encode(frame()) + b"x",
        encode(frame()).replace(b'"lab"', b'"\xff"'),
        encode(frame()).replace(b'"gateway"', b'"somebody"'),
    ],
)
def test_what_is_no_frame_stops_the_reader(data: bytes) -> None:
    with pytest.raises(UnreadableFrameError, match="not a frame"):
        decode(data)


@given(st.binary(max_size=200))
def test_bytes_are_a_frame_or_refused_and_nothing_else(data: bytes) -> None:
    with pytest.raises(UnreadableFrameError):
        decode(data)


def test_an_empty_or_oversized_frame_is_not_written() -> None:
    with pytest.raises(ValueError, match="at least one event"):
        encode(Frame(Writer("gateway", "g1", 1, 1), ()))
    with pytest.raises(ValueError, match=f"takes {MAX_FRAME_BYTES}"):
        encode(frame(padding="x" * MAX_FRAME_BYTES))


def test_events_are_frozen() -> None:
    (event,) = frame().events
    assert isinstance(event, CancelRequested)
    with pytest.raises(AttributeError):
        event.actor = "somebody else"  # type: ignore[misc]
