"""What a simulation comes to: what became of each job, who was where and when, and what was decided.

Times are those of the workload: nanoseconds since the simulation began, or of the journal whose state it began with.
"""

from __future__ import annotations

import msgspec
from tidegate_events.events import Reason

from tidegate_scheduler.simulator.costs import Costs


class Stay(msgspec.Struct, frozen=True, gc=False):
    """One member on one node, from its placement until its end was seen: one bar of a picture.

    `gpus` are the devices it had when it was placed, each as a whole or `gpu_millis` of one. `ended` is the outcome of
    its sandbox; empty where it was there still when the simulation ended.
    """

    job: str
    rank: int
    node: str
    gpus: int
    gpu_millis: int
    cpu_millis: int
    from_ns: int
    until_ns: int
    ended: str


class PhaseTime(msgspec.Struct, frozen=True, gc=False):
    """How long a job worked in a phase, and how long it waited to enter it."""

    phase: str
    worked_ns: int
    asked_ns: int


class JobRun(msgspec.Struct, frozen=True, gc=False):
    """What became of one job.

    `outcome` is completed, failed, rejected or cancelled; empty where it had not ended. `gpus` counts those of all
    members, in whole devices, `gpu_millis` a share of one. `lost_gpu_ms` is GPU time that went into work that had to be
    done again, into saving when asked to leave, and into restarting: of all its GPUs, or where it asks for its phases,
    of those that each phase needs. `lost_ms` is that time of the job, with GPUs or without. `waited_ns` is all its time
    in the queue, `asked_ns` what it waited for phases while it was placed. `reasons` say why it ended otherwise than
    completed, or why it waits still.
    """

    job: str
    tenant: str
    submitted_ns: int
    first_placed_ns: int | None
    ended_ns: int | None
    outcome: str
    work_seconds: int
    gpus: int
    gpu_millis: int
    preemptions: int
    lost_gpu_ms: int
    waited_ns: int
    asked_ns: int
    phases: tuple[PhaseTime, ...]
    censored: bool = False
    lost_ms: int = 0
    reasons: tuple[Reason, ...] = ()


class Sample(msgspec.Struct, frozen=True, gc=False):
    """The cluster from `at_ns` on, until the next sample.

    `waiting`, `placed` and `working` are jobs; a job that is placed works unless it starts, saves or waits for a phase.
    Held GPUs are given to members; of these the phases in which jobs work need the busy ones. `cpu_held_millis` is the
    CPU under quotas, `gpus_total_millis` the devices of nodes that have not failed.
    """

    at_ns: int
    waiting: int
    placed: int
    working: int
    gpus_held_millis: int
    gpus_busy_millis: int
    cpu_held_millis: int
    gpus_total_millis: int


class Decided(msgspec.Struct, frozen=True, gc=False):
    """One decision: its kind, its job (empty: it is about a node) and the nodes that it names."""

    at_ns: int
    kind: str
    job: str
    nodes: tuple[str, ...]


class Run(msgspec.Struct, frozen=True):
    """A simulation, with what it was made of: the names of its workload and of its rules, the seed and the costs.

    `jobs` stand in the order of their arrivals, `stays` in that of their ends. `stated` says the rules in full, with
    their parameters and queues (empty: nobody stated them).
    """

    workload: str
    rules: str
    seed: int
    costs: Costs
    jobs: tuple[JobRun, ...]
    stays: tuple[Stay, ...]
    samples: tuple[Sample, ...]
    decided: tuple[Decided, ...]
    begin_ns: int
    end_ns: int
    stated: str = ""


def encode(run: Run) -> bytes:
    """Return the run as bytes: the same simulation gives the same ones."""
    return msgspec.json.encode(run)
