"""Events of earlier versions become today's, one version after the other; what cannot be brought there is refused.

The kinds here exist in this test alone: no event of Tidegate has a second version yet.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_events.events import AnyEvent, Event
from tidegate_events.frame import KINDS, VERSIONS, FrameDecoder, UnreadableFrameError, Writer, decode, encode
from tidegate_events.upcasters import UPCASTERS, Document, UpcastError, upcast, version_of

from tests.events.writing import frame


class TideTurned(Event, frozen=True, kw_only=True):
    """Version 3: v1 had its height in metres, v2 named it `height_mm`, v3 says where it was measured."""

    v: Annotated[int, msgspec.Meta(ge=3, le=3)]
    height_millis: int
    gauge: str


class GullSeen(Event, frozen=True, kw_only=True):
    """A kind that never changed."""

    where: str = ""


class TideFrame(msgspec.Struct, frozen=True):
    """A frame of the test's kinds."""

    writer: Writer
    events: tuple[TideTurned | GullSeen, ...]


def from_metres(event: Document) -> Document:
    metres = event.pop("height_metres")
    return {**event, "height_mm": metres * 1000}


def with_gauge(event: Document) -> Document:
    rest = {name: value for name, value in event.items() if name != "height_mm"}
    return {**rest, "height_millis": event["height_mm"], "gauge": "harbour"}


VERSIONS_HERE = {"TideTurned": 3, "GullSeen": 1}
STEPS = {("TideTurned", 1): from_metres, ("TideTurned", 2): with_gauge}
READER = FrameDecoder(TideFrame, VERSIONS_HERE, STEPS)
WRITER = {"service": "gateway", "instance": "g1", "epoch": 1, "writer_seq": 1}
GULL = {"kind": "GullSeen", "id": "g", "at_ns": 2, "where": "pier"}


def wire(*events: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"writer": WRITER, "events": events})


def tide(version: int | None, **fields: Any) -> dict[str, Any]:
    said = {} if version is None else {"v": version}
    return {"kind": "TideTurned", "id": "t", "at_ns": 1, "cause": "7.0", **said, **fields}


TODAY = TideTurned(id="t", at_ns=1, cause="7.0", v=3, height_millis=2000, gauge="harbour")


@pytest.mark.parametrize(
    "event",
    [
        tide(None, height_metres=2),
        tide(1, height_metres=2),
        tide(2, height_mm=2000),
        tide(3, height_millis=2000, gauge="harbour"),
    ],
)
def test_every_version_becomes_todays(event: dict[str, Any]) -> None:
    assert READER.decode(wire(event)).events == (TODAY,)


def test_versions_mix_in_a_frame_and_keep_their_order() -> None:
    read = READER.decode(wire(tide(2, height_mm=2000), GULL, tide(None, height_metres=2))).events
    assert read == (TODAY, GullSeen(id="g", at_ns=2, where="pier"), TODAY)


def test_todays_version_is_written_and_is_not_upcast() -> None:
    data = msgspec.json.encode(TideFrame(Writer("gateway", "g1", 1, 1), (TODAY,)))
    assert b'"v":3' in data
    never: dict[tuple[str, int], Any] = {}
    assert FrameDecoder(TideFrame, VERSIONS_HERE, never).decode(data).events == (TODAY,)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (tide(4, height_millis=2000, gauge="harbour"), "TideTurned v4 is newer than this reader, which knows v3"),
        ({**GULL, "v": 2}, "GullSeen v2 is newer than this reader, which knows v1"),
        (tide(0, height_metres=2), "TideTurned v0 cannot be read: no upcaster takes it"),
        ({**GULL, "v": 0}, "GullSeen v0 cannot be read: no upcaster takes it"),
        (tide(True, height_metres=2), "not a frame"),
        ({**GULL, "v": "1"}, "not a frame"),
        ({**GULL, "kind": "WhaleSeen"}, "not a frame.*WhaleSeen"),
        ({**GULL, "kind": 7}, "not a frame"),
        ("no event", "not a frame"),
        (tide(3, height_mm=2000), "not a frame.*height_millis"),
        (tide(2, height_mm="high"), "not a frame.*height_millis"),
        (tide(2, height_metres=2), "TideTurned v2 is not what its upcaster takes.*height_mm"),
    ],
)
def test_what_cannot_become_todays_is_refused(event: Any, said: str) -> None:
    with pytest.raises(UnreadableFrameError, match=said):
        READER.decode(wire(GULL, event))


def test_a_missing_upcaster_is_named() -> None:
    with pytest.raises(UpcastError, match="TideTurned v2 cannot be read: no upcaster takes it"):
        upcast(tide(1, height_metres=2), VERSIONS_HERE, {("TideTurned", 1): from_metres})


def test_the_version_of_a_kind_is_what_its_field_allows() -> None:
    assert (version_of(TideTurned), version_of(GullSeen)) == (3, 1)
    assert set(KINDS) == set(VERSIONS) == {kind.__name__ for kind in get_args(AnyEvent)}


def test_every_earlier_version_of_every_kind_has_its_upcaster_and_no_other_is_there() -> None:
    assert set(UPCASTERS) == {(kind, version) for kind, last in VERSIONS.items() for version in range(1, last)}


@given(version=st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.floats(allow_nan=False)))
def test_no_version_makes_the_reader_fail_otherwise(version: Literal[1] | None) -> None:
    document = msgspec.json.decode(encode(frame()))
    document["events"][0]["v"] = version
    if version == 1 and type(version) is int:  # 1.0 and True are equal to 1, and no version
        assert decode(msgspec.json.encode(document)) == frame()
    else:
        with pytest.raises(UnreadableFrameError):
            decode(msgspec.json.encode(document))
