"""The synthetic agent workload by which elastic and static quotas are compared; its seed fixes all of it.

Agent training goes round and round: simulators play (CPU), then the model learns from what they played (GPUs). A job
is described once; static and elastic differ in nothing but whether it asks for its phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
from tidegate_events.events import NodeJoined
from tidegate_events.resources import Resources
from tidegate_events.spec import DEFAULT_PHASE, Component, JobSpec, ResourceRange

from tidegate_scheduler.simulator.traces import nodespec
from tidegate_scheduler.simulator.workload import Arrival, Span, Truth, Workload

SEED = 20261129
JOBS = 64
NODES = "8x(cpu=32,gpus=4,memory=256G)"

SIMULATORS = (4, 16)
GPUS = (1, 2)
CYCLES = (20, 60)
SAMPLING_SECONDS = (60, 240)
LEARNING_SECONDS = (30, 120)
"""What is drawn for each job, and of the seconds for each of its phases: any whole number from and to, as likely."""

SIMULATOR_MILLIS = 1000
LEARNER_MILLIS = 1000
IDLE_MILLIS = 10
"""What a process has while it waits: the least that any may have."""

SIMULATOR_MIB = 1024
LEARNER_MIB = 8192
SAMPLING, LEARNING = "sampling", "learning"
SAVES_EVERY_SECONDS = 600
TENANT = "agents"
WHOLE_PERMILLE = 1000


class AgentJob(msgspec.Struct, frozen=True):
    """What one job is: so many simulators and GPUs, and the seconds of its phases, by cycle."""

    name: str
    simulators: int
    gpus: int
    cycles: tuple[tuple[int, int], ...]

    @property
    def peak(self) -> Resources:
        """Return what it holds for life where quotas are static."""
        sampling = self.simulators * SIMULATOR_MILLIS + IDLE_MILLIS
        learning = self.simulators * IDLE_MILLIS + LEARNER_MILLIS
        return Resources(max(sampling, learning), self.simulators * SIMULATOR_MIB + LEARNER_MIB, self.gpus)


def draw(count: int = JOBS, seed: int = SEED) -> tuple[AgentJob, ...]:
    """Return the jobs of a seed, the same ones everywhere."""
    random = Random(seed)
    found = []
    for number in range(count):
        simulators, gpus = random.randint(*SIMULATORS), random.randint(*GPUS)
        lengths = range(random.randint(*CYCLES))
        cycles = tuple((random.randint(*SAMPLING_SECONDS), random.randint(*LEARNING_SECONDS)) for _ in lengths)
        found.append(AgentJob(f"agent-{number:0{len(str(count))}}", simulators, gpus, cycles))
    return tuple(found)


def scaled(jobs: Sequence[AgentJob], sampling_permille: int, learning_permille: int) -> tuple[AgentJob, ...]:
    """Return the jobs with longer or shorter phases."""
    return tuple(
        msgspec.structs.replace(
            job,
            cycles=tuple(
                (sampling * sampling_permille // WHOLE_PERMILLE, learning * learning_permille // WHOLE_PERMILLE)
                for sampling, learning in job.cycles
            ),
        )
        for job in jobs
    )


def sets_that_fit(
    jobs: Sequence[AgentJob], nodes: tuple[NodeJoined, ...] | None = None
) -> tuple[tuple[AgentJob, ...], ...]:
    """Return the jobs in sets, in their order: of each set all fit beside each other by their peaks, node by node."""
    whole = [node.capacity for node in (nodes or nodespec.parse(NODES))]
    sets: list[list[AgentJob]] = []
    left: list[Resources] = []
    for job in jobs:
        place = _tightest(left, job.peak)
        if place is None:
            sets.append([])
            left = list(whole)
            place = _tightest(left, job.peak)
            if place is None:
                raise ValueError(f"{job.name} fits on no node: it needs {job.peak}")
        sets[-1].append(job)
        left[place] = _less(left[place], job.peak)
    return tuple(tuple(each) for each in sets)


def most_at_once(jobs: Sequence[AgentJob], nodes: tuple[NodeJoined, ...] | None = None) -> float:
    """Return how many of the jobs could work at once on average if no part of the scarcest resource were ever idle.

    That is all their work, over the time in which the whole cluster does it at best.
    """
    capacity = [node.capacity for node in (nodes or nodespec.parse(NODES))]
    cpu = gpus = work = 0
    for job in jobs:
        sampling, learning = (sum(cycle[kind] for cycle in job.cycles) for kind in (0, 1))
        cpu += job.simulators * SIMULATOR_MILLIS * sampling + LEARNER_MILLIS * learning
        gpus += job.gpus * learning
        work += sampling + learning
    return work / max(cpu / sum(each.cpu_millis for each in capacity), gpus / sum(each.gpus for each in capacity))


def static_spec(job: AgentJob) -> JobSpec:
    """Return the job as one that tells its phases: it is placed by its peak, and keeps that for life."""
    return JobSpec(
        name=job.name,
        tenant=TENANT,
        submitter=TENANT,
        components=(
            _component("simulator", job.simulators, SIMULATOR_MIB, {SAMPLING: Resources(SIMULATOR_MILLIS)}),
            _component("learner", 1, LEARNER_MIB, {LEARNING: Resources(LEARNER_MILLIS, gpus=job.gpus)}),
        ),
    )


def elastic_spec(job: AgentJob) -> JobSpec:
    """Return the same job as one that asks for its phases, and holds no more than its memory between them."""
    return msgspec.structs.replace(static_spec(job), phase_entry="asked", borrows=True)


def workload(jobs: Sequence[AgentJob], *, elastic: bool, nodes: tuple[NodeJoined, ...] | None = None) -> Workload:
    """Return the jobs as a workload: all of them are there from the beginning."""
    describe = elastic_spec if elastic else static_spec
    return Workload(
        name="agents",
        nodes=nodespec.parse(NODES) if nodes is None else nodes,
        arrivals=tuple(Arrival(0, job.name, describe(job), _truth(job)) for job in jobs),
    )


def _tightest(left: Sequence[Resources], need: Resources) -> int | None:
    """Return where the job fits with least left, None where it fits nowhere."""
    able = [
        (each.gpus, each.cpu_millis, place)
        for place, each in enumerate(left)
        if each.gpus >= need.gpus and each.cpu_millis >= need.cpu_millis and each.memory_mib >= need.memory_mib
    ]
    return min(able)[2] if able else None


def _less(whole: Resources, part: Resources) -> Resources:
    return Resources(whole.cpu_millis - part.cpu_millis, whole.memory_mib - part.memory_mib, whole.gpus - part.gpus)


def _component(name: str, replicas: int, memory_mib: int, works: dict[str, Resources]) -> Component:
    """Return a component that needs nothing but its memory outside of the phases in which it works."""
    phases = {DEFAULT_PHASE: Resources(IDLE_MILLIS), **works}
    for other in (SAMPLING, LEARNING):
        phases.setdefault(other, Resources(IDLE_MILLIS))
    return Component(
        name=name,
        kind="simulator" if name == "simulator" else "learner",
        command=(name,),
        replicas=replicas,
        resources={
            phase: ResourceRange(minimum=msgspec.structs.replace(need, memory_mib=memory_mib))
            for phase, need in phases.items()
        },
    )


def _truth(job: AgentJob) -> Truth:
    return Truth(
        spans=tuple(
            span for sampling, learning in job.cycles for span in (Span(SAMPLING, sampling), Span(LEARNING, learning))
        ),
        saves_every_seconds=SAVES_EVERY_SECONDS,
    )
