"""A cluster in a test: the real core, a journal in a list, a clock that is told, and nodes that do what a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidegate_events import events as e
from tidegate_events.frame import Frame, Writer, decode, encode
from tidegate_events.journal.base import Recorded
from tidegate_events.resources import GpuDevice, Resources
from tidegate_events.spec import Component, JobSpec, PreemptionRule, ResourceRange, RestartRule
from tidegate_events.subjects import DECISION, fact
from tidegate_scheduler.decide import decide
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.policy.parameters import Parameters, as_values
from tidegate_scheduler.state import Job, Member, State
from tidegate_scheduler.version import POLICY_VERSION

from tests.support.invariants import check, overfull

SECOND = 1_000_000_000
PASSES_MAX = 200


def spec(
    cpu: int = 1000,
    *,
    memory: int = 512,
    gpus: int = 0,
    gpu_memory: int = 0,
    priority: int = 0,
    gang: int = 1,
    grace: int = 10,
    attempts: int = 1,
    tenant: str = "t",
    gpu_millis: int = 0,
    **more: Any,
) -> JobSpec:
    """Return a one-component job that needs the same in every phase."""
    need = Resources(cpu, memory, gpus, gpu_memory, gpu_millis)
    component = Component(name="main", command=("true",), resources={"default": ResourceRange(minimum=need)})
    return JobSpec(
        name="job",
        tenant=tenant,
        submitter="u",
        components=(component,),
        priority=priority,
        gang_size=gang,
        preemption=PreemptionRule(grace_seconds=grace),
        restart=RestartRule(max_attempts=attempts, backoff_seconds=1),
        **more,
    )


class Cluster:
    """Drives the core as the shell does, frame by frame, checking the invariants after each."""

    def __init__(self, parameters: Parameters | None = None, *, policy: int = POLICY_VERSION) -> None:
        self.state = State()
        self.frames: list[Recorded] = []
        self.now = 1_700_000_000 * SECOND
        self.wake_at: int | None = None
        self.waiting: Mapping[str, e.Reason] = {}
        self.epoch = 0
        self.leader = "s1"
        self.shrunk: frozenset[str] = frozenset()
        self._next_seq: dict[tuple[str, int], int] = {}
        self._jobs = 0
        self.elect("s1")
        changed = e.PolicyChanged(
            id="1-policy", at_ns=self.now, policy=policy, parameters=as_values(parameters or Parameters())
        )
        self.append("scheduler", "s1", changed)

    def elect(self, instance: str) -> None:
        """Another term begins, of this scheduler."""
        self.epoch += 1
        self.leader = instance
        elected = e.LeaderElected(id=f"{self.epoch}-leader", at_ns=self.now, epoch=self.epoch, instance=instance)
        self.append("scheduler", instance, elected)

    def append(self, service: str, instance: str, *events: e.AnyEvent, epoch: int | None = None) -> Recorded:
        """Append one frame and fold it."""
        if epoch is None:
            epoch = self.epoch if service == "scheduler" else 1
        key = (f"{service}/{instance}", epoch)
        writer = Writer(service, instance, epoch, self._next_seq.get(key, 0))  # type: ignore[arg-type]
        self._next_seq[key] = writer.writer_seq + 1
        subject = DECISION if service == "scheduler" else fact(service, instance)
        frame = decode(encode(Frame(writer, events)))
        recorded = Recorded(len(self.frames) + 1, subject, frame)
        self.frames.append(recorded)
        evolve(self.state, recorded)
        self.shrunk = frozenset(name for name in self.shrunk if overfull(self.state, self.state.nodes[name]))
        check(self.state, self.shrunk)
        return recorded

    def settle(self) -> list[e.AnyEvent]:
        """Decide and fold until nothing more is decided; return the decisions in order."""
        decided: list[e.AnyEvent] = []
        for _ in range(PASSES_MAX):
            result = decide(self.state, self.now)
            self.waiting, self.wake_at = result.waiting, result.wake_at_ns
            if not result.events:
                spins = result.wake_at_ns is not None and result.wake_at_ns <= self.now
                assert not spins, f"nothing was decided, and it asks for the next pass at once: {result.wake_at_ns}"
                return decided
            self.append("scheduler", self.leader, *result.events)
            self._check_that_all_counted(result.events[1:])
            decided.extend(result.events[1:])
        raise AssertionError(f"no rest after {PASSES_MAX} passes; the last decided {decided[-3:]}")

    def _check_that_all_counted(self, decided: Iterable[e.AnyEvent]) -> None:
        """Nothing came between: a decision that is void at once would be taken again for ever."""
        for event in decided:
            if isinstance(event, e.Decision) and not isinstance(event, e.QuotaChanged | e.HandBackRequested):
                job = self.state.jobs.get(event.job)
                assert job is None or job.revision > event.revision, f"void from the start: {event}"

    def advance(self, seconds: float) -> list[e.AnyEvent]:
        """Let time pass, then settle."""
        self.now += int(seconds * SECOND)
        return self.settle()

    # ---- what users and nodes do ----

    def node(
        self,
        name: str,
        cpu: int = 4000,
        *,
        memory: int = 16384,
        gpus: int = 0,
        gpu_memory: int = 80_000,
        incarnation: int = 1,
        held: Iterable[e.HeldSandbox] = (),
        levels: tuple[str, ...] = ("trusted",),
        devices: tuple[GpuDevice, ...] = (),
        **more: Any,
    ) -> None:
        """A node joins, with `gpus` that are alike or with `devices`; one that has less may be overfull for a while."""
        gpus = gpus or len(devices)
        before = self.state.nodes.get(name)
        if before is not None and (cpu, memory, gpus) < (
            before.capacity.cpu_millis,
            before.capacity.memory_mib,
            before.capacity.gpus,
        ):
            self.shrunk |= {name}
        devices = devices or tuple(GpuDevice(i, f"gpu-{i}", "H", gpu_memory) for i in range(gpus))
        joined = e.NodeJoined(
            id=f"join-{name}-{incarnation}",
            at_ns=self.now,
            node=name,
            incarnation=incarnation,
            capacity=Resources(cpu, memory, gpus, gpu_memory if gpus else 0),
            levels=levels,
            images={"host": "b3:00"},
            gpus=devices,
            sandboxes=tuple(held),
            **more,
        )
        self.append("node", name, joined)

    def submit(self, job_spec: JobSpec, job: str | None = None) -> str:
        """A user submits a job; returns its id."""
        self._jobs += 1
        name = job or f"j{self._jobs}"
        submitted = e.JobSubmitted(
            id=f"submit-{name}-{len(self.frames)}", at_ns=self.now, tenant=job_spec.tenant, job=name, spec=job_spec
        )
        self.append("gateway", "g1", submitted)
        return name

    def cancel(self, job: str) -> None:
        """A user cancels."""
        event = e.CancelRequested(id=f"cancel-{job}-{len(self.frames)}", at_ns=self.now, tenant="t", job=job)
        self.append("gateway", "g1", event)

    def ask(self, kind: type[e.Event], job: str = "", **fields: Any) -> None:
        """An operator asks for something."""
        if issubclass(kind, e.JobEvent):
            fields = {"tenant": "t", "job": job, **fields}
        event = kind(id=f"{kind.__name__}-{len(self.frames)}", at_ns=self.now, actor="ada", **fields)
        self.append("gateway", "g1", event)  # type: ignore[arg-type]

    def start(self, job: str) -> list[e.AnyEvent]:
        """Every ordered member of the job starts."""
        for member in self.members(job):
            if member.status == "ordered":
                self.node_fact(job, member, e.SandboxStarted, level="trusted")
        return self.settle()

    def exit(self, job: str, outcome: str, *, ranks: Iterable[int] | None = None, **more: Any) -> list[e.AnyEvent]:
        """Members of the job (all of them unless `ranks` says) exit with `outcome`."""
        for member in self.members(job):
            if member.active and (ranks is None or member.rank in ranks):
                self.node_fact(job, member, e.SandboxExited, outcome=outcome, **more)
        return self.settle()

    def save(self, job: str, step: int) -> str:
        """Rank 0 commits a checkpoint; returns its id."""
        checkpoint = e.CheckpointRef(
            id=f"c-{job}-{step}", step=step, attempt=self.state.jobs[job].attempt, directory=f"{step:012d}"
        )
        self.node_fact(job, self.members(job)[0], e.CheckpointSaved, checkpoint=checkpoint)
        return checkpoint.id

    def phase(self, job: str, phase: str) -> list[e.AnyEvent]:
        """Rank 0 enters a phase."""
        self.node_fact(job, self.members(job)[0], e.PhaseChanged, phase=phase, _node=False)
        return self.settle()

    def reject(self, job: str, code: str = "NoRoom") -> list[e.AnyEvent]:
        """The nodes refuse every ordered member."""
        for member in list(self.members(job)):
            if member.status == "ordered":
                self.node_fact(job, member, e.PlacementRejected, reason=e.Reason(code=code))
        return self.settle()

    def silence(self, node: str) -> None:
        """The leader hears the node no more."""
        incarnation = self.state.nodes[node].incarnation
        event = e.NodeUnreachable(id=f"silent-{len(self.frames)}", at_ns=self.now, node=node, incarnation=incarnation)
        self.append("scheduler", self.leader, event)

    def node_fact(
        self, job: str, member: Member, kind: Callable[..., e.AnyEvent], _node: bool = True, **more: Any
    ) -> None:
        fields = dict(more, node=member.node) if _node else more
        event = kind(
            id=f"{kind.__name__}-{len(self.frames)}",
            at_ns=self.now,
            tenant="t",
            job=job,
            attempt=self.state.jobs[job].attempt,
            rank=member.rank,
            **fields,
        )
        self.append("node", member.node, event)

    # ---- looking ----

    def job(self, job: str) -> Job:
        """Return the live job."""
        return self.state.jobs[job]

    def members(self, job: str) -> list[Member]:
        """Return the job's members."""
        return self.state.jobs[job].members

    def stage(self, job: str) -> str:
        """Return the job's stage, or how it ended."""
        if job in self.state.finished:
            return self.state.finished[job].state
        return self.state.jobs[job].stage

    def story(self, job: str) -> list[str]:
        """Return the kinds of the events about the job, in order."""
        return [
            type(event).__name__
            for recorded in self.frames
            for event in recorded.frame.events
            if getattr(event, "job", None) == job
        ]
