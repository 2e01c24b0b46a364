"""Which nodes isolate a job as it asks, and pass it what it needs when they do."""

from __future__ import annotations

from typing import Protocol

from tidegate_events.resources import Resources


class Offering(Protocol):
    """A node, or all nodes alike."""

    @property
    def levels(self) -> tuple[str, ...]: ...

    @property
    def gpu_levels(self) -> tuple[str, ...] | None: ...


def isolates(place: Offering, level: str, needs: tuple[Resources, ...]) -> bool:
    """Say whether a member with these needs, one for each phase, can be isolated so there."""
    return level in place.levels and (passes_gpus(place, level) or not with_gpus(needs))


def passes_gpus(place: Offering, level: str) -> bool:
    """Say whether a sandbox of that level can have GPUs there, if it has the level."""
    return place.gpu_levels is None or level in place.gpu_levels


def with_gpus(needs: tuple[Resources, ...]) -> bool:
    """Say whether one of them has a GPU, whole or in part."""
    return any(need.gpus or need.gpu_millis for need in needs)
