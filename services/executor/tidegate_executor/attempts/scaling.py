"""How many simulators of a component run: between `replicas` and `replicas_max`, as the scheduler wants it now. Pure.

More are started with the lowest free numbers; of too many the highest numbers leave, by SIGTERM and, after a grace, by
SIGKILL. That a simulator leaves as it was told is nobody's failure, whatever its exit code, and then it is forgotten.
"""

from __future__ import annotations

import msgspec
from tidegate_events.spec import Component, JobSpec

from tidegate_executor.attempts.state import AttemptState, Replica

LEAVE_SECONDS = 10

_replace = msgspec.structs.replace


def most(component: Component) -> int:
    """Return how many replicas of the component there may ever be at one time."""
    return max(component.replicas, component.replicas_max or 0)


def wanted(state: AttemptState, component: Component) -> int:
    """Return how many shall run; what is asked for beyond the component's own bounds does not count."""
    asked = [quota.replicas for quota in state.quotas_wanted if quota.component == component.name]
    if component.replicas_max is None or not asked or asked[0] is None:
        return component.replicas
    return min(max(asked[0], component.replicas), most(component))


def counts(state: AttemptState, spec: JobSpec) -> dict[str, int]:
    """Return how many of each component that may be scaled shall run."""
    return {each.name: wanted(state, each) for each in spec.components if each.replicas_max is not None}


def to_start(state: AttemptState, spec: JobSpec) -> tuple[Replica, ...]:
    """Return the replicas that are missing, ordered to start; a number that is still leaving is waited for."""
    missing = []
    for component in spec.components:
        present = {replica.replica for replica in state.replicas_of(component.name)}
        numbers = range(wanted(state, component)) if component.replicas_max is not None else ()
        missing += [
            Replica(component=component.name, replica=number, status="starting", starts=1)
            for number in numbers
            if number not in present
        ]
    return tuple(missing)


def to_leave(state: AttemptState, spec: JobSpec) -> tuple[Replica, ...]:
    """Return the replicas that are too many and were not told so; one that is just being started is let start."""
    surplus = []
    for component in spec.components:
        if component.replicas_max is not None:
            count = wanted(state, component)
            surplus += [
                replica
                for replica in state.replicas_of(component.name)
                if replica.replica >= count and not replica.leave_by_ns and replica.status != "starting"
            ]
    return tuple(surplus)


def add(state: AttemptState, replicas: tuple[Replica, ...]) -> AttemptState:
    """Remember, before it is done, that these are started."""
    return _replace(state, replicas=(*state.replicas, *replicas))


def leave(state: AttemptState, replicas: tuple[Replica, ...], now_ns: int) -> AttemptState:
    """Remember, before they are told, that these leave; those that do not run are forgotten at once."""
    names = {replica.name for replica in replicas}
    by_ns = now_ns + LEAVE_SECONDS * 1_000_000_000
    kept = [
        _replace(replica, leave_by_ns=by_ns) if replica.name in names else replica
        for replica in state.replicas
        if replica.name not in names or replica.status == "running"
    ]
    return _replace(state, replicas=tuple(kept))


def gone(state: AttemptState, left: Replica) -> AttemptState:
    """Forget a replica that has left as it was told."""
    return _replace(state, replicas=tuple(replica for replica in state.replicas if replica.name != left.name))
