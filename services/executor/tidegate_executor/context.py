"""What the parts of one agent share: its settings, its memory, its backends, and what is offered on this node."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidegate_events.clock import Clock

from tidegate_executor.attempts.state import Failure
from tidegate_executor.channel.stop_group import StopGroup
from tidegate_executor.images import Image
from tidegate_executor.sampling.reports import ProcessReports
from tidegate_executor.sandbox.base import SandboxBackend
from tidegate_executor.settings import NodePaths, Settings
from tidegate_executor.spool.spool import Spool
from tidegate_executor.workdirs import Workdirs


@dataclass
class StopGroups:
    """The stop votes of this node: one for each (job, attempt), shared by the ranks that run here."""

    _groups: dict[tuple[str, int], tuple[StopGroup, int]] = field(default_factory=dict)
    _anomalies: dict[tuple[str, int], Failure] = field(default_factory=dict)

    def take(self, job: str, attempt: int) -> StopGroup:
        """Return the group, which is kept until it is given back as often as it was taken."""
        group, users = self._groups.get((job, attempt)) or (StopGroup(), 0)
        self._groups[job, attempt] = (group, users + 1)
        return group

    def give_back(self, job: str, attempt: int) -> None:
        """Say that one member is done with it."""
        group, users = self._groups.pop((job, attempt))
        if users > 1:
            self._groups[job, attempt] = (group, users - 1)
        else:
            group.close()
            self._anomalies.pop((job, attempt), None)

    def on_anomaly(self, job: str, attempt: int, failure: Failure) -> None:
        """Remember why one member has all of them asked to leave, without an order; the first reason counts."""
        self._anomalies.setdefault((job, attempt), failure)

    def anomaly(self, job: str, attempt: int) -> Failure | None:
        """Return that reason."""
        return self._anomalies.get((job, attempt))


@dataclass
class Context:
    """See the module. `images` is awaited: measuring them takes a while after a start."""

    settings: Settings
    paths: NodePaths
    clock: Clock
    spool: Spool
    backends: Mapping[str, SandboxBackend]
    workdirs: Workdirs
    sdk_dir: Path
    reports: ProcessReports
    images: asyncio.Future[dict[str, Image]]
    stop_groups: StopGroups = field(default_factory=StopGroups)

    @property
    def node(self) -> str:
        """Return the node's name."""
        return self.settings.node
