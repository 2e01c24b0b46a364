"""What each node meant for a waiting job when its turn came, by the policy that decided then, with the numbers."""

from __future__ import annotations

from tidegate_scheduler.policy import registry
from tidegate_scheduler.policy.outlook import Verdict
from tidegate_scheduler.state import Job, State


def verdicts(state: State, job: Job, now_ns: int) -> tuple[Verdict, ...]:
    """Return what every node means for the waiting `job` in a pass on `state` at `now_ns`, by name."""
    return registry.outlook(state, now_ns).verdicts(job)
