"""The port for questions: one request, one JSON answer, within a bound. A question changes nothing that matters."""

from __future__ import annotations

from typing import Any, Protocol

EXPLAIN_SECONDS_MAX = 1.0
DRY_RUN_SECONDS_MAX = 5.0
RETRY_SECONDS_MAX = 60
ERROR_CHARS_MAX = 500
NODE_SECONDS_MAX = 3.0
CHECKPOINT_SECONDS_MAX = 10.0


class NobodyAnsweredError(Exception):
    """Nobody listens there, or no answer came within the bound. Retriable."""


class BusyError(NobodyAnsweredError):
    """Whoever is asked has answered as many questions as it may: the same again after `retry_seconds`."""

    def __init__(self, problem: str, retry_seconds: int) -> None:
        super().__init__(problem)
        self.retry_seconds = retry_seconds


class BadAnswerError(Exception):
    """What came back is no JSON object."""


class Asker(Protocol):
    """Asks other services."""

    @property
    def connected(self) -> bool:
        """Say whether the bus is there."""
        ...

    async def ask(self, subject: str, question: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        """Return the answer. Raises NobodyAnsweredError (BusyError among them) and BadAnswerError."""
        ...


def unless_busy(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer; raise BusyError for one that only says when to ask again."""
    busy = answer.get("busy")
    if busy is None:
        return answer
    seconds = busy.get("retry_seconds") if isinstance(busy, dict) else None
    retry_seconds = seconds if isinstance(seconds, int) and 1 <= seconds <= RETRY_SECONDS_MAX else RETRY_SECONDS_MAX
    raise BusyError(str(answer.get("error"))[:ERROR_CHARS_MAX], retry_seconds)
