"""The hot tier: stores that untrusted jobs write, opened so that none of them leads elsewhere.

Every component of a path is opened below the one before it without following links, only regular files are read,
and nothing that a job can place there (a pipe, a device, a lock) can block. It must never write.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tidegate.checkpoint import files, places
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.places import Places
from tidegate.errors import CorruptCheckpointError
from tidegate_events.events import CheckpointSaved

ROOT_BYTES_MAX = roots.ROOT_BYTES_MAX
CHECKPOINT_BYTES_MAX = 16 << 40

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
_HERE_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# The service or the machine is short of something: that says nothing about the checkpoint.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EINTR})


class TierUnavailableError(Exception):
    """The tier itself cannot be read now. Infrastructure: no verdict follows from it. Retriable."""


class CheckpointGoneError(Exception):
    """Nothing lies under the checkpoint's name."""


class NotIntactError(Exception):
    """What lies there is not the checkpoint that was reported; `code` and `numbers` go into the event."""

    def __init__(self, code: str, detail: str, **numbers: int) -> None:
        super().__init__(detail)
        self.code = code
        self.numbers = numbers


class OpenCheckpoint:
    """A checkpoint's root in the open directory of its job: what that is called cannot be moved."""

    def __init__(self, job_descriptor: int, name: str) -> None:
        self._job = job_descriptor
        self._name = name

    def exists(self) -> bool:
        """Say whether its root is there now."""
        try:
            with files.open_inside(self._job, f"{places.ROOTS}/{self._name}{roots.SUFFIX}"):
                return True
        except OSError as error:
            if error.errno in _SHORTAGES:
                raise TierUnavailableError(f"{self._name} cannot be looked at: {error.strerror}") from error
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

    @contextmanager
    def store(self) -> Iterator[Places]:
        """Yield the store that it lies in. Raises as `HotTier.open`."""
        with ExitStack() as stack:
            try:
                held = stack.enter_context(places.opened(self._job))
            except FileNotFoundError as error:
                raise CheckpointGoneError("the store is gone") from error
            except CorruptCheckpointError as error:
                raise NotIntactError("BadName", str(error)) from error
            except OSError as error:
                raise unreadable("the store", error) from error
            yield held

    def read_root(self, held: Places) -> bytes:
        """Return the bytes of its root, as many as a root may have and one more at most."""
        try:
            with files.open_inside(held.roots, self._name + roots.SUFFIX) as file:
                return b"".join(files.blocks(file, ROOT_BYTES_MAX + 1))
        except FileNotFoundError as error:
            raise CheckpointGoneError("its root is gone") from error
        except OSError as error:
            raise unreadable(f"root {self._name}", error) from error


class HotTier:
    """All checkpoints below `<hot_dir>/<tenant>/<job>/`."""

    def __init__(self, hot_dir: Path) -> None:
        self._hot_dir = hot_dir

    @contextmanager
    def open(self, saved: CheckpointSaved) -> Iterator[OpenCheckpoint]:
        """Yield a reported checkpoint.

        Raises NotIntactError for names that could lead elsewhere, CheckpointGoneError, and TierUnavailableError.
        """
        name = saved.checkpoint.directory
        if not roots.NAME.fullmatch(name) or not _NAME.match(saved.tenant) or not _NAME.match(saved.job):
            raise NotIntactError("BadName", f"{saved.tenant!r}/{saved.job!r}/{name!r} cannot name a checkpoint")
        try:
            # The operator's own setting may lead through links; nothing below it may.
            held = os.open(self._hot_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise TierUnavailableError(f"the hot directory cannot be opened: {error.strerror}") from error
        try:
            for part in (saved.tenant, saved.job):
                below = _descend(held, part)
                os.close(held)
                held = below
            yield OpenCheckpoint(held, name)
        finally:
            os.close(held)


def _descend(held: int, part: str) -> int:
    try:
        return os.open(part, _HERE_FLAGS, dir_fd=held)
    except FileNotFoundError as error:
        raise CheckpointGoneError(f"the directory {part} is gone") from error
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise NotIntactError("BadName", f"{part} is not a directory") from error
        raise TierUnavailableError(f"the directory {part} cannot be opened: {error.strerror}") from error


def unreadable(what: str, error: OSError) -> Exception:
    """Return what an error at reading `what` means: a shortage of the machine's, or a checkpoint that is not whole."""
    why = "it is a link, and none is followed" if error.errno == errno.ELOOP else error.strerror or str(error)
    if error.errno in _SHORTAGES:
        return TierUnavailableError(f"{what} cannot be read: {why}")
    return NotIntactError("Unreadable", f"{what} cannot be read: {why}")


def read_root(opened: OpenCheckpoint, held: Places, saved: CheckpointSaved) -> roots.Root:
    """Return the root, proven to be the reported one and within bounds. Raises as `HotTier.open`."""
    name = saved.checkpoint.directory
    data = opened.read_root(held)
    if len(data) > ROOT_BYTES_MAX:
        raise NotIntactError("TooLarge", f"root {name} is longer than {ROOT_BYTES_MAX} bytes", limit=ROOT_BYTES_MAX)
    try:
        root = roots.decode(data)
    except ValueError as error:
        raise NotIntactError("BadRoot", f"root {name} is malformed: {error}") from error
    as_reported(root, saved)
    if root.bytes > CHECKPOINT_BYTES_MAX:
        raise NotIntactError(
            "TooLarge", f"{root.bytes} bytes are more than {CHECKPOINT_BYTES_MAX}", limit=CHECKPOINT_BYTES_MAX
        )
    return root


def as_reported(root: roots.Root, saved: CheckpointSaved) -> None:
    """Raise NotIntactError unless a root is the reported one."""
    reported = saved.checkpoint
    if root.id != reported.id:
        raise NotIntactError("NotAsReported", f"the root has the id {root.id}, reported was {reported.id}")
    found = (root.stamp.job, root.stamp.attempt, root.stamp.rank, root.step)
    expected = (saved.job, reported.attempt, saved.rank, reported.step)
    if found != expected:
        raise NotIntactError("NotAsReported", f"(job, attempt, rank, step) is {found}, reported was {expected}")
    if reported.directory != root.name:
        raise NotIntactError("NotAsReported", f"{reported.directory} holds {root.name}")
    if not reported.layers:
        return  # the id covers them all; a report that repeats them has to be right about each
    layers = {layer.name: (layer.manifest, layer.bytes) for layer in root.layers}
    for layer in reported.layers:
        if layers.pop(layer.name, None) != (layer.digest.removeprefix("sha256:"), layer.size_bytes):
            raise NotIntactError("NotAsReported", f"layer {layer.name} is missing or not the one that was reported")
    if layers:
        raise NotIntactError("NotAsReported", f"layers {', '.join(sorted(layers))} were not reported")
