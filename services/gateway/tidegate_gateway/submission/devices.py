"""Judges whether the level of isolation that a job asks for passes GPUs to it, as no node ever could otherwise."""

from __future__ import annotations

from typing import Any

from tidegate_events.spec import Component

from tidegate_gateway.submission.problems import Problems

LEVELS_WITHOUT_GPUS = ("guarded", "vm")  # a guest's kernel opens no device of the host


def check_devices(read: dict[str, Any], problems: Problems) -> None:
    """Note a job that needs GPUs at a level that passes none."""
    level = read.get("isolation")
    components: tuple[Component, ...] = read.get("components", ())
    needs = [each.minimum for component in components for each in component.resources.values()]
    if level in LEVELS_WITHOUT_GPUS and any(need.gpus or need.gpu_millis for need in needs):
        problems.add(
            "isolation",
            f"level {level} passes no GPU to a sandbox: its guest's kernel opens no device of the host",
            "trusted, where nodes have CDI files, or unisolated; or components without gpus and gpu_millis",
        )
