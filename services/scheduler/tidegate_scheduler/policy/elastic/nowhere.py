"""Shapes that found no room in a pass, and with what rights, so that whoever has no more right is not tried again."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidegate_scheduler.policy.elastic.shapes import Shape

NO_LIMIT_SECONDS = 1 << 62


class Right(msgspec.Struct, frozen=True):
    """What lets a job have room that another of its shape may not have.

    Its priority pushes others out, its tenant (named where it was guaranteed something) reclaims what others borrowed,
    and a job that ends soon may borrow what is kept for later. Of those of its own priority, who has more work left may
    leave for it.
    """

    priority: int
    limit_seconds: int = NO_LIMIT_SECONDS
    tenant: str = ""
    work: int = 0

    def covers(self, other: Right) -> bool:
        """Say whether the other one gives nothing beyond this."""
        return (
            self.priority >= other.priority
            and self.limit_seconds <= other.limit_seconds
            and other.tenant in ("", self.tenant)
            and self.work <= other.work
        )


class Nowhere:
    """What was tried in one pass."""

    def __init__(self) -> None:
        self._tried: dict[Shape, list[Right]] = {}

    def add(self, shape: Shape, right: Right) -> None:
        """Remember that a job of this shape found no room with this right."""
        rest = [other for other in self._tried.get(shape, ()) if not right.covers(other)]
        self._tried[shape] = [*rest, right]

    def rules_out(self, shape: Shape, right: Callable[[], Right]) -> bool:
        """Say whether a job of the shape would find no room either; its right is asked for only where that matters."""
        tried = self._tried.get(shape)
        if tried is None:
            return False
        own = right()
        return any(other.covers(own) for other in tried)
