"""One member of an attempt as its node has it, and what all of them share."""

from __future__ import annotations

from typing import Literal

import msgspec
from tidegate_events import events as e
from tidegate_events.spec import DEFAULT_PHASE

from tidegate_scheduler.simulator.agenda import Agenda, Entry
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.nodes import Nodes
from tidegate_scheduler.simulator.tally import Tally

SandboxStatus = Literal["ordered", "started", "gone"]


class Ground(msgspec.Struct, frozen=True):
    """What all attempts of a simulation share."""

    agenda: Agenda
    nodes: Nodes
    tally: Tally
    costs: Costs


class Sandbox(msgspec.Struct):
    """A member on its node. `asked` is the phase that it waits for since `asked_ns` (empty: it waits for none).

    `starting`, `entering`, `leaving` (because its phase is recalled) and `idling` (it is in no phase any more while it
    waits) are what is about to happen to it.
    """

    rank: int
    node: str
    quotas: tuple[e.Quota, ...]
    status: SandboxStatus = "ordered"
    phase: str = DEFAULT_PHASE
    asked: str = ""
    asked_ns: int = 0
    starting: Entry | None = None
    entering: Entry | None = None
    leaving: Entry | None = None
    idling: Entry | None = None

    @property
    def there(self) -> bool:
        """Say whether its node has it, or is about to."""
        return self.status != "gone"


def forget_plans(ground: Ground, sandbox: Sandbox) -> None:
    """Let nothing happen to the sandbox that was about to."""
    for entry in (sandbox.starting, sandbox.entering, sandbox.leaving, sandbox.idling):
        ground.agenda.cancel(entry)
    sandbox.starting = sandbox.entering = sandbox.leaving = sandbox.idling = None
