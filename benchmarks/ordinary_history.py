"""An ordinary history of any length, decided by the real core: what the benchmarks fold, verify and start from.

Nodes of 32 CPUs sample and learn. A job is submitted in a frame of its own, changes its phase eight times, saves two
checkpoints and completes; each node writes what it saw in one frame a round, as its agent's coalescing does.
"""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_events.frame import Frame, Writer, decode, encode
from tidegate_events.journal.base import Raw, Recorded
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, ResourceRange
from tidegate_events.subjects import DECISION, fact
from tidegate_scheduler.decide import decide
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.policy.parameters import Parameters, as_values
from tidegate_scheduler.state import Job, Member, State
from tidegate_scheduler.version import POLICY_VERSION

NODES = 16
NODE_CPU_MILLIS = 32_000
JOBS_PER_ROUND = 36  # as many as leave: the nodes are full and the queue is short
ROUND_NS = 1_000_000_000
START_NS = 1_700_000_000_000_000_000
PHASES = ("sampling", "learning") * 4
STEPS_PER_PHASE = 25
LAST_STEP = len(PHASES) * STEPS_PER_PHASE + 2

SPEC = JobSpec(
    name="cartpole",
    tenant="lab-a",
    submitter="ada",
    env={"LEARNING_RATE": "0.001"},
    components=(
        Component(
            name="simulator",
            kind="simulator",
            command=("python", "-m", "simulate"),
            replicas=2,
            resources={
                "default": ResourceRange(minimum=Resources(100, 128)),
                "sampling": ResourceRange(minimum=Resources(500, 128), maximum=Resources(1000, 128)),
            },
        ),
        Component(
            name="learner",
            kind="learner",
            command=("python", "train.py"),
            resources={
                "default": ResourceRange(minimum=Resources(100, 512)),
                "learning": ResourceRange(minimum=Resources(1000, 512), maximum=Resources(2000, 512)),
            },
        ),
    ),
)


class OrdinaryHistory:
    """A history that grows: the state after it, and those of its frames, as bytes, that nobody has taken yet."""

    def __init__(self, nodes: int = NODES) -> None:
        self.state = State()
        self._raws: list[Raw] = []
        self.events = 0
        self.now_ns = START_NS
        self._writer_seqs: dict[str, int] = {}
        self._jobs = 0
        self._seen: dict[tuple[str, int], int] = {}
        self._append("scheduler", "s1", e.LeaderElected(id="1-leader", at_ns=self.now_ns, epoch=1, instance="s1"))
        values = as_values(Parameters())
        changed = e.PolicyChanged(id="1-policy", at_ns=self.now_ns, policy=POLICY_VERSION, parameters=values)
        self._append("scheduler", "s1", changed)
        for number in range(nodes):
            self._join(f"n{number:03d}")

    def grow(self, events: int) -> None:
        """Go on until there are as many events."""
        while self.events < events:
            self.round()

    def take(self) -> list[Raw]:
        """Return the frames since the last time."""
        taken, self._raws = self._raws, []
        return taken

    def round(self) -> None:
        """Let one second pass: jobs come, the scheduler decides, every node tells what it saw."""
        self.now_ns += ROUND_NS
        for _ in range(JOBS_PER_ROUND):
            self.submit()
        self.settle()
        told: dict[str, list[e.AnyEvent]] = {}
        for job in self.state.jobs.values():
            for member in job.members:
                if member.active and (event := self._next_fact(job, member)) is not None:
                    told.setdefault(member.node, []).append(event)
        for node, events in told.items():
            self._append("node", node, *events)

    def submit(self, spec: JobSpec = SPEC) -> str:
        """Submit one job and return its id."""
        self._jobs += 1
        job = f"j-{self._jobs:07d}"
        traceparent = f"00-{self._jobs:032x}-{self._jobs:016x}-01"
        event = e.JobSubmitted(
            id=f"g1-{job}", at_ns=self.now_ns, tenant="lab-a", job=job, traceparent=traceparent, spec=spec
        )
        self._append("gateway", "g1", event)
        return job

    def settle(self) -> None:
        """Decide until nothing is left to decide."""
        while (result := decide(self.state, self.now_ns)).events:
            self._append("scheduler", "s1", *result.events)

    def _join(self, node: str) -> None:
        event = e.NodeJoined(
            id=f"join-{node}",
            at_ns=self.now_ns,
            node=node,
            incarnation=1,
            capacity=Resources(NODE_CPU_MILLIS, 64 * 1024),
            levels=("trusted",),
            images={"host": "b3:00"},
        )
        self._append("node", node, event)

    def _next_fact(self, job: Job, member: Member) -> e.AnyEvent | None:
        """Return what the member's node sees next: its start, then phases and checkpoints, then its end."""
        seen = self._seen.get((job.id, job.attempt), 0)
        self._seen[job.id, job.attempt] = seen + 1
        about = {
            "id": f"{member.node}-1-{self.events}-{job.id}",
            "at_ns": self.now_ns,
            "cause": job.cause,
            "tenant": job.tenant,
            "job": job.id,
            "traceparent": job.traceparent,
            "attempt": job.attempt,
            "rank": member.rank,
        }
        if seen == 0:
            return e.SandboxStarted(**about, node=member.node, level="trusted", start_ms=35)  # type: ignore[arg-type]
        if seen <= len(PHASES):
            step = seen * STEPS_PER_PHASE
            return e.PhaseChanged(**about, phase=PHASES[seen - 1], step=step)  # type: ignore[arg-type]
        if seen <= len(PHASES) + 2:
            step = len(PHASES) * STEPS_PER_PHASE + seen
            layers = tuple(e.LayerRef(name=name, digest="d" * 64, size_bytes=4096) for name in ("model", "optimizer"))
            checkpoint = e.CheckpointRef(
                id=f"c-{job.id}-{step}", step=step, attempt=job.attempt, directory=f"{step:012d}", layers=layers
            )
            return e.CheckpointSaved(**about, node=member.node, checkpoint=checkpoint)  # type: ignore[arg-type]
        del self._seen[job.id, job.attempt]
        end = {"outcome": "completed", "exit_code": 0, "acknowledged": True, "last_step": LAST_STEP}
        return e.SandboxExited(**about, **end, node=member.node)  # type: ignore[arg-type]

    def _append(self, service: str, instance: str, *events: e.AnyEvent) -> None:
        number = self._writer_seqs.get(instance, 0)
        self._writer_seqs[instance] = number + 1
        data = encode(Frame(Writer(service, instance, 1, number), events))  # type: ignore[arg-type]
        subject = DECISION if service == "scheduler" else fact(service, instance)
        raw = Raw(self.state.seq + 1, subject, data)
        self._raws.append(raw)
        self.events += len(events)
        evolve(self.state, Recorded(raw.seq, subject, decode(data)))
