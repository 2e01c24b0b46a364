"""A replica's output on its way to disk: secrets taken out, size bounded, never blocking the replica.

The bound keeps the beginning and the end: files of a quarter of it each, named by the offset of their first byte in
the whole stream; the first and the newest stay. `sandbox/logs.py` reads them back and marks what is missing.
"""

from __future__ import annotations

import os
import re

SEGMENTS_KEPT = 4
REPLACEMENT = b"[redacted]"
SECRET_BYTES_MIN = 4  # shorter values would turn every log into noise


class Redactor:
    """Replaces exact occurrences of secrets in a stream, also those cut by chunk borders.

    What might be the beginning of a secret is held back until more bytes or the end decide.
    """

    def __init__(self, secrets: list[bytes]) -> None:
        self._secrets = sorted({s for s in secrets if len(s) >= SECRET_BYTES_MIN}, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._secrets))) if self._secrets else None
        self._held = b""

    def feed(self, data: bytes, *, end: bool = False) -> bytes:
        """Return what is safe to write of everything fed so far."""
        if self._pattern is None:
            return data
        data = self._held + data
        clean: list[bytes] = []
        position = 0
        hold = len(data) if end else self._undecided(data, 0)
        while (match := self._pattern.search(data, position)) and match.start() < hold:
            clean += [data[position : match.start()], REPLACEMENT]
            position = match.end()
            hold = len(data) if end else self._undecided(data, position)
        clean.append(data[position:hold])
        self._held = data[hold:]
        return b"".join(clean)

    def _undecided(self, data: bytes, start: int) -> int:
        """The first place from which the rest of `data` is a proper beginning of a secret."""
        longest = 0
        for secret in self._secrets:
            for size in range(min(len(secret) - 1, len(data) - start), longest, -1):
                if data.endswith(secret[:size]):
                    longest = size
                    break
        return len(data) - longest


class LogFile:
    """The bounded files of one replica's stream; a restarted replica continues the stream."""

    def __init__(self, directory: str, name: str, bytes_max: int) -> None:
        self._directory = directory
        self._name = name
        self._segment_bytes = max(bytes_max // SEGMENTS_KEPT, 1)
        self._starts = sorted(existing_segments(directory, name))
        if not self._starts:
            self._starts = [0]
        self._descriptor = self._open(self._starts[-1])
        self._size = os.fstat(self._descriptor).st_size

    def write(self, data: bytes) -> None:
        while data:
            room = self._segment_bytes - self._size
            if room <= 0:
                self._rotate()
                continue
            written = os.write(self._descriptor, data[:room])
            self._size += written
            data = data[written:]

    def close(self) -> None:
        os.close(self._descriptor)

    def _rotate(self) -> None:
        start = self._starts[-1] + self._size
        opened = self._open(start)  # first: on a full disk the present file stays
        os.close(self._descriptor)
        self._starts.append(start)
        self._descriptor = opened
        self._size = 0
        while len(self._starts) > SEGMENTS_KEPT:
            os.unlink(self._path(self._starts.pop(1)))

    def _open(self, start: int) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(self._path(start), flags, 0o640)

    def _path(self, start: int) -> str:
        return os.path.join(self._directory, segment_name(self._name, start))


def segment_name(name: str, start: int) -> str:
    return f"{name}.{start:015d}.log"


def existing_segments(directory: str, name: str) -> list[int]:
    """Start offsets of the files that hold parts of stream `name`."""
    found = []
    for entry in os.listdir(directory):
        stem, _, rest = entry.rpartition(".log")
        if rest == "" and stem.startswith(f"{name}.") and stem[len(name) + 1 :].isdigit():
            found.append(int(stem[len(name) + 1 :]))
    return found
