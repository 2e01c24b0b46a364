"""The same machine in a worse world: other leaders and their late frames, shrinking nodes, jumping clocks, tiny passes.

Beside the invariants it holds that the scheduler comes to rest, and that it named the moment at which it has to look
again: nothing falls due before.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tidegate_events import events as e
from tidegate_events.journal.base import Recorded
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, ResourceRange
from tidegate_scheduler.decide import decide
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.test_machine import NODES, SchedulerMachine
from tests.support.cluster import SECOND, Cluster, spec

PHASES = ["default", "sampling", "learning", "busy", "idle"]
FAR_SECONDS = 10_000_000


def training(cpu: int, *, gpus: int, gang: int, replicas: int, priority: int) -> JobSpec:
    """Return a job of simulators and a learner, whose phases need different amounts."""
    simulator = Component(
        name="simulator",
        kind="simulator",
        command=("true",),
        replicas=replicas,
        resources={
            "default": _range(cpu // 4, cpu // 2),
            "sampling": _range(cpu // 2, cpu * 3),
            "learning": _range(10, 10),
        },
    )
    learner = Component(
        name="learner",
        kind="learner",
        command=("true",),
        resources={
            "default": _range(cpu // 4, cpu, gpus),
            "learning": _range(cpu, cpu * 5, gpus),
            "sampling": _range(10, cpu, gpus),
        },
    )
    base = spec(cpu, priority=priority, gang=gang, attempts=2, time_limit_seconds=500)
    return JobSpec(
        name="job",
        tenant="t",
        submitter="u",
        components=(simulator, learner),
        priority=priority,
        gang_size=gang,
        restart=base.restart,
        preemption=base.preemption,
        time_limit_seconds=base.time_limit_seconds,
    )


def _range(minimum: int, maximum: int, gpus: int = 0) -> ResourceRange:
    return ResourceRange(minimum=Resources(minimum, 64, gpus), maximum=Resources(maximum, 64, gpus))


class HostileMachine(SchedulerMachine):
    """More that can happen."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(Parameters(decisions_per_pass_max=2, infrastructure_failures_max=3))

    @rule(
        cpu=st.integers(1, 20),
        gpus=st.integers(0, 2),
        gang=st.integers(1, 4),
        replicas=st.integers(1, 4),
        priority=st.integers(0, 9),
    )
    def a_user_submits_training(self, *, cpu: int, gpus: int, gang: int, replicas: int, priority: int) -> None:
        self.cluster.submit(training(cpu * 40, gpus=gpus, gang=gang, replicas=replicas, priority=priority))

    @precondition(lambda self: self._jobs())
    @rule(data=st.data(), phase=st.sampled_from(PHASES))
    def some_member_changes_its_phase(self, data: st.DataObject, phase: str) -> None:
        job = data.draw(st.sampled_from(self._jobs()))
        for member in self.cluster.members(job):
            if member.active and data.draw(st.booleans()):
                self._raced(
                    data,
                    lambda member=member: self.cluster.node_fact(job, member, e.PhaseChanged, phase=phase, _node=False),
                )
                return

    @rule(data=st.data(), name=st.sampled_from(sorted(NODES)), percent=st.sampled_from([10, 50, 100]))
    def a_node_joins_with_another_size(self, data: st.DataObject, name: str, percent: int) -> None:
        self.incarnations[name] += 1
        cpu, gpus = NODES[name]
        known = self.cluster.state.nodes.get(name)
        held = [
            e.HeldSandbox(job=job.id, attempt=job.attempt, rank=member.rank)
            for job in self.cluster.state.jobs.values()
            for member in job.members
            if member.node == name and member.status == "started"
        ]
        held += known.zombies if known else []
        self._raced(
            data,
            lambda: self.cluster.node(
                name, cpu * percent // 100, gpus=gpus * percent // 100, incarnation=self.incarnations[name], held=held
            ),
        )

    @rule(name=st.sampled_from(sorted(NODES)))
    def a_node_is_heard_again(self, name: str) -> None:
        node = self.cluster.state.nodes.get(name)
        if node is not None:
            heard = e.NodeReachable(
                id=f"heard-{len(self.cluster.frames)}", at_ns=self.cluster.now, node=name, incarnation=node.incarnation
            )
            self.cluster.append("scheduler", self.cluster.leader, heard)

    @rule(name=st.sampled_from(sorted(NODES)), refused=st.booleans())
    def what_a_node_held_from_before_ends(self, name: str, refused: bool) -> None:
        node = self.cluster.state.nodes.get(name)
        for zombie in list(node.zombies) if node else []:
            about = {"job": zombie.job, "attempt": zombie.attempt, "rank": zombie.rank, "node": name, "tenant": "t"}
            number = len(self.cluster.frames)
            fact: e.AnyEvent = (
                e.PlacementRejected(id=f"r{number}", at_ns=self.cluster.now, reason=e.Reason(code="Busy"), **about)  # type: ignore[arg-type]
                if refused
                else e.SandboxExited(id=f"x{number}", at_ns=self.cluster.now, outcome="stopped", **about)  # type: ignore[arg-type]
            )
            self.cluster.append("node", name, fact)
            assert zombie not in self.cluster.state.nodes[name].zombies, "a node must not be blocked for ever"

    @rule(data=st.data(), instance=st.sampled_from(["s1", "s2"]))
    def another_leader_takes_over(self, data: st.DataObject, instance: str) -> None:
        late = decide(self.cluster.state, self.cluster.now) if data.draw(st.booleans()) else None
        before, epoch = self.cluster.leader, self.cluster.epoch
        self.cluster.elect(instance)
        if late is not None and late.events:
            digest = self.cluster.state.digest()
            self.cluster.append("scheduler", before, *late.events, epoch=epoch)
            assert self.cluster.state.digest() == digest, "a deposed leader changed the state"

    @rule(seconds=st.sampled_from([-3600, -40, -1, 29, 120, 86_400]))
    def the_clock_jumps(self, seconds: int) -> None:
        self.cluster.now += seconds * SECOND

    @rule()
    def nothing_falls_due_before_it_said(self) -> None:
        self.cluster.settle()
        now = max(self.cluster.now, self.cluster.state.header.now_ns)
        wake = self.cluster.wake_at
        assert wake is None or wake > now, "it would spin"
        quiet_until = wake - 1 if wake is not None else now + FAR_SECONDS * SECOND
        assert decide(self.cluster.state, quiet_until).events == ()

    @rule(data=st.data(), count=st.integers(1, 5))
    def many_old_frames_come_again(self, data: st.DataObject, count: int) -> None:
        digest = self.cluster.state.digest()
        for old in data.draw(st.lists(st.sampled_from(self.cluster.frames), min_size=count, max_size=count)):
            again = Recorded(len(self.cluster.frames) + 1, old.subject, old.frame)
            self.cluster.frames.append(again)
            evolve(self.cluster.state, again)
        assert self.cluster.state.digest() == digest

    def _let_everything_end(self) -> None:
        for name in NODES:
            self._join(name, held=[])
        assert not self.cluster.shrunk
        super()._let_everything_end()


HostileMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
TestHostile = HostileMachine.TestCase


def test_room_whose_start_went_by_long_ago_asks_for_no_pass_at_once() -> None:
    """A story that the machine told: many want room, the clock goes back, and then a day ahead."""
    machine = HostileMachine()
    machine.a_first_node()
    machine.a_user_submits_training(cpu=14, gang=3, gpus=0, priority=0, replicas=4)
    machine.a_user_submits_training(cpu=7, gang=1, gpus=0, priority=6, replicas=3)
    machine.it_decides()
    machine.cluster.reject("j2")
    machine.a_user_submits(attempts=1, cpu=11, elastic=True, gang=1, gpus=0, priority=0)
    machine.it_decides()
    machine.a_user_submits(attempts=1, cpu=8, elastic=False, gang=1, gpus=0, priority=3)
    machine.a_user_submits(attempts=1, cpu=6, elastic=False, gang=1, gpus=0, priority=0)
    machine.it_decides()
    machine.a_user_submits(attempts=1, cpu=7, elastic=True, gang=1, gpus=0, priority=2)
    machine.the_clock_jumps(seconds=-3600)
    machine.a_user_submits(attempts=1, cpu=4, elastic=False, gang=1, gpus=0, priority=2)
    machine.a_user_submits_training(cpu=16, gang=2, gpus=0, priority=8, replicas=1)
    machine.a_user_submits(attempts=1, cpu=14, elastic=False, gang=1, gpus=0, priority=0)
    machine.the_clock_jumps(seconds=86_400)
    machine.it_decides()
    machine.nothing_is_broken()
