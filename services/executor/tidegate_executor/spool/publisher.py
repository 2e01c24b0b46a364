"""Sends what the spool holds: facts to the journal exactly once and in order, user events to their stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Conflict, Journal, JournalFullError, JournalUnavailableError

from tidegate_executor.spool.records import UserMessage

RETRY_WAIT_SECONDS = 0.5
FULL_WAIT_SECONDS = 5.0

log = structlog.get_logger()


class NodeTakenError(Exception):
    """Another, newer agent writes facts under this node's name: this one must end."""


class FactPublisher:
    """Appends this node's frames. It is the only writer of the subject, so the subject's last frame is its memory."""

    def __init__(self, journal: Journal, subject: str, *, epoch: int) -> None:
        self._journal = journal
        self._subject = subject
        self._epoch = epoch
        self._last_seq: int | None = None
        self._newest = (0, 0)
        self._attempted = (0, 0)

    async def send(self, frame: Frame) -> int:
        """Return when the journal has the frame, however long the bus is away, and its number or a later one there.

        Raises NodeTakenError.
        """
        while not await self._try(frame) or self._last_seq is None:
            pass
        return self._last_seq

    async def _try(self, frame: Frame) -> bool:
        try:
            if self._last_seq is None:
                await self._read_back()
            if _order(frame.writer) <= self._newest:
                return True
            self._attempted = _order(frame.writer)
            result = await self._journal.append(self._subject, frame, expected_last=self._last_seq)
        except (JournalUnavailableError, JournalFullError) as error:
            self._last_seq = None
            full = isinstance(error, JournalFullError)
            log.warning("facts_wait", frame=frame.writer.frame_id, why=str(error))
            await asyncio.sleep(FULL_WAIT_SECONDS if full else RETRY_WAIT_SECONDS)
            return False
        if isinstance(result, Conflict):
            self._last_seq = None
            return False
        self._last_seq = result.seq
        self._newest = _order(frame.writer)
        return True

    async def _read_back(self) -> None:
        last = await self._journal.last(self._subject)
        self._newest = _order(last.frame.writer) if last else (0, 0)
        if self._newest >= (self._epoch, 0) and self._newest > self._attempted:
            raise NodeTakenError(
                f"{self._subject} holds facts of incarnation {self._newest[0]} that this agent (incarnation "
                f"{self._epoch}) did not write: two agents use this node's name, or an old copy of its data directory "
                "was put back; stop one of them"
            )
        self._last_seq = last.seq if last else 0


def _order(writer: Writer) -> tuple[int, int]:
    return (writer.epoch, writer.writer_seq)


class UserStream(Protocol):
    """Where user events go; an adapter returns when they are stored."""

    async def store(self, messages: Sequence[UserMessage]) -> None:
        """Store the messages, in order, at least once."""
        ...
