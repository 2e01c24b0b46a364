"""Questions in memory: for tests of what stands on the port, and for simulations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate_gateway.asks.base import NobodyAnsweredError, unless_busy

Answerer = Callable[[dict[str, Any]], dict[str, Any]]


class MemoryAsker:
    """Answers from functions by subject; a subject without one is a service that is away."""

    def __init__(self) -> None:
        self.connected = True
        self.answerers: dict[str, Answerer] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def ask(self, subject: str, question: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        """Ask as the port says."""
        self.asked.append((subject, question))
        answerer = self.answerers.get(subject)
        if answerer is None:
            raise NobodyAnsweredError(f"nobody answered on {subject} within {timeout_seconds:g} s")
        return unless_busy(answerer(question))
