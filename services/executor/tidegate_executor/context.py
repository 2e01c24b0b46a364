"""What the parts of one agent share: its settings, its memory, its backends, and what is offered on this node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate_events.clock import Clock

from tidegate_executor.gang.exchange import GangExchange
from tidegate_executor.image_shelf import ImageShelf
from tidegate_executor.joins import JoinWatch
from tidegate_executor.sampling.reports import ProcessReports
from tidegate_executor.sandbox.base import SandboxBackend
from tidegate_executor.settings import NodePaths, Settings
from tidegate_executor.spool.spool import Spool
from tidegate_executor.starts import Starts
from tidegate_executor.warm_pool import WarmPool
from tidegate_executor.workdirs import Workdirs


@dataclass
class Context:
    """See the module."""

    settings: Settings
    paths: NodePaths
    clock: Clock
    spool: Spool
    backends: Mapping[str, SandboxBackend]
    workdirs: Workdirs
    sdk_dir: Path
    reports: ProcessReports
    starts: Starts
    images: ImageShelf
    warm: WarmPool
    gangs: GangExchange
    joins: JoinWatch

    @property
    def node(self) -> str:
        """Return the node's name."""
        return self.settings.node
