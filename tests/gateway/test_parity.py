"""The gateway and the scheduler fold alike: random histories, with decisions that come too late among them."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_events import events as e
from tidegate_events import subjects
from tidegate_events.frame import Frame, Writer, decode, encode
from tidegate_events.journal.base import Recorded
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, ResourceRange
from tidegate_gateway.view.projection import View
from tidegate_scheduler.decide import decide
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.policy.limits import time_limit_seconds
from tidegate_scheduler.state import State

SECOND_NS = 1_000_000_000
STAGES = {"preempting": "suspending"}
SANDBOXES = {"ordered": "starting", "started": "running", "rejected": "rejected", "lost": "lost"}

ASKED = ("hold", "release", "suspend", "resume", "requeue", "priority", "limit")
_EVENTS = (
    *(e.HoldRequested, e.ReleaseRequested, e.SuspendRequested, e.ResumeRequested, e.RequeueRequested),
    *(e.JobPriorityChanged, e.JobLimitChanged),
)

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "submit",
                "cancel",
                "join",
                "lost",
                "unreachable",
                "start",
                "exit",
                "reject",
                "save",
                "fail",
                "pass",
                "late",
                *ASKED,
                "drain",
                "cordon",
                "window",
                "forget",
            ]
        ),
        st.integers(0, 5),
        st.sampled_from(["completed", "suspended", "failed", "stopped", "lost"]),
    ),
    min_size=5,
    max_size=60,
)


class Both:
    """One history, folded by both."""

    def __init__(self) -> None:
        self.state = State()
        self.view = View()
        self.frames: list[Recorded] = []
        self.now_ns = 1_700_000_000 * SECOND_NS
        self.seqs: dict[str, int] = {}
        self.jobs = 0
        self.incarnations = {"n1": 0, "n2": 0}
        self.write("scheduler", "s1", e.LeaderElected(**self.stamp(), epoch=1, instance="s1"))
        for node in self.incarnations:
            self.join(node, ())

    def stamp(self) -> dict[str, Any]:
        self.now_ns += SECOND_NS
        return {"id": f"e{self.now_ns}", "at_ns": self.now_ns}

    def write(self, service: str, instance: str, *events: Any) -> None:
        name = f"{service}/{instance}"
        self.seqs[name] = self.seqs.get(name, 0) + 1
        frame = Frame(Writer(service, instance, 1, self.seqs[name]), events)  # type: ignore[arg-type]
        subject = subjects.DECISION if service == "scheduler" else subjects.fact(service, instance)
        self.fold(Recorded(self.state.seq + 1, subject, decode(encode(frame))))

    def fold(self, recorded: Recorded) -> None:
        self.frames.append(recorded)
        evolve(self.state, recorded)
        self.view.apply(recorded)

    def join(self, node: str, held: tuple[e.HeldSandbox, ...]) -> None:
        self.incarnations[node] += 1
        joined = e.NodeJoined(
            **self.stamp(),
            node=node,
            incarnation=self.incarnations[node],
            capacity=Resources(2000, 2048),
            levels=("trusted",),
            images={"host": "d"},
            sandboxes=held,
        )
        self.write("node", node, joined)

    def submit(self, priority: int) -> None:
        self.jobs += 1
        amount = ResourceRange(minimum=Resources(600 + 100 * priority, 256), maximum=Resources(2000, 256))
        spec = JobSpec(
            name="j",
            tenant="t",
            submitter="u",
            priority=priority * 10,
            gang_size=1 + priority % 2,
            components=(Component(name="main", command=("x",), resources={"default": amount}),),
        )
        self.write("gateway", "g1", e.JobSubmitted(**self.stamp(), tenant="t", job=f"j{self.jobs}", spec=spec))

    def members(self) -> list[tuple[Any, Any]]:
        return [(job, member) for job in self.state.jobs.values() for member in job.members]

    def fact(self, kind: str, pick: int, outcome: str) -> None:
        if not (members := self.members()):
            return
        job, member = members[pick % len(members)]
        about = {"tenant": "t", "job": job.id, "attempt": job.attempt, "rank": member.rank, "node": member.node}
        event: Any
        if kind == "start":
            event = e.SandboxStarted(**self.stamp(), **about, level="trusted")
        elif kind == "exit":
            event = e.SandboxExited(
                **self.stamp(), **about, outcome=outcome, acknowledged=outcome == "suspended", last_step=pick
            )
        elif kind == "reject":
            event = e.PlacementRejected(**self.stamp(), **about, reason=e.Reason(code="Busy"))
        else:
            ref = e.CheckpointRef(id=f"c{self.now_ns}", step=pick, attempt=job.attempt, directory="d")
            event = e.CheckpointSaved(**self.stamp(), **about, checkpoint=ref)
        self.write("node", member.node, event)

    def ask(self, action: str, pick: int) -> None:
        about = {**self.stamp(), "tenant": "t", "job": f"j{pick // 2 + 1}", "actor": "olga"}
        value = {"priority": {"priority": pick * 20}, "limit": {"time_limit_seconds": pick or None}}.get(action, {})
        self.write("gateway", "g1", _EVENTS[ASKED.index(action)](**about, **value))

    def operate(self, action: str, pick: int) -> None:
        """An operator drains or resumes a node, or plans a window or takes it back; or the scheduler cordons one."""
        node = f"n{pick % 2 + 1}"
        about = {**self.stamp(), "actor": "olga"}
        if action == "cordon":
            reasons = (e.Reason(code="FailsJobs"),)
            cordoned = e.NodeCordoned(
                **self.stamp(), node=node, incarnation=self.incarnations[node] - (pick == 5), reasons=reasons
            )
            self.write("scheduler", "s1", cordoned)
        elif action == "drain":
            asked: Any = e.NodeDrainRequested(**about, node=node, deadline_ns=self.now_ns)
            self.write("gateway", "g1", asked if pick < 4 else e.NodeResumeRequested(**about, node=node))
        elif action == "forget":
            incarnation = self.incarnations[node] - (pick == 5)
            asked = e.NodeForgotten(**self.stamp(), node=node, incarnation=incarnation)
            if pick < 3:
                self.write("scheduler", "s1", asked)
            else:
                self.write("gateway", "g1", e.NodeForgetRequested(**about, node=node))
        else:
            ends = {"start_ns": self.now_ns, "end_ns": self.now_ns + (pick - 1) * 60 * SECOND_NS}
            window: Any = e.MaintenancePlanned(**about, name=node, nodes=(node,), **ends)
            self.write("gateway", "g1", window if pick < 4 else e.MaintenanceCancelled(**about, name=node))

    def act(self, action: str, pick: int, outcome: str) -> None:
        if action in ASKED:
            self.ask(action, pick)
            return
        if action in ("drain", "cordon", "window", "forget"):
            self.operate(action, pick)
            return
        node = f"n{pick % 2 + 1}"
        job = f"j{pick + 1}"
        if action == "submit":
            self.submit(pick)
        elif action == "cancel":
            self.write("gateway", "g1", e.CancelRequested(**self.stamp(), tenant="t", job=job))
        elif action == "join":
            held = [
                e.HeldSandbox(job=j.id, attempt=j.attempt, rank=m.rank) for j, m in self.members() if m.node == node
            ]
            self.join(node, tuple(held[: pick % 3]))
        elif action in ("lost", "unreachable"):
            kind = e.NodeLost if action == "lost" else e.NodeUnreachable
            event = kind(**self.stamp(), node=node, incarnation=self.incarnations[node])
            self.write("scheduler", "s1", event)
        elif action == "fail":
            for known in list(self.state.jobs.values())[:1]:
                about = {"tenant": "t", "job": known.id, "attempt": known.attempt, "stage": "verify"}
                broken = known.checkpoints[-1].id if known.checkpoints else ""
                failed = e.CheckpointFailed(**self.stamp(), **about, reason=e.Reason(code="Hash"), checkpoint_id=broken)
                self.write("checkpoint", "c1", failed)
        elif action in ("pass", "late"):
            self.now_ns += 30 * SECOND_NS
            decided = decide(self.state, self.now_ns)
            if action == "late":
                # A fact lands between the decision and its frame.
                self.fact("exit" if pick % 2 else "start", pick, outcome)
                self.write("gateway", "g1", e.CancelRequested(**self.stamp(), tenant="t", job=job))
            if decided.events:
                self.write("scheduler", "s1", *decided.events)
        else:
            self.fact(action, pick, outcome)

    def check(self) -> None:
        for name, job in self.state.jobs.items():
            seen = self.view.jobs[name]
            assert seen.state == STAGES.get(job.stage, job.stage)
            assert (seen.revision, seen.attempt, seen.preemptions) == (job.revision, job.attempt, job.preemptions)
            assert seen.cancel_requested == job.cancel_requested
            got_asked = (seen.held, seen.suspend_requested, seen.requeue_requested, seen.priority)
            assert got_asked == (job.held, job.suspend_requested, job.requeue_requested, job.priority)
            assert seen.time_limit_seconds == time_limit_seconds(job, self.state.specs[job.id])
            if job.members:
                assert seen.latest is not None
                got = [(m.placement.rank, m.placement.node, m.sandbox, m.phase) for m in seen.latest.members]
                want = [(m.rank, m.node, SANDBOXES.get(m.status, "exited"), m.phase) for m in job.members]
                assert got == want
                wanted_quotas = [m.quotas for m in job.members]
                assert [tuple(m.desired.values()) for m in seen.latest.members] == wanted_quotas
        for name, finished in self.state.finished.items():
            assert self.view.jobs[name].state == finished.state
        assert set(self.view.jobs) == set(self.state.jobs) | set(self.state.finished)
        for name, node in self.state.nodes.items():
            assert self.view.nodes[name].incarnation == node.incarnation
            assert self.view.nodes[name].state == {"up": "reachable"}.get(node.status, node.status)
            drain = self.view.nodes[name].drain
            assert (drain.deadline_ns if drain else 0, bool(self.view.nodes[name].cordoned)) == (
                node.drain_deadline_ns,
                node.cordoned,
            )
        planned = [window for window in self.view.maintenance.values() if not window.cancelled]
        assert {each.name: each.end_ns for each in planned} == {
            name: window.end_ns for name, window in self.state.maintenance.items()
        }


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_both_folds_agree_on_every_job(actions: list[tuple[str, int, str]]) -> None:
    both = Both()
    for action in (("submit", 1, ""), ("pass", 0, ""), *actions):
        both.act(*action)
        both.check()


def test_a_preemption_is_followed_to_its_resume() -> None:
    """Guards the test above against histories in which nothing ever happens."""
    both = Both()
    both.act("lost", 1, "")  # n2: what arrives later must preempt
    states: list[str] = []
    for action in [
        *[("submit", 0, ""), ("pass", 0, ""), ("start", 0, ""), ("pass", 0, ""), ("save", 3, ""), ("pass", 0, "")],
        *[("submit", 4, ""), ("submit", 4, ""), ("pass", 0, "")],
        *[("exit", 0, "suspended"), ("exit", 1, "suspended"), ("exit", 2, "suspended"), ("pass", 0, "")],
        *[("pass", 0, ""), ("start", 0, ""), ("start", 1, ""), ("exit", 0, "completed"), ("pass", 0, "")],
        *[("pass", 0, ""), ("start", 0, ""), ("pass", 0, ""), ("pass", 0, "")],
    ]:
        both.act(*action)
        both.check()
        states.extend(job.state for job in both.view.jobs.values())
    kinds = {type(entry.event).__name__ for job in both.view.jobs.values() for entry in job.timeline.entries()}
    assert {"pending", "placed", "running", "suspending", "suspended", "completed"} <= set(states)
    assert {"PreemptRequested", "RoomReserved", "JobSuspended", "JobResumed", "QuotaChanged"} <= kinds
    assert any(entry.void for job in both.view.jobs.values() for entry in job.timeline.entries())
    first = both.view.jobs["j1"]
    assert (first.preemptions, first.resumed_step, first.state) == (1, 3, "running")
