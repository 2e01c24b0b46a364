"""Take an exported history as the first, archived generation of a stack that has none yet."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate_events.journal.archive import ArchiveDirectory, ArchiveInfo, inspect
from tidegate_events.subjects import generation_of

from tidegate_scheduler.history.errors import HistoryMissingError, RefusedError

ARCHIVE_IN_HOME = Path("journal", "archive")
LOCK_IN_HOME = "lock"
STORE_IN_HOME = "nats"
DIRECTORY_MODE = 0o700
FIRST_GENERATION = 1


def check_file(path: Path) -> ArchiveInfo:
    """Return what the file holds, every byte proved. Raises RefusedError where a journal cannot begin with it."""
    try:
        info = inspect(path)
    except OSError as error:
        raise HistoryMissingError(f"{path} cannot be read: {error.strerror or error}.") from error
    if info.notes.get("redacted") == "yes":
        raise RefusedError(
            f"{path} is redacted: its jobs have no commands any more, so no stack can go on with it.",
            "Read it with --file, or import an export that is not redacted.",
        )
    if info.first_seq != 1 or info.has_snapshot or info.previous_digest or info.frames == 0:
        raise RefusedError(
            f"{path} holds the sequences {info.first_seq} to {info.last_seq}: a journal begins with 1.",
            "Read it with --file, or import a file that `tidegate history export` wrote.",
        )
    return info


def install(path: Path, home: Path) -> ArchiveInfo:
    """Put a checked file into the archive of the stack in `home`. Raises RefusedError where it has a journal."""
    home.mkdir(parents=True, exist_ok=True)
    with _held(home):
        archive = ArchiveDirectory(home / ARCHIVE_IN_HOME)
        if there := archive.list():
            raise RefusedError(
                f"The stack in {home} has a journal already: {there[-1].path}. Nothing was changed.",
                "Import into another, empty --home.",
            )
        streams = (path.name for path in (home / STORE_IN_HOME).glob("**/streams/*") if path.is_dir())
        if stream := next((name for name in streams if generation_of(name) is not None), None):
            raise RefusedError(
                f"The stack in {home} has a journal already: the stream {stream}. Nothing was changed.",
                "Import into another, empty --home.",
            )
        (home / ARCHIVE_IN_HOME).mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        return archive.put(FIRST_GENERATION, path)


@contextmanager
def _held(home: Path) -> Iterator[None]:
    """Keep the stack of this directory from starting meanwhile, by the lock that it takes itself."""
    descriptor = os.open(home / LOCK_IN_HOME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError(
                f"A stack runs in {home}: it has a journal. Nothing was changed.",
                "Import into another, empty --home; `tidegate down` ends this one.",
            ) from None
        yield
    finally:
        os.close(descriptor)
