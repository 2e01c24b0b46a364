"""By which rules a simulation decides: what fills the draft of a pass, and what it is told of jobs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from tidegate_events.events import QueueChanged

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy import registry
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.version import POLICY_VERSION

Fill = Callable[[Draft], None]


class Rules(msgspec.Struct, frozen=True):
    """Who decides. `fill` must be a pure function of the draft: the state, the time and the parameters.

    `grants_phases`: who asks for a phase is answered; under other rules jobs hold what they need at most for life.
    `knows_durations`: jobs are submitted with the `expected_seconds` of their specifications, else without. `queues`
    are set as the simulation begins. `policy` is what the state names: from 2 on it keeps what policy 2 reads, too.
    Rules that look at the truth close over it, and are made anew for each workload.
    """

    name: str
    fill: Fill
    parameters: Parameters = Parameters()
    grants_phases: bool = False
    knows_durations: bool = False
    queues: tuple[QueueChanged, ...] = ()
    policy: int = POLICY_VERSION


def elastic(
    parameters: Parameters | None = None, *, estimates: bool = False, queues: tuple[QueueChanged, ...] = ()
) -> Rules:
    """Return policy 2 as the service runs it; `estimates`: jobs tell it how long they expect to take."""
    return Rules(
        name="elastic with estimates" if estimates else "elastic",
        fill=registry.find(POLICY_VERSION).decide,
        parameters=parameters or Parameters(),
        grants_phases=True,
        knows_durations=estimates,
        queues=queues,
    )
