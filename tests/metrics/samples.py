"""Samples for tests, with all that does not matter filled in."""

from __future__ import annotations

from typing import Any

from tidegate_events.telemetry import NodeSample, ProcessSample, SandboxSample

SECOND = 1_000_000_000
START = 1_796_000_000 * SECOND


class Node:
    """Numbers the samples of one node as its agent does."""

    def __init__(self, name: str = "n1", incarnation: int = 1) -> None:
        self.name = name
        self.incarnation = incarnation
        self.seq = 0

    def _stamp(self, at_ns: int) -> dict[str, Any]:
        self.seq += 1
        return {"node": self.name, "incarnation": self.incarnation, "seq": self.seq, "at_ns": at_ns}

    def process(self, at_ns: int, step: int | None = None, **more: Any) -> ProcessSample:
        """Return what a training process said."""
        return ProcessSample(**self._stamp(at_ns), **{**_ABOUT, "step": step, **more})

    def sandbox(self, at_ns: int, cpu_seconds: float = 0.0, **more: Any) -> SandboxSample:
        """Return a reading of a control group."""
        return SandboxSample(**self._stamp(at_ns), **{**_ABOUT, "counters": {"cpu_seconds": cpu_seconds}, **more})

    def node(self, at_ns: int, **more: Any) -> NodeSample:
        """Return a reading of the node."""
        return NodeSample(**self._stamp(at_ns), **more)


_ABOUT: dict[str, Any] = {
    "tenant": "lab-a",
    "job": "j1",
    "attempt": 1,
    "rank": 0,
    "component": "main",
    "replica": 0,
}
