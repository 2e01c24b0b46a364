"""What happens when, all of it drawn from a seed: which jobs are submitted, which processes are killed or stopped.

Pure: the same seed, length and topology give the same schedule, so that a run that found something can be repeated.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal

import msgspec

from tidegate_local.postgres import POSTGRES
from tidegate_local.topology import EXECUTOR, NATS, SCHEDULER, Process, Topology

LEADER = "leader"
"""Stands for whichever scheduler leads at that moment."""
KEEPER = "keeper"
QUIET_SECONDS = 3.0
"""The first jobs come before the first fault."""
GAP_SECONDS = (1.0, 2.5)
STOP_SECONDS = (0.5, 4.0)
LEADER_STOP_SECONDS = (2.5, 5.0)
"""Longer than a lease, so that another takes over and this one finds itself deposed."""
BUS_GAP_SECONDS = 10.0
"""A server that was away has caught up before the next one goes."""
KILLS_MAX = 3
KILLS_WITHIN_SECONDS = 60.0
"""The supervisor gives a service up that ends too often."""
KILL_SHARE = 0.65
FILL_AT = 0.45
FILL_SECONDS_MAX = 12.0
RESTART_AT = 0.3
WEIGHTS = {
    NATS: 20, LEADER: 20, SCHEDULER: 10, EXECUTOR: 22, "gateway": 10, KEEPER: 8, "projector": 4, "metrics": 3,
    "checkpoint": 3,
}  # fmt: skip
JOBS_PER_SECOND = 1.3
SUBMITTING_SHARE = 0.8
"""Faults go on while the last jobs run, and the queue is short at the end."""

What = Literal["kill", "stop", "restart", "fill"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that goes wrong, `at_seconds` after the start; a stop lasts `seconds`."""

    at_seconds: float
    what: What
    target: str
    seconds: float = 0.0


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of job: how much it takes, how long it lasts, and how many of a hundred are of it."""

    name: str
    of_hundred: int
    cpu_millis: int
    seconds: tuple[float, float]
    priority: int
    members: tuple[int, int] = (1, 1)


# Hogs fill a node for longer than the others wait, so urgent ones preempt them.
KINDS = (
    Kind(name="small", of_hundred=58, cpu_millis=300, seconds=(0.5, 2.0), priority=10),
    Kind(name="hog", of_hundred=15, cpu_millis=1500, seconds=(5.0, 8.0), priority=0),
    Kind(name="urgent", of_hundred=15, cpu_millis=1200, seconds=(0.5, 1.5), priority=50),
    Kind(name="gang", of_hundred=12, cpu_millis=500, seconds=(1.0, 2.5), priority=20, members=(2, 3)),
)


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A job to submit, `at_seconds` after the start."""

    at_seconds: float
    name: str
    kind: str
    cpu_millis: int
    seconds: float
    priority: int
    members: int


def faults(seed: int, seconds: float, topology: Topology) -> tuple[Fault, ...]:
    """Return the faults of a run of `seconds`: every kind of process is hit, a bus only in a minority at once."""
    draw = random.Random(f"{seed}/faults")
    fixed = [
        Fault(at_seconds=round(seconds * RESTART_AT, 3), what="restart", target=POSTGRES),
        Fault(at_seconds=round(seconds * FILL_AT, 3), what="fill", target=KEEPER, seconds=FILL_SECONDS_MAX),
    ]
    made: list[Fault] = []
    kinds = _kinds(draw)
    at = QUIET_SECONDS
    while at < seconds:
        target = next(kinds)
        if target not in {LEADER}:
            target = draw.choice(topology.processes(target)).name
        fault = _fault(draw, at, target)
        if _is_bearable(fault, made, fixed):
            made.append(fault)
        at += draw.uniform(*GAP_SECONDS)
    return tuple(sorted((*made, *fixed), key=lambda fault: fault.at_seconds))


def _kinds(draw: random.Random) -> Iterator[str]:
    """Yield each kind once, in an order drawn, and then by weight for ever."""
    once = list(WEIGHTS)
    draw.shuffle(once)
    yield from once
    while True:
        yield from draw.choices(list(WEIGHTS), list(WEIGHTS.values()))


def _fault(draw: random.Random, at: float, target: str) -> Fault:
    bounds = LEADER_STOP_SECONDS if target == LEADER else STOP_SECONDS
    kill, stopped = draw.random() < KILL_SHARE, round(draw.uniform(*bounds), 3)
    if kill:
        return Fault(at_seconds=round(at, 3), what="kill", target=target)
    return Fault(at_seconds=round(at, 3), what="stop", target=target, seconds=stopped)


def _group(target: str) -> str:
    """Return what shares a bound: the leader may be any of the schedulers."""
    kind = target.partition("-")[0]
    return SCHEDULER if kind == LEADER else kind


def _is_bearable(fault: Fault, made: list[Fault], fixed: list[Fault]) -> bool:
    group = _group(fault.target)
    same = [each for each in made if _group(each.target) == group] if group == SCHEDULER else []
    same = same or [each for each in made if each.target == fault.target]
    recent = [each for each in same if each.at_seconds > fault.at_seconds - KILLS_WITHIN_SECONDS]
    if fault.what == "kill" and sum(each.what == "kill" for each in recent) >= KILLS_MAX:
        return False
    if any(each.at_seconds + each.seconds > fault.at_seconds for each in same):
        return False  # it is stopped already
    if group == NATS:
        away = [each.at_seconds + each.seconds for each in made if _group(each.target) == NATS]
        return all(fault.at_seconds - end >= BUS_GAP_SECONDS for end in away)
    filling = next(each for each in fixed if each.what == "fill")
    overlaps = fault.at_seconds + fault.seconds > filling.at_seconds - 1 and (
        fault.at_seconds < filling.at_seconds + filling.seconds
    )
    return not (overlaps and group in {KEEPER, "gateway"})  # the full disk shall be seen for itself


def jobs(seed: int, seconds: float) -> tuple[Planned, ...]:
    """Return the jobs of a run of `seconds`, in the order of their submission."""
    draw = random.Random(f"{seed}/jobs")
    planned: list[Planned] = []
    at = 0.0
    while at < seconds * SUBMITTING_SHARE:
        kind = draw.choices(KINDS, [kind.of_hundred for kind in KINDS])[0]
        planned.append(
            Planned(
                at_seconds=round(at, 3),
                name=f"{kind.name}-{len(planned)}",
                kind=kind.name,
                cpu_millis=kind.cpu_millis,
                seconds=round(draw.uniform(*kind.seconds), 3),
                priority=kind.priority,
                members=draw.randint(*kind.members),
            )
        )
        at += draw.expovariate(JOBS_PER_SECOND)
    return tuple(planned)


def processes(topology: Topology) -> tuple[Process, ...]:
    """Return every process that a fault may name."""
    kinds = (*(kind for kind in WEIGHTS if kind != LEADER), POSTGRES)
    return tuple(process for kind in kinds for process in topology.processes(kind))
