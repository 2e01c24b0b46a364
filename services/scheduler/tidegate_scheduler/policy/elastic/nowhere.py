"""Shapes that found no room in a pass, and with what rights, so that whoever has no more right is not tried again."""

from __future__ import annotations

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

    @property
    def any(self) -> bool:
        """Say whether anything was tried in vain."""
        return bool(self._tried)

    def rules_out(self, shape: Shape, right: Right) -> bool:
        """Say whether a job of the shape would find no room either."""
        tried = self._tried.get(shape)
        return tried is not None and any(other.covers(right) for other in tried)
