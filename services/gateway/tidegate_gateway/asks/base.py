"""The port for questions: one request, one JSON answer, within a bound. A question changes nothing that matters."""

from __future__ import annotations

from typing import Any, Protocol

EXPLAIN_SECONDS_MAX = 1.0
DRY_RUN_SECONDS_MAX = 5.0
NODE_SECONDS_MAX = 3.0
CHECKPOINT_SECONDS_MAX = 10.0


class NobodyAnsweredError(Exception):
    """Nobody listens there, or no answer came within the bound. Retriable."""


class BadAnswerError(Exception):
    """What came back is no JSON object."""


class Asker(Protocol):
    """Asks other services."""

    @property
    def connected(self) -> bool:
        """Say whether the bus is there."""
        ...

    async def ask(self, subject: str, question: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        """Return the answer. Raises NobodyAnsweredError and BadAnswerError."""
        ...
