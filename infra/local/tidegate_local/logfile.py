"""Log files of the services: what they print, appended, and rotated by size."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

LOG_BYTES_MAX = 8 * 1024**2
LOG_FILES_KEPT = 3
READ_BYTES = 64 * 1024
TAIL_BYTES = 2048


class LogFile:
    """One log: writers get `write_end`, and what they write goes to `path`, then to `path.1`, `path.2`, ...

    A pipe, not the file itself, so that rotation loses no line whoever still holds the writing end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._open()

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Copy from the pipe to the file whenever there is something."""
        loop.add_reader(self._read_end, self._copy)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write what is left in the pipe and give everything back."""
        loop.remove_reader(self._read_end)
        while self._copy():
            pass
        for descriptor in (self._read_end, self.write_end, self._file):
            os.close(descriptor)

    def tail(self) -> str:
        """Return the end of the log, for the message about a service that failed."""
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace").strip()

    def _copy(self) -> bool:
        """Copy one portion; say whether there was one."""
        try:
            data = os.read(self._read_end, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            return False
        if self._size + len(data) > LOG_BYTES_MAX:
            self._rotate()
        os.write(self._file, data)
        self._size += len(data)
        return True

    def _rotate(self) -> None:
        os.close(self._file)
        for number in range(LOG_FILES_KEPT - 1, 0, -1):
            older = self.path.with_name(f"{self.path.name}.{number}")
            newer = self.path if number == 1 else self.path.with_name(f"{self.path.name}.{number - 1}")
            if newer.exists():
                newer.replace(older)
        self._open()
