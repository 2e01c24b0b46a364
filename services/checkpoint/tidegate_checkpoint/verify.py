"""Whether a saved checkpoint is whole: every byte is read back and every hash compared with what was reported.

Runs in a thread. It believes nothing that the job wrote: see `hot.py` for how files are opened.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from tidegate.checkpoint import reader, store
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.crew import SHARED
from tidegate.checkpoint.places import Places
from tidegate.checkpoint.shelf import Shelf
from tidegate.errors import CorruptCheckpointError
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
    with opened.store() as held:
        root = read_root(opened, held, saved)
        # A store may be collected while it is read, and what was looked up be in another pack then: so once more.
        # Its lock is not taken for that: the job could hold it for ever.
        try:
            _read_layers(held, root, stopping)
        except (NotIntactError, TierUnavailableError):
            if not opened.exists():
                raise
            _read_layers(held, root, stopping)
        if not opened.exists():
            raise CheckpointGoneError("it was removed while it was read")
        return root.bytes


def _read_layers(held: Places, root: roots.Root, stopping: Stopping) -> None:
    def on_read(size_bytes: int) -> None:
        if stopping():
            raise InterruptedByStopError

    on_read(0)
    with reader.reading(held, Shelf().refresh(held), SHARED) as reading:
        for entry in root.layers:
            try:
                for manifest in store.layer_manifests(held, entry):
                    reader.verify(reading, entry.name, manifest, on_read)
            except CorruptCheckpointError as error:
                raise _judged(entry.name, error) from error


def _judged(layer: str, error: CorruptCheckpointError) -> Exception:
    """Return what a damage means: one of the machine's troubles, or a checkpoint that is not whole."""
    if isinstance(error.__cause__, OSError):
        return unreadable(f"layer {layer}: {error}", error.__cause__)
    if isinstance(error, reader.DamagedChunkError):
        return NotIntactError("WrongHash", str(error))
    return NotIntactError("BadLayer", f"layer {layer}: {error}")
