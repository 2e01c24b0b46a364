"""Whether a saved checkpoint is whole: every byte is read back and every hash compared with what was reported.

Runs in a thread. It believes nothing that the job wrote: see `hot.py` for how files are opened.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator

import msgspec
from tidegate.checkpoint import root as roots
from tidegate_events.events import CheckpointSaved, Reason

from tidegate_checkpoint.hot import (
    CheckpointGoneError,
    HotTier,
    NotIntactError,
    OpenCheckpoint,
    TierUnavailableError,
    read_root,
    unreadable,
)

BLOCK_BYTES = 1 << 20
DETAIL_CHARS_MAX = 500

Stopping = Callable[[], bool]


class Verified(msgspec.Struct, frozen=True):
    """Every byte agrees."""

    size_bytes: int


class Broken(msgspec.Struct, frozen=True):
    """It is not what was reported. `gone`: nothing lies there any more."""

    reason: Reason
    gone: bool = False


class InterruptedByStopError(Exception):
    """The service ends; there is no verdict."""


def verify(tier: HotTier, saved: CheckpointSaved, stopping: Stopping) -> Verified | Broken:
    """Read a checkpoint back. Raises TierUnavailableError when that was not possible, InterruptedByStopError."""
    try:
        with tier.open(saved) as opened:
            try:
                return Verified(_read_back(opened, saved, stopping))
            except (NotIntactError, TierUnavailableError):
                # The job's retention may have removed it under our hands: then that is what happened.
                if not opened.exists():
                    raise CheckpointGoneError("the directory is gone") from None
                raise
    except CheckpointGoneError as error:
        return Broken(_reason("Gone", str(error)), gone=True)
    except NotIntactError as error:
        return Broken(_reason(error.code, str(error), error.numbers))


def _reason(code: str, detail: str, numbers: dict[str, int] | None = None) -> Reason:
    # File names are the job's: what is not plain ASCII must not reach the journal raw.
    text = detail.encode("ascii", "backslashreplace").decode()
    return Reason(code=code, detail=text[:DETAIL_CHARS_MAX], numbers=numbers or {})


def _read_back(opened: OpenCheckpoint, saved: CheckpointSaved, stopping: Stopping) -> int:
    root = read_root(opened, saved)
    _refuse_undeclared(opened, root)
    for layer in root.layers:
        for entry in layer.files:
            _read_file(opened, layer.name, entry, stopping)
    return root.bytes


def _refuse_undeclared(opened: OpenCheckpoint, root: roots.Root) -> None:
    """Refuse what no hash covers: whoever opens the checkpoint as a directory would read it all the same."""
    files = {entry.path for layer in root.layers for entry in layer.files} | {roots.ROOT_FILE}
    parents = {path[:end] for path in files for end, char in enumerate(path) if char == "/"}
    for path, is_directory in _entries(opened, parents):
        if path not in (parents if is_directory else files):
            raise NotIntactError("UndeclaredFile", f"{path!r} is there, but not in {roots.ROOT_FILE}")


def _entries(opened: OpenCheckpoint, parents: set[str]) -> Iterator[tuple[str, bool]]:
    """Yield (path, is it a directory) of all that lies in the checkpoint; only declared directories are entered."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        top = os.open(opened.path, flags)
    except OSError as error:
        raise unreadable("the directory", error) from error
    try:
        for below in ("", *sorted(parents)):
            try:
                descriptor = _open_below(top, below, flags)
            except OSError as error:
                raise unreadable(f"directory {below!r}", error) from error
            try:
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        path = f"{below}/{entry.name}" if below else entry.name
                        yield path, entry.is_dir(follow_symlinks=False)
            finally:
                os.close(descriptor)
    finally:
        os.close(top)


def _open_below(top: int, path: str, flags: int) -> int:
    held = os.open(".", flags, dir_fd=top)
    for part in path.split("/") if path else ():
        try:
            below = os.open(part, flags, dir_fd=held)
        finally:
            os.close(held)
        held = below
    return held


def _read_file(opened: OpenCheckpoint, layer: str, entry: roots.FileEntry, stopping: Stopping) -> None:
    what = f"{entry.path!r} of layer {layer}"
    hashing, read = hashlib.sha256(), 0
    try:
        with roots.open_inside(opened.path, entry.path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != entry.bytes:
                raise NotIntactError(
                    "WrongSize", f"{what} has {size} bytes, not {entry.bytes}", found=size, expected=entry.bytes
                )
            # One byte further than declared, and no more: a job may let its file grow while it is read.
            while read <= entry.bytes and (block := file.read(min(BLOCK_BYTES, entry.bytes + 1 - read))):
                if stopping():
                    raise InterruptedByStopError
                hashing.update(block)
                read += len(block)
    except OSError as error:
        raise unreadable(what, error) from error
    if read != entry.bytes:
        raise NotIntactError(
            "WrongSize", f"{what} gave {read} bytes, not {entry.bytes}: it changed", found=read, expected=entry.bytes
        )
    if hashing.hexdigest() != entry.sha256:
        raise NotIntactError(
            "WrongHash", f"{what} has SHA-256 {hashing.hexdigest()}, not {entry.sha256}: its bytes changed"
        )
