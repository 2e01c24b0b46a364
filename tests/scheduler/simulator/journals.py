"""Workloads, and the journals that simulations of them leave: recorded histories of which everything is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tidegate_events.events import AnyEvent, NodeJoined
from tidegate_events.journal.base import Recorded
from tidegate_events.resources import GpuDevice, Resources
from tidegate_events.spec import Component, JobSpec, PreemptionRule, ResourceRange
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.history.source import FileSource, open_file
from tidegate_scheduler.simulator import scribe
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.engine import simulate
from tidegate_scheduler.simulator.rules import Rules, elastic
from tidegate_scheduler.simulator.run import Run
from tidegate_scheduler.simulator.workload import Arrival, Span, Truth, Workload
from tidegate_scheduler.state import State

from tests.scheduler.history.files import write
from tests.support.cluster import spec

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
COSTS = Costs(start_ms=800, checkpoint_seconds=3, restart_seconds=0, phase_change_ms=100, pass_interval_ms=1)


def node(name: str, cpu: int = 8000, gpus: int = 4, **more: Any) -> NodeJoined:
    """Return that a node is there from the beginning."""
    devices = tuple(GpuDevice(index, f"{name}-{index}", "H", 80_000) for index in range(gpus))
    return NodeJoined(
        id=f"join-{name}",
        at_ns=START,
        node=name,
        incarnation=1,
        capacity=Resources(cpu, 65_536, gpus, 80_000 if gpus else 0),
        levels=("trusted",),
        images={"host": "b3:0"},
        gpus=devices,
        **{"switch": "s1", "rack": "r1", **more},
    )


def job(name: str, at_seconds: float, truth: Truth | int, job_spec: JobSpec | None = None) -> Arrival:
    """Return a job; a number is a truth without phases."""
    if isinstance(truth, int):
        truth = Truth((Span("default", truth),))
    return Arrival(START + int(at_seconds * SECOND), name, job_spec or spec(1000), truth)


def agent(*, borrows: bool = False, tenant: str = "t") -> JobSpec:
    """Return a job that asks for its phases: sampling needs CPU, learning GPUs."""
    simulator = Component(
        name="simulator",
        kind="simulator",
        command=("sim",),
        replicas=4,
        resources={
            "default": ResourceRange(minimum=Resources(100, 256)),
            "sampling": ResourceRange(minimum=Resources(500, 256), maximum=Resources(1000, 256)),
            "learning": ResourceRange(minimum=Resources(100, 256)),
        },
    )
    learner = Component(
        name="learner",
        kind="learner",
        command=("learn",),
        resources={
            "default": ResourceRange(minimum=Resources(100, 512)),
            "sampling": ResourceRange(minimum=Resources(100, 512)),
            "learning": ResourceRange(minimum=Resources(1000, 1024, 2)),
        },
    )
    return JobSpec(
        name="agent",
        tenant=tenant,
        submitter="u",
        components=(simulator, learner),
        phase_entry="asked",
        borrows=borrows,
        preemption=PreemptionRule(grace_seconds=30),
    )


def everything() -> Workload:
    """Return owners, borrowers, gangs, priorities and a job that fails, on three nodes."""
    arrivals = []
    for number in range(10):
        cycle = (Span("sampling", 7 + number % 3, True), Span("learning", 5 + number % 2))
        truth = Truth(cycle * 4, saves_every_seconds=20)
        who = agent(borrows=number % 3 == 0, tenant="lab-a" if number % 2 else "lab-b")
        arrivals.append(job(f"a{number}", number * 3, truth, who))
    for number in range(8):
        truth = Truth(
            (Span("default", 30 + number * 5),),
            saves_every_seconds=15 if number % 2 else 0,
            fails_after_seconds=22 if number == 6 else None,
        )
        size = spec(500, gpus=1 + number % 4, priority=number % 3, gang=1 + (number % 4 == 3), grace=20, tenant="lab-c")
        arrivals.append(job(f"g{number}", 40 + number * 7, truth, size))
    return Workload("everything", tuple(node(f"n{number}") for number in range(3)), tuple(arrivals))


def recorded_run(
    path: Path,
    workload: Workload,
    patch: pytest.MonkeyPatch,
    *,
    rules: Rules | None = None,
    facts: tuple[AnyEvent, ...] = (),
    costs: Costs = COSTS,
) -> tuple[Run, FileSource]:
    """Simulate, and return the run and its journal as a file."""
    frames: list[Recorded] = []

    def noted(state: State, recorded: Recorded) -> None:
        evolve(state, recorded)
        frames.append(recorded)

    with patch.context() as patched:
        patched.setattr(scribe, "evolve", noted)
        whole = Workload(workload.name, workload.nodes, workload.arrivals, (*workload.facts, *facts))
        run = simulate(whole, rules or elastic(), costs)
    return run, open_file(write(path / "run.tgj", frames))
