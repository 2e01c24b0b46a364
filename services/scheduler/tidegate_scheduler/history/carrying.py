"""Carry history away: the whole journal as one file, or the part that an incident report needs, redacted or not."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
from tidegate_events import events as e
from tidegate_events.frame import Frame, UnreadableFrameError, decode, encode
from tidegate_events.journal.archive import ArchiveInfo, ArchiveWriter
from tidegate_events.journal.base import Raw

from tidegate_scheduler.history.errors import NotInHistoryError, RefusedError
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.point import FRAMES_PER_WORD, Told, provable_start, reach
from tidegate_scheduler.history.redaction import is_cut, redact_frame, redact_state
from tidegate_scheduler.history.source import NOTE_CUT_PASSES, NOTE_REDACTED, YES, Source
from tidegate_scheduler.history.verification import Redacted
from tidegate_scheduler.snapshot import encode_snapshot
from tidegate_scheduler.state import State
from tidegate_scheduler.version import CORE_VERSION

NO = "no"


class Cut(msgspec.Struct, frozen=True):
    """The part of history that a bundle holds: the frames from `first` to `last`, and the state before them."""

    first: int
    last: int
    before: State
    after: State


async def export(source: Source, path: Path, told: Told) -> ArchiveInfo:
    """Write all of history to `path`. Raises RefusedError where a file is there, or history's beginning is not."""
    _refuse_existing(path)
    if source.first != 1 or source.end == 0:
        raise RefusedError(
            f"The whole journal cannot be exported: this history holds the sequences {source.first} to {source.end}.",
            "`tidegate history bundle` takes any part of it.",
        )
    last = await reach(source, Moment(seq=source.end), told)
    notes = _notes("export", last.state, source.redacted)
    with _writable(path), ArchiveWriter(path, first_seq=1, notes=notes) as writer:
        async with aclosing(source.read_raw(0, source.end)) as frames:
            async for raw in frames:
                writer.add(raw)
                if raw.seq % FRAMES_PER_WORD == 0:
                    told(f"Writing frame {raw.seq} of {source.end}")
        return writer.close()


async def cut(source: Source, begin: Moment, end: Moment, told: Told) -> Cut:
    """Return the part from `begin` to `end`; it begins early enough that its first pass can be decided again."""
    after = await reach(source, end, told)
    last = after.state.seq
    if begin.at_ns is not None:
        first = (await reach(source, begin, told)).state.seq + 1
    else:
        first = source.first if begin.seq is None else begin.seq
    if not source.first <= first <= last:
        raise NotInHistoryError(
            f"From {first} to {last} there is no history: it begins with {source.first} and ends with {source.end}."
        )
    first = await provable_start(source, first, last)
    before = await reach(source, Moment(seq=first - 1), told)
    return Cut(first, last, before.state, after.state)


async def bundle(source: Source, path: Path, part: Cut, *, redacted: bool, told: Told) -> ArchiveInfo:
    """Write a part of history with the state before it. Raises RefusedError where a file is there."""
    _refuse_existing(path)
    taken_out = source.redacted
    if redacted and taken_out is None:
        taken_out = Redacted(await _cut_passes(source, part, told))
    before = redact_state(part.before) if redacted else part.before
    snapshot = encode_snapshot(before) if part.first > 1 else None
    notes = _notes("bundle", part.after, taken_out)
    with _writable(path), ArchiveWriter(path, first_seq=part.first, notes=notes, snapshot=snapshot) as writer:
        async with aclosing(source.read_raw(part.first - 1, part.last)) as frames:
            async for raw in frames:
                data = encode(redact_frame(_readable(raw))) if redacted else raw.data
                writer.add(Raw(raw.seq, raw.subject, data))
                if raw.seq % FRAMES_PER_WORD == 0:
                    told(f"Writing frame {raw.seq} of {part.last}")
        return writer.close()


async def _cut_passes(source: Source, part: Cut, told: Told) -> frozenset[int]:
    """Return the passes that ended for their size; the file's header says so, so they are looked for first."""
    found = set()
    async with aclosing(source.read_raw(part.first - 1, part.last)) as frames:
        async for raw in frames:
            frame = _readable(raw)
            if isinstance(frame.events[0], e.DecisionPass) and is_cut(frame):
                found.add(raw.seq)
            if raw.seq % FRAMES_PER_WORD == 0:
                told(f"Reading frame {raw.seq} of {part.last}")
    return frozenset(found)


def _readable(raw: Raw) -> Frame:
    try:
        return decode(raw.data)
    except UnreadableFrameError as error:
        raise RefusedError(
            f"Sequence {raw.seq} cannot be read, so what is private in it cannot be taken out: {error}.",
            "Leave it out with --from and --to, or bundle without --redact.",
        ) from error


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    """Say of a place that takes no file, or is full, that nothing was written there."""
    try:
        yield
    except OSError as error:
        raise RefusedError(
            f"{path} cannot be written: {error.strerror or error}. Nothing is left there.",
            "Name a file in a directory that is there, may be written, and has room.",
        ) from error


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise RefusedError(f"{path} is there already; nothing was written.", "Give another name, or remove the file.")


def _notes(kind: str, state: State, redacted: Redacted | None) -> dict[str, str]:
    """Return what a reader needs beside the frames: who wrote it, and what decided."""
    try:
        ours = version("tidegate-server")
    except PackageNotFoundError:
        ours = "unknown"
    notes = {
        "kind": kind,
        "tidegate": ours,
        "python": platform.python_version(),
        "core": CORE_VERSION,
        "policy": str(state.header.policy),
        "parameters": msgspec.json.encode(state.header.parameters).decode(),
        NOTE_REDACTED: NO if redacted is None else YES,
    }
    if redacted is not None and redacted.cut_passes:
        notes[NOTE_CUT_PASSES] = " ".join(str(seq) for seq in sorted(redacted.cut_passes))
    return notes
