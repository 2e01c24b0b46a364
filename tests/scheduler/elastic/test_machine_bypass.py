"""Nobody is passed by without bound, whatever came before: lost nodes, cancelled jobs, late and duplicate events."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tidegate_events import events as e
from tidegate_events.journal.base import Recorded
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.test_bypass import BIG
from tests.scheduler.elastic.world import CheckedCluster
from tests.support.cluster import SECOND, spec

AGEING, STEP, RUN_MAX, HIGHEST = 100, 25, 100, 3
NODES = ("n1", "n2")
GRACE_SECONDS = Parameters().stop_grace_seconds_max
BOUND_SECONDS = (HIGHEST + 2) * (AGEING + STEP) + 4 * (RUN_MAX + STEP) + GRACE_SECONDS
"""Until it has aged beyond any that comes, and those have left whom it waits for: each a step late at most."""

SHAPES = st.tuples(
    st.sampled_from([300, 1000, 2000]),
    st.integers(0, 1),
    st.sampled_from("abc"),
    st.integers(0, HIGHEST),
    st.sampled_from([None, 2 * RUN_MAX]),
)


class BypassMachine(RuleBasedStateMachine):
    """One job is patient; others come without end, and anything happens to them and to the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = CheckedCluster(Parameters(ageing_seconds=AGEING, preemption_cooldown_seconds=30))
        self._random = random.Random(0)
        self._incarnations = dict.fromkeys(NODES, 0)
        self._lost: set[str] = set()
        self._kind = ""

    @initialize(kind=st.sampled_from(sorted(BIG)), seed=st.integers(0, 999))
    def somebody_is_patient(self, kind: str, seed: int) -> None:
        self._kind, self._random = kind, random.Random(seed)
        for name in NODES:
            self._join(name)
        for _ in range(3):
            self._others()
        self.cluster.settle()
        self.cluster.submit(BIG[kind], "patient")

    @rule(shapes=st.lists(SHAPES, max_size=4))
    def others_come(self, shapes: list[Any]) -> None:
        for cpu, gpus, tenant, priority, limit in shapes:
            self.cluster.submit(spec(cpu, gpus=gpus, tenant=tenant, priority=priority, time_limit_seconds=limit))

    @rule()
    def time_passes(self) -> None:
        self._step()

    @rule(name=st.sampled_from(NODES))
    def a_node_is_lost(self, name: str) -> None:
        self.cluster.silence(name)
        self.cluster.advance(400)
        self._lost.add(name)

    @precondition(lambda self: self._lost)
    @rule()
    def lost_nodes_come_back(self) -> None:
        for name in sorted(self._lost):
            self._join(name)
        self._lost.clear()

    @rule(data=st.data())
    def somebody_cancels(self, data: st.DataObject) -> None:
        if others := sorted(self.cluster.state.jobs.keys() - {"patient"}):
            self.cluster.cancel(data.draw(st.sampled_from(others)))

    @rule(data=st.data())
    def an_old_frame_comes_again(self, data: st.DataObject) -> None:
        old = data.draw(st.sampled_from(self.cluster.frames))
        digest = self.cluster.state.digest()
        again = Recorded(len(self.cluster.frames) + 1, old.subject, old.frame)
        self.cluster.frames.append(again)
        evolve(self.cluster.state, again)
        assert self.cluster.state.digest() == digest, "a late duplicate changed the state"

    @rule(data=st.data())
    def a_fact_about_an_attempt_that_is_over_comes_late(self, data: st.DataObject) -> None:
        placed = [x for r in self.cluster.frames for x in r.frame.events if isinstance(x, e.JobPlaced)]
        if not placed:
            return
        old = data.draw(st.sampled_from(placed))
        job = self.cluster.state.jobs.get(old.job)
        if job is None or job.waiting or job.attempt != old.attempt:
            about: dict[str, Any] = {"id": f"late-{len(self.cluster.frames)}", "at_ns": self.cluster.now}
            about |= {"tenant": old.tenant, "job": old.job, "attempt": old.attempt, "rank": 0}
            node = old.members[0].node
            self.cluster.append("node", node, e.SandboxExited(node=node, outcome="lost", **about))

    def teardown(self) -> None:
        """Hold that from here on, with nodes that are well, the patient has its turn in time, whoever else comes."""
        if not self._kind:
            return
        for name in NODES:
            self._join(name)
        self._lost.clear()
        patient = self.cluster.state.jobs.get("patient")
        if patient is None or not patient.waiting:
            self.cluster.submit(BIG[self._kind], "patient-too")
        name = "patient" if patient is not None and patient.waiting else "patient-too"
        before, began = self._attempt(name), self.cluster.now
        while name in self.cluster.state.jobs and self._attempt(name) == before:
            self._others()
            self._step()
            waited = (self.cluster.now - began) // SECOND
            assert waited <= BOUND_SECONDS, f"{waited} s: {self.cluster.waiting.get(name)}"

    def _attempt(self, name: str) -> int:
        job = self.cluster.state.jobs.get(name)
        return job.attempt if job is not None else -1

    def _join(self, name: str) -> None:
        self._incarnations[name] += 1
        self.cluster.node(name, 4000, gpus=4, switch="s", incarnation=self._incarnations[name])

    def _others(self) -> None:
        for _ in range(self._random.randint(1, 2)):
            job = spec(
                self._random.choice([300, 1000, 2000]),
                gpus=self._random.choice([0, 0, 1]),
                tenant=self._random.choice("abc"),
                priority=self._random.randint(0, HIGHEST),
                time_limit_seconds=self._random.choice([None, 2 * RUN_MAX]),
            )
            self.cluster.submit(job)

    def _step(self) -> None:
        """Let members start, save when they are asked, and end when they have run for their time."""
        self.cluster.settle()
        for name in sorted(self.cluster.state.jobs):
            job = self.cluster.state.jobs.get(name)
            if job is None or job.waiting or self._lost & {member.node for member in job.members}:
                continue
            if job.stage in ("preempting", "stopping"):
                self.cluster.exit(name, "suspended" if job.stage == "preempting" else "stopped", acknowledged=True)
                continue
            self.cluster.start(name)
            runs = self._random.randint(STEP, RUN_MAX)
            if self.cluster.stage(name) == "running" and self.cluster.now - job.started_ns >= runs * SECOND:
                self.cluster.exit(name, "completed")
        self.cluster.advance(STEP)


BypassMachine.TestCase.settings = settings(max_examples=8, stateful_step_count=20, deadline=None)
TestBypass = BypassMachine.TestCase
