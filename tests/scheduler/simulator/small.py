"""Small clusters and jobs for simulations in tests, and a simulation that holds the invariants after every pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate_events import events as e
from tidegate_events.resources import GpuDevice, Resources
from tidegate_events.spec import Component, JobSpec, PhaseEntry, PreemptionRule, ResourceRange
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.engine import simulate
from tidegate_scheduler.simulator.rules import Rules, elastic
from tidegate_scheduler.simulator.run import JobRun, Run
from tidegate_scheduler.simulator.workload import Arrival, Span, Truth, Workload, whole
from tidegate_scheduler.state import State

from tests.support.invariants import check

SECOND = 1_000_000_000


def node(name: str, cpu: int = 8000, *, memory: int = 65536, gpus: int = 4, **more: Any) -> e.NodeJoined:
    return e.NodeJoined(
        id=f"joined-{name}",
        at_ns=0,
        node=name,
        incarnation=1,
        capacity=Resources(cpu, memory, gpus, 80_000 if gpus else 0),
        levels=("trusted",),
        gpus=tuple(GpuDevice(index, f"{name}-{index}", "H", 80_000) for index in range(gpus)),
        **{"images": {"host": "b3:00"}, **more},
    )


def phased(
    phases: dict[str, Resources | ResourceRange],
    *,
    entry: PhaseEntry = "told",
    borrows: bool = False,
    gang: int = 1,
    hand_back: int = 30,
) -> JobSpec:
    """Return a job of one component that needs that in each phase."""
    ranges = {
        phase: need if isinstance(need, ResourceRange) else ResourceRange(minimum=need)
        for phase, need in phases.items()
    }
    return JobSpec(
        name="job",
        tenant="t",
        submitter="u",
        components=(Component(name="main", command=("true",), resources=ranges),),
        gang_size=gang,
        phase_entry=entry,
        borrows=borrows,
        preemption=PreemptionRule(grace_seconds=30, hand_back_seconds=hand_back),
    )


def arrival(job: str, at: int, spec: JobSpec, does: int | Truth | list[tuple[str, int]]) -> Arrival:
    """Return a job that comes after so many seconds and works for so long, in one phase or in several."""
    if isinstance(does, int):
        does = whole(does)
    elif isinstance(does, list):
        does = Truth(tuple(Span(phase, seconds) for phase, seconds in does))
    return Arrival(at * SECOND, job, spec, does)


def workload(nodes: list[e.NodeJoined], *arrivals: Arrival, facts: tuple[e.AnyEvent, ...] = ()) -> Workload:
    ordered = sorted(arrivals, key=lambda each: (each.at_ns, each.job))
    return Workload("small", tuple(nodes), tuple(ordered), facts)


def run(
    work: Workload,
    costs: Costs | None = None,
    *,
    rules: Rules | None = None,
    seed: int = 0,
    begin: State | None = None,
    see: Callable[[State], None] | None = None,
) -> Run:
    """Simulate, with the invariants held after every pass."""

    def watch(state: State) -> None:
        check(state)
        if see is not None:
            see(state)

    return simulate(work, rules or elastic(), costs or Costs(), seed=seed, begin=begin, watch=watch)


def by_name(result: Run) -> dict[str, JobRun]:
    return {job.job: job for job in result.jobs}


def seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / SECOND


def ends(result: Run) -> dict[str, float | None]:
    """Return when each job ended, in seconds."""
    return {job.job: seconds(job.ended_ns) for job in result.jobs}


def stays(result: Run, job: str) -> list[tuple[str, float | None, float | None, str]]:
    """Return where a job was, from when until when, and how that ended."""
    return [
        (each.node, seconds(each.from_ns), seconds(each.until_ns), each.ended)
        for each in result.stays
        if each.job == job
    ]
