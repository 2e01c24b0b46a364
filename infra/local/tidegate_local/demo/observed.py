"""What the demo saw, as data: the checks and the report read this and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec

JsonObject = dict[str, Any]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the journal as the gateway tells it."""

    seq: int
    index: int
    at_ns: int
    kind: str
    job_id: str = ""
    void: bool = False
    attempt: int | None = None
    rank: int | None = None
    node: str | None = None
    data: JsonObject = {}


class KernelQuota(msgspec.Struct, frozen=True, order=True):
    """A CPU limit as it stood in a cgroup file while the job ran."""

    component: str
    cpu_millis: int


class CommandRun(msgspec.Struct, frozen=True, kw_only=True):
    """A command line that the demo ran, and how it ended."""

    argv: tuple[str, ...]
    exit_code: int
    output: str


class TraceSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A job's trace as the read models hold it: how often each name occurs, and the whole as a tree for people."""

    names: dict[str, int]
    roots: int
    tree: str = ""

    @property
    def spans(self) -> int:
        """Return how many spans there are."""
        return sum(self.names.values())


class ReadModels(msgspec.Struct, frozen=True, kw_only=True):
    """How far the projector is; `head_seq` is the journal's end as it last saw it."""

    generation: int = 0
    seq: int = 0
    head_seq: int = 0
    lag_frames: int = -1


class Observed(msgspec.Struct, kw_only=True):
    """All of one run. `low` and `high` are job ids."""

    level: str
    low: str
    high: str
    gateway_url: str = ""
    jobs: dict[str, JsonObject] = {}
    events: list[Entry] = []
    kernel: dict[str, set[KernelQuota]] = {}
    commands: list[CommandRun] = []
    verification: JsonObject = {}
    traces: dict[str, TraceSeen] = {}
    read_models: ReadModels = ReadModels()
    wall_seconds: float = 0.0

    def of(self, job: str, *kinds: str) -> list[Entry]:
        """Return the job's events of these kinds (of every kind where none is named), in journal order."""
        return [
            entry
            for entry in self.events
            if entry.job_id == job and not entry.void and (not kinds or entry.kind in kinds)
        ]
