"""Policy 2 under anything, with jobs that ask for their phases: they lend, borrow, hand back, or do none of it.

A model of the kernel says which limits hold. Whatever happens, these fit each node, no device has two holders, every
recall ends in a hand-back or in a request to leave, and an owner that asks has its own within its bound.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.leasing import asks, limits_mib
from tidegate_scheduler.state import Job, Member

from tests.scheduler.elastic.lent import GRACE, HAND_BACK, owner
from tests.scheduler.elastic.test_machine_elastic import TENANTS, ElasticMachine
from tests.scheduler.test_machine import NODES

PHASES = ["", "default", "sampling", "learning", "learning"]
CPU, MEMORY = 400, 3000
LEFT_OVER = e.HeldSandbox(job="gone", attempt=7, rank=0)
_Place = tuple[str, int, int]
_Act = tuple[str, int, str, int]
_Devices = tuple[int, int]
DEVICES = st.sampled_from([(0, 0), (1, 0), (2, 0), (0, 200), (0, 500), (0, 700), (0, 1000)])
"""Whole devices, or a share of one."""

WORDS: dict[str, type[e.JobEvent]] = {"suspend": e.SuspendRequested, "requeue": e.RequeueRequested}
ACT = st.tuples(
    st.sampled_from([*2 * ["ask", "enter", "follow"], "refuse", "pass", "leave", "find", "end", "wait", *WORDS]),
    st.integers(0, 9),
    st.sampled_from(PHASES),
    st.integers(1, 30),
)
ACTS = st.lists(ACT, max_size=25)
"""What members and kernels do one after the other: which, whose, of which phase, and how long or how much."""


class LeasesMachine(ElasticMachine):
    """More that can happen: members ask, enter, give up; kernels follow, or refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel: dict[_Place, int] = {}
        """The memory that each member's limits let it have."""

        self.left_over: dict[str, tuple[int, frozenset[int]]] = {}
        """By node the memory, and the devices, of a sandbox there that was given up."""

    @initialize(
        memory=st.integers(1, 4),
        devices=DEVICES,
        borrowed=st.integers(1, 4),
        gang=st.integers(1, 2),
        acts=ACTS,
    )
    def some_are_there(self, *, memory: int, devices: _Devices, borrowed: int, gang: int, acts: list[_Act]) -> None:
        """Owners that lend all that there is, and borrowers that would like to have it."""
        if "n2" not in self.cluster.state.nodes:
            self._join("n2", held=[])
        for high, more in (
            (_needs(CPU, memory * MEMORY, devices), {}),
            (_needs(CPU, borrowed * MEMORY, devices), {"borrows": True, "gang_size": gang}),
            (_needs(CPU, borrowed * MEMORY, (1, 0)), {"borrows": True, "priority": 1}),
            (_needs(CPU, borrowed * MEMORY, (0, 400)), {"borrows": True}),
        ):
            job = self.cluster.submit(owner(Resources(100, 500), high, **more))
            self.cluster.settle()
            self._start(job)
        self._act(acts)

    @rule(acts=ACTS)
    def phases_come_and_go(self, acts: list[_Act]) -> None:
        self._act(acts)

    @rule(
        tenant=st.sampled_from(TENANTS),
        borrows=st.booleans(),
        memory=st.integers(1, 5),
        devices=DEVICES,
        guaranteed=st.booleans(),
        gang=st.integers(1, 2),
        priority=st.integers(0, 2),
    )
    def somebody_submits_who_asks(
        self, *, memory: int, devices: _Devices, guaranteed: bool, gang: int, **more: Any
    ) -> None:
        least = (1, 0) if devices[0] else (0, 300 if devices[1] else 0)
        low, high = _needs(100, 500, least if guaranteed else (0, 0)), _needs(CPU, memory * MEMORY, devices)
        job = owner(low, high, gang_size=gang, **more)
        self.cluster.submit(job)

    @precondition(lambda self: self._asking())
    @rule(data=st.data(), phase=st.sampled_from(PHASES), together=st.booleans())
    def members_ask(self, data: st.DataObject, phase: str, together: bool) -> None:
        job, member = data.draw(st.sampled_from(self._asking()))
        those = [each for each in job.members if each.active] if together else [member]
        self._raced(data, lambda: [self._ask_for(job, each, phase) for each in those])

    @precondition(lambda self: self._granted())
    @rule(data=st.data(), once=st.booleans())
    def members_enter(self, data: st.DataObject, once: bool) -> None:
        job, member = data.draw(st.sampled_from(self._granted()))
        those = [member] if once else [each for each in job.members if each.active and each.granted]
        self._raced(data, lambda: [self._enter(job, each) for each in those])

    @precondition(lambda self: self._asking())
    @rule(data=st.data())
    def a_kernel_follows(self, data: st.DataObject) -> None:
        job, member = data.draw(st.sampled_from(self._asking()))
        self._raced(data, lambda: self._apply(job, member))

    @precondition(lambda self: self._holding())
    @rule(data=st.data(), permille=st.integers(1, 1000))
    def a_kernel_refuses(self, data: st.DataObject, permille: int) -> None:
        job, member = data.draw(st.sampled_from(self._holding()))
        self._raced(data, lambda: self._refuse(job, member, permille))

    @precondition(lambda self: self._told())
    @rule(data=st.data(), what=st.sampled_from(["cancel", "hold", *WORDS]))
    def who_was_told_to_hand_back_leaves_for_another_reason(self, data: st.DataObject, what: str) -> None:
        job = data.draw(st.sampled_from(self._told()))
        self._raced(data, lambda: self._say(job.id, what))

    @precondition(lambda self: self._borrowing())
    @rule(emptied=st.sampled_from(["", "n2", "n3", "n3"]))
    def borrowers_that_saved_wait_for_long(self, emptied: str) -> None:
        self._wait_for_long(emptied)

    def _wait_for_long(self, emptied: str) -> None:
        """So that they may move, where another node has what they wait for."""
        for job, member in self._borrowing():
            self.cluster.save(job.id, len(self.cluster.frames))
            self._ask_for(job, member, "learning")
        if emptied:
            self._join(emptied, held=[])
        self.cluster.advance(700)

    @rule(name=st.sampled_from(sorted(NODES)))
    def an_agent_finds_what_was_given_up(self, name: str) -> None:
        self._find(name)

    @invariant()
    def what_was_given_up_keeps_what_it_has(self) -> None:
        for name, node in self.cluster.state.nodes.items():
            if LEFT_OVER in node.zombies:
                devices = self.left_over[name][1]
                for job, member in self._everybody():
                    if member.active and member.node == name:
                        assert not devices & set(member.gpu_indices), f"{job.id} has what is still used: {devices}"

    @invariant()
    def what_kernels_hold_fits(self) -> None:
        state = self.cluster.state
        had = {name: self.left_over[name][0] if LEFT_OVER in node.zombies else 0 for name, node in state.nodes.items()}
        for job in state.jobs.values():
            for member in job.members:
                if member.active and member.node in had:
                    had[member.node] += self._has(job, member)
        for name, has in had.items():
            node = state.nodes[name]
            fits = has <= node.capacity.memory_mib or node.status == "lost" or name in self.cluster.shrunk
            assert fits, f"{name}: sandboxes have {has} of {node.capacity.memory_mib} MiB"

    def teardown(self) -> None:
        self._operators_let_go()
        self._owners_get_their_own()
        super().teardown()

    # ---- how ----

    def _act(self, acts: list[_Act]) -> None:
        for what, which, phase, number in acts:
            those = {"enter": self._granted, "refuse": self._holding}.get(what, self._asking)()
            job, member = those[which % len(those)] if those else (None, None)
            if what == "pass" or job is None or member is None:
                self.cluster.advance(number)
            elif what == "ask":
                for each in job.members if number % 2 else [member]:
                    self._ask_for(job, each, phase)
            elif what == "enter":
                for each in job.members if number % 3 else [member]:
                    if each.active and each.granted:
                        self._enter(job, each)
            elif what == "follow":
                self._apply(job, member)
            elif what == "refuse":
                self._refuse(job, member, number * 33)
            elif what == "find":
                self._find(member.node)
            elif what == "end":
                self._end(member.node)
            elif what == "wait":
                self._wait_for_long(["", "n3"][number % 2])
            elif what in WORDS:
                told = self._told()
                self._say((told[which % len(told)] if told else job).id, what)
            elif self.cluster.stage(job.id) == "preempting":
                self.cluster.exit(job.id, "suspended", acknowledged=True)
            if number % 4:
                self.cluster.settle()
                self.what_kernels_hold_fits()
                self.what_was_given_up_keeps_what_it_has()

    def _find(self, name: str) -> None:
        """An agent begins anew, and finds what holds the rest of the memory, and the devices that nobody has."""
        node = self.cluster.state.nodes.get(name)
        if node is None or node.status != "up" or node.zombies or name in self.cluster.shrunk:
            return
        there = [(job, each) for job, each in self._everybody() if each.node == name and each.active]
        given_mib = sum(max(self._has(job, each), self._will_have(job, each)) for job, each in there)
        rest_mib = node.capacity.memory_mib - given_mib
        taken = {index for _, member in there for index in member.gpu_indices}
        self.left_over[name] = rest_mib, frozenset(gpu.index for gpu in node.gpus) - taken
        held = [e.HeldSandbox(job=job.id, attempt=job.attempt, rank=each.rank) for job, each in there]
        self._join(name, held=[*held, LEFT_OVER])

    def _end(self, name: str) -> None:
        if LEFT_OVER in self.cluster.state.nodes[name].zombies:
            about = {"id": f"end-{len(self.cluster.frames)}", "at_ns": self.cluster.now, "tenant": "t", "node": name}
            gone = {"job": LEFT_OVER.job, "attempt": LEFT_OVER.attempt, "rank": LEFT_OVER.rank}
            self.cluster.append("node", name, e.SandboxExited(**about, **gone, outcome="stopped"))

    def _refuse(self, job: Job, member: Member, permille: int) -> None:
        least, most = self._limits(job, member), self._has(job, member)
        kept = least + (most - least) * permille // 1000
        if kept > least:
            self.kernel[job.id, job.attempt, member.rank] = kept
            quota = e.Quota(component="main", cpu_millis=1, memory_mib=kept)
            self._tell(job, member, e.ShrinkRefused, quotas=(quota,))

    def _owners_get_their_own(self) -> None:
        """Nobody hands anything back, but all leave who are asked to, and kernels follow."""
        self.cluster.now = max(self.cluster.now, self.cluster.state.header.now_ns)  # a clock that went back catches up
        self.cluster.settle()
        waiting = [(job, each) for job, each in self._asking() if not self.cluster.state.specs[job.id].borrows]
        for job, member in waiting:
            self._ask_for(job, member, "learning")
        self._let_go()
        for seconds in (0, HAND_BACK, GRACE):
            self.cluster.advance(seconds)
            self._let_go()
        for job, member in waiting:
            live = self.cluster.state.jobs.get(job.id)
            node = self.cluster.state.nodes[member.node]
            if live is not job or job.stage not in ("placed", "running") or not member.active or node.status != "up":
                continue
            if node.zombies:  # what they hold is nobody's until they have ended
                continue
            assert member.granted == "learning", f"{job.id} waits: {member}, {self.cluster.story(job.id)[-9:]}"

    def _let_go(self) -> None:
        for _ in range(9):
            before = len(self.cluster.frames)
            for job, member in self._holding():
                self._apply(job, member)
            for job in self._jobs():
                if job in self.cluster.state.jobs and self.cluster.stage(job) == "preempting" and self._is_due(job):
                    self.cluster.exit(job, "suspended", acknowledged=True)
            self.cluster.settle()
            if len(self.cluster.frames) == before:
                return

    def _is_due(self, job: str) -> bool:
        return self.cluster.now >= self.cluster.job(job).deadline_ns

    def _everybody(self) -> list[tuple[Job, Member]]:
        return [(job, member) for job in self.cluster.state.jobs.values() for member in job.members]

    def _members(self) -> list[tuple[Job, Member]]:
        state = self.cluster.state
        jobs = [job for _, job in sorted(state.jobs.items()) if asks(state.specs[job.id])]
        return [(job, member) for job in jobs for member in job.members if member.active]

    def _asking(self) -> list[tuple[Job, Member]]:
        return [(job, member) for job, member in self._members() if member.status == "started"]

    def _granted(self) -> list[tuple[Job, Member]]:
        return [(job, member) for job, member in self._asking() if member.granted]

    def _told(self) -> list[Job]:
        found = {job.id: job for job, member in self._members() if member.hand_back_ns}
        return [found[name] for name in sorted(found)]

    def _borrowing(self) -> list[tuple[Job, Member]]:
        return [(job, each) for job, each in self._asking() if self.cluster.state.specs[job.id].borrows]

    def _say(self, job: str, what: str) -> None:
        """An operator has its word about a job, or its user cancels it."""
        if what == "cancel":
            self.cluster.cancel(job)
        else:
            self._ask(WORDS.get(what, e.HoldRequested), tenant="t", job=job)

    def _holding(self) -> list[tuple[Job, Member]]:
        return [(job, each) for job, each in self._members() if each.held_mib or self._has(job, each) > 500]

    def _limits(self, job: Job, member: Member) -> int:
        return limits_mib(self.cluster.state.specs[job.id], member.quotas)

    def _has(self, job: Job, member: Member) -> int:
        """Return what the kernel lets the member have; until it says so that may be all that is guaranteed."""
        floor_mib = self.cluster.state.floors[job.id].memory_mib
        if not asks(self.cluster.state.specs[job.id]):
            return floor_mib
        return self.kernel.setdefault((job.id, job.attempt, member.rank), max(floor_mib, self._limits(job, member)))

    def _will_have(self, job: Job, member: Member) -> int:
        """Return what the member has when its kernel follows."""
        return self._limits(job, member) if asks(self.cluster.state.specs[job.id]) else 0

    def _ask_for(self, job: Job, member: Member, phase: str) -> None:
        self._tell(job, member, e.PhaseRequested, phase=phase, _node=False)

    def _enter(self, job: Job, member: Member) -> None:
        phase = member.granted
        self._apply(job, member)
        self._tell(job, member, e.PhaseChanged, phase=phase, _node=False)

    def _apply(self, job: Job, member: Member) -> None:
        self.kernel[job.id, job.attempt, member.rank] = self._limits(job, member)
        self._tell(job, member, e.QuotaApplied, quotas=member.quotas)

    def _tell(self, job: Job, member: Member, kind: type[e.Event], **more: object) -> None:
        if job.id in self.cluster.state.jobs and member.active:
            self.cluster.node_fact(job.id, member, kind, **more)  # type: ignore[arg-type]


def _needs(cpu: int, memory: int, devices: _Devices) -> Resources:
    return Resources(cpu, memory, devices[0], gpu_millis=devices[1])


LeasesMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestLeases = LeasesMachine.TestCase


@settings(max_examples=40, deadline=None)
@given(
    memory=st.integers(1, 4),
    devices=DEVICES,
    borrowed=st.integers(1, 4),
    gang=st.integers(1, 2),
    acts=st.lists(ACT, min_size=30, max_size=80),
)
def test_whatever_members_and_kernels_do(
    memory: int, devices: _Devices, borrowed: int, gang: int, acts: list[_Act]
) -> None:
    """The machine above does a little of everything; this is much of what concerns phases."""
    machine = LeasesMachine()
    machine.some_are_there(memory=memory, devices=devices, borrowed=borrowed, gang=gang, acts=[])
    for act in acts:
        machine.phases_come_and_go([act])
        machine.what_was_kept_up_says_what_is_known_anew()
    machine.it_starts_from_a_snapshot()
    machine.teardown()
