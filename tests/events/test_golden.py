"""The wire form of every kind of event, byte for byte: a change of it must be a decision, never an accident.

A golden file is written once, by `TIDEGATE_WRITE_GOLDEN=1 pytest tests/events/test_golden.py`, for kinds that have none
yet. From the first tagged release on, a file never changes: a changed event gets a new version and an upcaster.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from tidegate_events.events import Event
from tidegate_events.frame import KINDS, Frame, Writer, decode, encode

from tests.events.examples import EXAMPLES

GOLDEN = Path(__file__).parents[1] / "golden" / "events"


def wire(event: Event) -> bytes:
    return encode(Frame(Writer("gateway", "g1", 1, 1), (event,)))  # type: ignore[arg-type]


def golden(kind: str, data: bytes) -> bytes:
    path = GOLDEN / f"{kind}.json"
    if not path.exists() and os.environ.get("TIDEGATE_WRITE_GOLDEN"):
        GOLDEN.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data + b"\n")
    return path.read_bytes().removesuffix(b"\n")


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_the_wire_form_is_the_golden_one(event: Event) -> None:
    stored = golden(type(event).__name__, wire(event))
    assert wire(event) == stored
    assert decode(stored).events == (event,)


def test_every_kind_has_an_example_with_every_field_set() -> None:
    assert [type(event).__name__ for event in EXAMPLES] == list(KINDS)
    for event in EXAMPLES:
        # Defaults are left out of the wire form, so a field at its default would not be held by the golden bytes.
        written = msgspec.json.decode(wire(event))["events"][0]
        expected = set(type(event).__struct_fields__) - {"v"} | {"kind"}
        assert set(written) == expected, type(event).__name__


def test_there_is_no_golden_file_without_a_kind() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(KINDS)
