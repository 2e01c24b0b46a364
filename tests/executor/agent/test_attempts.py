"""The attempt's state machine: what it does next, and what its end means, whatever happens in whatever order."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_events.orders import SandboxOrder
from tidegate_events.spec import PreemptionRule
from tidegate_executor.attempts import planning, transitions
from tidegate_executor.attempts.outcome import classify
from tidegate_executor.attempts.state import AttemptState, Failure, decode, encode
from tidegate_executor.attempts.wording import plain
from tidegate_executor.sandbox.base import ReplicaExited, ReplicaStarted, SandboxEnded

from tests.executor.agent.conftest import component, job

SECOND = 1_000_000_000
ORDER = job(
    "j",
    component("sim", "", kind="simulator", replicas=2, restart="on_failure"),
    component("helper", "", kind="buffer"),
    component("learn", "", kind="learner"),
)
SPEC = ORDER.spec


def accepted() -> AttemptState:
    return transitions.accept(ORDER, 0, level="trusted", image_digest="b3:0", uid_slot=0)


def started(state: AttemptState, *names: str) -> AttemptState:
    for replica in state.replicas:
        if not names or replica.name in names:
            event = ReplicaStarted(at_ns=0, component=replica.component, replica=replica.replica, pid=1)
            state = transitions.on_history(state, event, state.history_offset + 1, SPEC)
    return state


def exited(
    state: AttemptState,
    name: str,
    code: int | None = 0,
    *,
    signal: int | None = None,
    at_ns: int = 0,
    **more: bool,
) -> AttemptState:
    where, number = name.split(".")
    event = ReplicaExited(at_ns=at_ns, component=where, replica=int(number), exit_code=code, signal=signal, **more)
    return transitions.on_history(state, event, state.history_offset + 1, SPEC)


def running() -> AttemptState:
    return transitions.started(started(accepted()))


def asked(state: AttemptState, desired: str = "suspend", deadline_ns: int = 30 * SECOND) -> AttemptState:
    return transitions.on_order(state, ordered(desired, deadline_ns))


def ordered(desired: str, deadline_ns: int = 0) -> SandboxOrder:
    return msgspec.structs.replace(ORDER, desired=desired, deadline_ns=deadline_ns)


def kinds(state: AttemptState, now_ns: int = SECOND) -> list[str]:
    return [type(action).__name__ for action in planning.plan(state, SPEC, now_ns).actions]


def over(state: AttemptState, reason: str = "stopped") -> AttemptState:
    return transitions.on_history(state, SandboxEnded(at_ns=0, reason=reason), state.history_offset + 1, SPEC)  # type: ignore[arg-type]


replace = msgspec.structs.replace

OUTCOMES = [
    ("exit 0", lambda: exited(running(), "learn.0"), "completed"),
    ("exit 1", lambda: exited(running(), "learn.0", 1), "failed"),
    ("killed", lambda: exited(running(), "learn.0", None, signal=9), "failed"),
    ("exit 75 that nobody asked for", lambda: exited(running(), "learn.0", 75), "failed"),
    ("exit 0 under a request", lambda: exited(asked(running()), "learn.0"), "stopped"),
    ("exit 1 under a request", lambda: exited(asked(running()), "learn.0", 1), "stopped"),
    ("exit 75 under a request", lambda: exited(asked(running()), "learn.0", 75), "suspended"),
    ("exit 75 under a cancel", lambda: exited(asked(running(), "stop"), "learn.0", 75), "suspended"),
    (
        "acknowledged, then killed",
        lambda: exited(replace(asked(running()), acknowledged=True), "learn.0", None, signal=9),
        "suspended",
    ),
    ("acknowledged without a request", lambda: exited(replace(running(), acknowledged=True), "learn.0", 75), "failed"),
    ("finished", lambda: exited(replace(running(), finished=True), "learn.0", 1), "completed"),
    ("finished under a request", lambda: exited(replace(asked(running()), finished=True), "learn.0"), "completed"),
    ("killed at the deadline", lambda: exited(asked(running()), "learn.0", None, signal=9, stopping=True), "stopped"),
    (
        "helper died",
        lambda: exited(exited(running(), "helper.0", 4), "learn.0", None, signal=15, stopping=True),
        "failed",
    ),
    ("the node broke", lambda: transitions.fail(asked(running()), "infrastructure", "no"), "lost"),
    ("vanished", lambda: over(running(), "collapsed"), "lost"),
    ("ended before main", lambda: over(running()), "lost"),
    ("asked before it began", lambda: asked(accepted(), "stop"), "stopped"),
]


@pytest.mark.parametrize(("what", "made", "outcome"), OUTCOMES, ids=[case[0] for case in OUTCOMES])
def test_what_an_end_means(what: str, made, outcome: str) -> None:  # type: ignore[no-untyped-def]
    ending = classify(made(), SPEC)
    assert ending.outcome == outcome
    assert ending.acknowledged == (outcome == "suspended")


def test_the_reason_of_a_failure_is_the_component_that_died_first() -> None:
    state = exited(running(), "helper.0", None, signal=9, oom=True)
    ending = classify(exited(state, "learn.0", 0), SPEC)
    assert ending.detail == "component helper replica 0 ended with signal 9, over its memory limit"
    assert (ending.signal, ending.oom) == (9, True)


def test_a_component_that_may_restart_does_so_a_few_times_with_growing_waits() -> None:
    state = running()
    waits = []
    while True:
        state = exited(state, "sim.0", 1)
        replica = state.replicas[0]
        if replica.is_done:
            break
        waits.append(replica.not_before_ns / SECOND)
        assert "Start" not in kinds(state, replica.not_before_ns - 1)
        assert "Start" in kinds(state, replica.not_before_ns)
        state = transitions.order_starts(state, ["sim.0"])
        state = started(state, "sim.0")
    assert waits == [1, 2, 4]
    assert state.failure is not None
    assert "after 3 restarts" in state.failure.detail


def test_a_job_that_never_spoke_is_asked_by_sigterm_and_one_that_did_is_not() -> None:
    plain = asked(running())
    assert planning.EndSandbox(29.0) in planning.plan(plain, SPEC, SECOND).actions
    speaking = asked(transitions.connect(running(), "learn", 0))
    assert kinds(speaking) == ["AskToLeave"]
    assert planning.plan(speaking, SPEC, SECOND).wake_ns == 30 * SECOND
    assert planning.EndSandbox(0.0) in planning.plan(speaking, SPEC, 30 * SECOND).actions


def test_after_an_anomaly_what_speaks_may_save_before_anything_is_killed() -> None:
    died_ns = 10 * SECOND
    broken = exited(transitions.connect(running(), "learn", 0), "helper.0", 4, at_ns=died_ns)
    (request,) = planning.plan(broken, SPEC, died_ns).actions
    assert request == planning.AskToLeave("component helper replica 0 ended with exit code 4", died_ns + 30 * SECOND)
    assert planning.plan(broken, SPEC, died_ns).wake_ns == died_ns + 30 * SECOND
    assert planning.EndSandbox(0.0) in planning.plan(broken, SPEC, died_ns + 30 * SECOND).actions
    left = exited(broken, "learn.0", 75)
    assert planning.EndSandbox(planning.REST_GRACE_SECONDS) in planning.plan(left, SPEC, died_ns).actions
    assert classify(left, SPEC).outcome == "failed"
    assert "helper" in classify(left, SPEC).detail


def test_after_an_anomaly_what_never_spoke_has_the_jobs_grace_too_and_an_order_may_shorten_it() -> None:
    broken = exited(running(), "helper.0", 4, at_ns=SECOND)
    assert planning.EndSandbox(30.0) in planning.plan(broken, SPEC, SECOND).actions
    assert planning.EndSandbox(2.0) in planning.plan(asked(broken, "stop", 3 * SECOND), SPEC, SECOND).actions
    patient = msgspec.structs.replace(SPEC, preemption=PreemptionRule(grace_seconds=10**6))
    graces = [a.grace_seconds for a in planning.plan(broken, patient, SECOND).actions if hasattr(a, "grace_seconds")]
    assert graces == [planning.ANOMALY_GRACE_SECONDS_MAX]


def test_a_member_that_left_because_another_failed_says_so() -> None:
    failure = Failure(fault="infrastructure", detail="the disk is full")
    left = exited(running(), "learn.0", 75)
    assert classify(transitions.peer_failed(left, SPEC, failure), SPEC).outcome == "lost"
    assert "another member failed: the disk" in classify(transitions.peer_failed(left, SPEC, failure), SPEC).detail
    done = exited(running(), "learn.0", 0)
    assert transitions.peer_failed(done, SPEC, failure) is done
    suspended = exited(asked(running()), "learn.0", 75)
    assert transitions.peer_failed(suspended, SPEC, failure) is suspended


def test_no_text_of_others_is_more_than_an_event_can_hold() -> None:
    text = plain("a\udcff\0" + "x" * 5000, 100)
    assert text.startswith("a\\udcff\\x00x")
    assert len(text) == 100
    msgspec.json.encode(transitions.fail(running(), "infrastructure", "\udcff"))


def test_a_stop_is_final_and_a_cancel_outweighs_a_suspension() -> None:
    state = asked(running(), "stop", 5)
    state = transitions.on_order(state, ordered("suspend", 9))
    state = transitions.on_order(state, ordered("run"))
    assert state.stop is not None
    assert (state.stop.desired, state.stop.deadline_ns) == ("stop", 9)


REPLICAS = ["sim.0", "sim.1", "helper.0", "learn.0"]
EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("exit"), st.sampled_from(["sim.0", "sim.1", "helper.0", "learn.0"]), st.sampled_from([0, 1, 75])
        ),
        st.tuples(st.just("order"), st.sampled_from(["run", "suspend", "stop"]), st.integers(0, 20)),
        st.tuples(st.just("connect"), st.sampled_from(["sim", "learn"]), st.just(0)),
        st.tuples(st.just("say"), st.sampled_from(["acknowledged", "finished"]), st.just(0)),
        st.tuples(st.just("time"), st.just(""), st.integers(1, 10)),
        st.tuples(st.just("reload"), st.just(""), st.just(0)),
        st.tuples(st.just("collapse"), st.just(""), st.just(0)),
    ),
    max_size=25,
)


class Node:
    """A sandbox in numbers: does what the plan says, at once, and records what must never be."""

    def __init__(self) -> None:
        self.state = accepted()
        self.now_ns = 0
        self.alive: set[str] = set()
        self.kill_at: float | None = None
        self.concluded = False
        for replica in self.state.replicas:
            self._spawn(replica.name)

    def _spawn(self, name: str) -> None:
        assert name not in self.alive
        assert not self.state.sandbox_over
        self.alive.add(name)
        self.state = started(self.state, name)

    def exit(self, name: str, code: int | None, *, stopping: bool = False) -> None:
        if name in self.alive:
            self.alive.discard(name)
            signal = 9 if code is None else None
            self.state = exited(self.state, name, code, signal=signal, stopping=stopping or self.kill_at is not None)

    def step(self) -> None:
        for action in planning.plan(self.state, SPEC, self.now_ns).actions:
            if isinstance(action, planning.ReportStarted):
                self.state = transitions.started(self.state)
            elif isinstance(action, planning.Start):
                assert self.state.stop is None
                assert self.state.failure is None
                names = [replica.name for replica in action.replicas]
                self.state = transitions.order_starts(self.state, names)
                for name in names:
                    self._spawn(name)
            elif isinstance(action, planning.EndSandbox):
                at = self.now_ns + action.grace_seconds * SECOND
                if self.state.stop is not None:
                    assert at <= max(self.state.stop.deadline_ns, self.now_ns) + 1000
                self.kill_at = at if self.kill_at is None else min(self.kill_at, at)
                self.state = transitions.ending(self.state)
            elif isinstance(action, planning.Conclude):
                assert not self.alive
                self.concluded = True
        if self.kill_at is not None and self.now_ns >= self.kill_at and not self.state.sandbox_over:
            for name in sorted(self.alive):
                self.exit(name, None, stopping=True)
            self.state = over(self.state)


@given(EVENTS)
@settings(max_examples=300, deadline=None)
def test_every_attempt_comes_to_an_end_that_fits_its_history(events: list[tuple[str, str, int]]) -> None:
    node = Node()
    for what, name, number in events:
        node.step()
        if node.concluded:
            break
        if what == "exit":
            node.exit(name, number)
        elif what == "order":
            node.state = transitions.on_order(node.state, ordered(name, node.now_ns + number * SECOND))
        elif what == "connect":
            node.state = transitions.connect(node.state, name, 0)
        elif what == "say":
            node.state = replace(node.state, **{name: True})
        elif what == "time":
            node.now_ns += number * SECOND
        elif what == "reload":
            node.state = decode(encode(node.state))
        elif not node.state.sandbox_over:
            for each in sorted(node.alive):
                node.exit(each, None)
            node.state = over(node.state, "collapsed")
    node.exit("learn.0", 0)
    for _ in range(60):
        node.step()
        if node.concluded:
            break
        if "learn.0" in node.alive:
            node.exit("learn.0", 0)
        node.now_ns += SECOND
    assert node.concluded
    _check(node.state)


def _check(state: AttemptState) -> None:
    ending = classify(state, SPEC)
    main = state.replicas_of("learn")[0]
    assert all(replica.starts <= 1 + transitions.RESTARTS_MAX for replica in state.replicas)
    if ending.outcome == "suspended":
        assert state.stop is not None
        assert state.acknowledged or main.exit_code == 75
    if ending.outcome == "completed":
        assert state.finished or (main.exit_code == 0 and state.stop is None)
    if ending.outcome == "failed":
        assert state.stop is None
        assert state.failure is not None or main.failed
    if ending.outcome == "lost":
        assert state.collapsed or not main.is_done
