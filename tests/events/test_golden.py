"""The wire form of every version of every kind of event, byte for byte: a change must be a decision, not an accident.

`TIDEGATE_WRITE_GOLDEN=1 pytest tests/events/test_golden.py` writes what is missing, and never writes over what is
there. A file stays as it is for ever, since journals that hold such bytes do: a changed event gets a new version, a new
file and an upcaster, as `docs/how-to/change-an-event.md` says. `digests.json` makes that a file was changed show.

Before the first release a version may grow by fields that are left out of the bytes at their default. Then
`JobPlaced.v1.json` stays and `JobPlaced.v1+1.json` holds every field that there is now; today's code writes both.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from tidegate_events.events import Event
from tidegate_events.frame import KINDS, VERSIONS, Frame, Writer, decode, encode

from tests.events.examples import EXAMPLES

GOLDEN = Path(__file__).parents[1] / "golden" / "events"
DIGESTS = GOLDEN / "digests.json"
SHIPPED = sorted(path.name for path in GOLDEN.glob("*.v*.json"))
NAME = re.compile(r"(?P<kind>[A-Za-z]+)\.v(?P<version>[1-9][0-9]*)(?:\+(?P<growth>[1-9][0-9]*))?\.json")


def wire(event: Event) -> bytes:
    return encode(Frame(Writer("gateway", "g1", 1, 1), (event,)))  # type: ignore[arg-type]


def read(name: str) -> bytes:
    return (GOLDEN / name).read_bytes().removesuffix(b"\n")


def digest(name: str) -> str:
    return blake3((GOLDEN / name).read_bytes()).hexdigest()


def versions_of(kind: str) -> dict[int, list[str]]:
    """Return the files of each version of a kind, by how often it had grown when they were written."""
    found: dict[int, list[tuple[int, str]]] = {}
    for path in GOLDEN.glob(f"{kind}.v*.json"):
        match = NAME.fullmatch(path.name)
        assert match, path.name
        found.setdefault(int(match["version"]), []).append((int(match["growth"] or 0), path.name))
    return {version: [name for _, name in sorted(files)] for version, files in found.items()}


def todays(kind: str) -> list[str]:
    return versions_of(kind).get(VERSIONS[kind], [])


@pytest.fixture(autouse=True, scope="module")
def _written() -> None:
    """Write the files and the digests that are missing, if that was asked for."""
    if not os.environ.get("TIDEGATE_WRITE_GOLDEN"):
        return
    for event in EXAMPLES:
        kind = type(event).__name__
        written = todays(kind)
        if not written or read(written[-1]) != wire(event):
            growth = f"+{len(written)}" if written else ""
            (GOLDEN / f"{kind}.v{VERSIONS[kind]}{growth}.json").write_bytes(wire(event) + b"\n")
    known = msgspec.json.decode(DIGESTS.read_bytes()) if DIGESTS.exists() else {}
    found = {path.name: digest(path.name) for path in GOLDEN.glob("*.v*.json")}
    DIGESTS.write_bytes(msgspec.json.format(msgspec.json.encode(dict(sorted({**found, **known}.items())))) + b"\n")


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_the_wire_form_is_the_golden_one(event: Event) -> None:
    stored = read(todays(type(event).__name__)[-1])
    assert wire(event) == stored
    assert decode(stored).events == (event,)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_before_a_version_grew_is_written_the_same_today(kind: str) -> None:
    for name in todays(kind):
        assert encode(decode(read(name))) == read(name), name


def test_every_kind_has_an_example_with_every_field_set() -> None:
    assert [type(event).__name__ for event in EXAMPLES] == list(KINDS)
    for event in EXAMPLES:
        # Defaults are left out of the wire form, so a field at its default would not be held by the golden bytes.
        written = msgspec.json.decode(wire(event))["events"][0]
        version = {"v"} if VERSIONS[type(event).__name__] > 1 else set()
        expected = set(type(event).__struct_fields__) - {"v"} | {"kind"} | version
        assert set(written) == expected, type(event).__name__


def test_every_version_of_every_kind_has_its_golden_file_and_there_are_no_others() -> None:
    expected = set()
    for kind, last in VERSIONS.items():
        files = versions_of(kind)
        assert sorted(files) == list(range(1, last + 1)), kind
        for version, names in files.items():
            growths = [f"+{number}" if number else "" for number in range(len(names))]
            expected |= {f"{kind}.v{version}{growth}.json" for growth in growths}
    assert {path.name for path in GOLDEN.iterdir()} - {DIGESTS.name} == expected


def test_no_golden_file_was_changed() -> None:
    assert {name: digest(name) for name in SHIPPED} == msgspec.json.decode(DIGESTS.read_bytes())


@pytest.mark.parametrize("name", SHIPPED)
def test_todays_code_reads_every_version(name: str) -> None:
    match = NAME.fullmatch(name)
    assert match
    kind = match["kind"]
    (written,) = msgspec.json.decode(read(name))["events"]
    assert (written["kind"], written.get("v", 1)) == (kind, int(match["version"]))
    frame = decode(read(name))
    (event,) = frame.events
    assert (type(event).__name__, event.v) == (kind, VERSIONS[kind])
    assert decode(encode(frame)) == frame
