"""The scheduler under anything: Hypothesis drives users, nodes, time, duplicates and facts that race decisions.

After every event the invariants of `tests.support.invariants` hold. At the end every job can end, every preemption has
its outcome, no attempt was placed twice, and the whole history is recomputed and equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tidegate_events import events as e
from tidegate_events.journal.base import Recorded
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, ResourceRange
from tidegate_scheduler.decide import decide
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.history import verify
from tidegate_scheduler.state import State

from tests.support.cluster import Cluster, spec
from tests.support.invariants import check

NODES = {"n1": (2000, 0), "n2": (3000, 2), "n3": (4000, 4)}
OUTCOMES = ["completed", "suspended", "failed", "stopped", "lost"]


class SchedulerMachine(RuleBasedStateMachine):
    """Rules are what can happen; the core decides the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.incarnations = dict.fromkeys(NODES, 0)

    @initialize()
    def a_first_node(self) -> None:
        self._join("n1", held=[])

    @rule(name=st.sampled_from(sorted(NODES)), keep=st.booleans())
    def a_node_joins_again(self, name: str, keep: bool) -> None:
        running = [
            e.HeldSandbox(job=job.id, attempt=job.attempt, rank=member.rank)
            for job in self.cluster.state.jobs.values()
            for member in job.members
            if member.node == name and member.status == "started"
        ]
        known = self.cluster.state.nodes.get(name)
        zombies = list(known.zombies) if known else []
        self._join(name, held=(running + zombies if keep else []))

    @rule(
        cpu=st.integers(1, 25),
        gpus=st.integers(0, 2),
        priority=st.integers(0, 3),
        gang=st.integers(1, 3),
        attempts=st.integers(1, 3),
        elastic=st.booleans(),
    )
    def a_user_submits(self, *, cpu: int, gpus: int, priority: int, gang: int, attempts: int, elastic: bool) -> None:
        made = spec(cpu * 100, gpus=gpus, priority=priority, gang=gang, attempts=attempts)
        if elastic:
            ranges = {
                "default": ResourceRange(minimum=Resources(cpu * 50, 64), maximum=Resources(cpu * 100, 64)),
                "idle": ResourceRange(minimum=Resources(10, 64)),
                "busy": ResourceRange(minimum=Resources(cpu * 80, 64), maximum=Resources(cpu * 200, 64)),
            }
            component = Component(name="main", command=("true",), replicas=1 + cpu % 2, resources=ranges)
            made = type(made)(name="job", tenant="t", submitter="u", components=(component,), priority=priority)
        self.cluster.submit(made)

    @rule()
    def it_decides(self) -> None:
        self.cluster.settle()

    @precondition(lambda self: self._jobs())
    @rule(data=st.data())
    def members_start(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self._jobs()))
        self._raced(data, lambda: self._start(job))

    @precondition(lambda self: self._jobs())
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES), step=st.integers(0, 100))
    def members_exit(self, data: st.DataObject, outcome: str, step: int) -> None:
        job = data.draw(st.sampled_from(self._jobs()))
        ranks = [m.rank for m in self.cluster.members(job) if m.active]
        if ranks:
            some = data.draw(st.lists(st.sampled_from(ranks), min_size=1, unique=True))
            self._raced(data, lambda: self._exit(job, outcome, some, step))

    @precondition(lambda self: self._jobs())
    @rule(data=st.data(), step=st.integers(0, 100))
    def a_checkpoint_is_saved(self, data: st.DataObject, step: int) -> None:
        job = data.draw(st.sampled_from(self._jobs()))
        if any(member.active for member in self.cluster.members(job)):
            self.cluster.save(job, step)

    @precondition(lambda self: self._jobs())
    @rule(data=st.data(), phase=st.sampled_from(["default", "idle", "busy"]))
    def a_phase_changes(self, data: st.DataObject, phase: str) -> None:
        job = data.draw(st.sampled_from(self._jobs()))
        if any(member.active for member in self.cluster.members(job)):
            self.cluster.phase(job, phase)

    @precondition(lambda self: self._jobs())
    @rule(data=st.data())
    def a_node_refuses(self, data: st.DataObject) -> None:
        self.cluster.reject(data.draw(st.sampled_from(self._jobs())))

    @precondition(lambda self: self._jobs())
    @rule(data=st.data())
    def a_user_cancels(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self._jobs()))
        self._raced(data, lambda: self.cluster.cancel(job))

    @rule(name=st.sampled_from(sorted(NODES)))
    def a_node_falls_silent(self, name: str) -> None:
        if name in self.cluster.state.nodes:
            self.cluster.silence(name)

    @rule(seconds=st.sampled_from([0.001, 1, 31, 400]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.advance(seconds)

    @rule(data=st.data())
    def an_old_frame_comes_again(self, data: st.DataObject) -> None:
        old = data.draw(st.sampled_from(self.cluster.frames))
        digest = self.cluster.state.digest()
        again = Recorded(len(self.cluster.frames) + 1, old.subject, old.frame)
        self.cluster.frames.append(again)
        evolve(self.cluster.state, again)
        assert self.cluster.state.digest() == digest, "a late duplicate changed the state"

    @invariant()
    def nothing_is_broken(self) -> None:
        check(self.cluster.state, self.cluster.shrunk)

    def teardown(self) -> None:
        self._let_everything_end()
        self._every_preemption_has_an_outcome()
        self._no_attempt_was_placed_twice()
        report = asyncio.run(verify(self._replay()))
        assert report.ok, report.difference
        assert report.state_digest == self.cluster.state.digest()

    # ---- how ----

    def _jobs(self) -> list[str]:
        return sorted(self.cluster.state.jobs)

    def _join(self, name: str, held: list[e.HeldSandbox]) -> None:
        self.incarnations[name] += 1
        cpu, gpus = NODES[name]
        self.cluster.node(name, cpu, gpus=gpus, incarnation=self.incarnations[name], held=held)

    def _start(self, job: str) -> None:
        for member in self.cluster.members(job):
            if member.status == "ordered":
                self.cluster.node_fact(job, member, e.SandboxStarted, level="trusted")

    def _exit(self, job: str, outcome: str, ranks: list[int], step: int) -> None:
        for member in self.cluster.members(job):
            if member.active and member.rank in ranks:
                self.cluster.node_fact(job, member, e.SandboxExited, outcome=outcome, last_step=step)

    def _raced(self, data: st.DataObject, happen: object) -> None:
        """Let facts land between the state a pass was decided on and its frame, or before it."""
        raced = data.draw(st.booleans())
        result = decide(self.cluster.state, self.cluster.now) if raced else None
        happen()  # type: ignore[operator]
        if result is not None and result.events:
            self.cluster.append("scheduler", self.cluster.leader, *result.events)

    def _let_everything_end(self) -> None:
        """With healthy nodes and well-behaved members, every job that fits the cluster must reach an end."""
        for name in NODES:
            self._join(name, held=[])
        # Passes are never before one that was: where a clock was set back, they stand still until it has caught up.
        self.cluster.now = max(self.cluster.now, self.cluster.state.header.now_ns)
        for _ in range(200):
            self.cluster.advance(61)
            if not self.cluster.state.jobs:
                return
            for job in self._jobs():
                if job not in self.cluster.state.jobs:
                    continue
                if self.cluster.job(job).waiting:
                    if self._fits_no_more(job):
                        self.cluster.cancel(job)
                    continue
                if self.cluster.job(job).stage == "preempting":
                    self.cluster.exit(job, "suspended", acknowledged=True)
                elif self.cluster.job(job).stage == "stopping":
                    self.cluster.exit(job, "stopped")
                else:
                    self.cluster.start(job)
                    if job in self.cluster.state.jobs and self.cluster.stage(job) in ("placed", "running"):
                        self.cluster.exit(job, "completed")
        raise AssertionError(f"never ended: {[(j, self.cluster.story(j)[-5:]) for j in self._jobs()]}")

    def _fits_no_more(self, job: str) -> bool:
        """Say whether a job that was placed before rightly waits for nodes which are not there any more."""
        return False

    def _every_preemption_has_an_outcome(self) -> None:
        asked: dict[str, int] = {}
        for recorded in self.cluster.frames:
            for event in recorded.frame.events:
                if isinstance(event, e.PreemptRequested):
                    asked[event.job] = event.attempt
                elif isinstance(event, e.JobSuspended | e.JobRequeued):
                    asked.pop(event.job, None)
        for job in asked:
            assert job in self.cluster.state.finished, f"{job} was asked to leave and nothing says what became of it"

    def _no_attempt_was_placed_twice(self) -> None:
        """Rebuild the state frame by frame and watch which attempts really began."""
        state = State()
        begun: set[tuple[str, int]] = set()
        attempts: dict[str, int] = {}
        for recorded in self.cluster.frames:
            evolve(state, recorded)
            for job in state.jobs.values():
                if job.attempt != attempts.get(job.id, 0):
                    attempts[job.id] = job.attempt
                    assert (job.id, job.attempt) not in begun, f"{job.id} began attempt {job.attempt} twice"
                    begun.add((job.id, job.attempt))

    async def _replay(self) -> AsyncIterator[Recorded]:
        for recorded in self.cluster.frames:
            yield recorded


SchedulerMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestScheduler = SchedulerMachine.TestCase
