"""The journal port: an append-only sequence of frames with one total order and guarded appends."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

import msgspec

from tidegate_events.frame import Frame


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """A frame in the journal. (sequence, index of the event in the frame) is the total order of history."""

    seq: int
    subject: str
    frame: Frame


class Raw(msgspec.Struct, frozen=True, gc=False):
    """A frame as it lies in the journal, not decoded: what archives hold and digests are taken over."""

    seq: int
    subject: str
    data: bytes


class Appended(msgspec.Struct, frozen=True):
    """The frame is durable at `seq`. `duplicate` says that an earlier try had already written it."""

    seq: int
    duplicate: bool = False


class Conflict(msgspec.Struct, frozen=True):
    """The guard did not hold: somebody else appended to the subject; nothing was written."""

    expected: int
    actual: int


class JournalError(Exception):
    """The journal could not do what was asked; infrastructure, never a job's fault."""


class JournalUnavailableError(JournalError):
    """No answer within the bound, and reading back did not settle whether the frame was written. Retriable."""


class JournalFullError(JournalError):
    """The journal has no room; nothing was written."""


class JournalGapError(JournalError):
    """A sequence is missing: history was tampered with or trimmed, and a fold must not go on."""


class JournalForkedError(JournalError):
    """Two generations hold the same sequence: nobody may go on before somebody has looked."""


class Journal(Protocol):
    """An append-only log of frames; sequences begin at 1 and have no gaps."""

    async def append(self, subject: str, frame: Frame, *, expected_last: int | None = None) -> Appended | Conflict:
        """Append `frame` on `subject`.

        `expected_last` guards: it must be the sequence of the subject's last frame (0 for none). A doubtful answer is
        settled by reading back, so a frame is written once. Raises JournalUnavailableError and JournalFullError.
        """
        ...

    async def last(self, subject: str) -> Recorded | None:
        """Return the last frame on `subject`, None where there is none."""
        ...

    async def end(self) -> int:
        """Return the sequence of the last frame, 0 for an empty journal."""
        ...

    def read(self, after: int, until: int) -> AsyncGenerator[Recorded, None]:
        """Yield the frames with `after < seq <= until` in order, then stop."""
        ...

    def follow(self, after: int) -> AsyncGenerator[Recorded, None]:
        """Yield the frames with `seq > after` in order, for ever, across reconnects. Raises JournalGapError."""
        ...
