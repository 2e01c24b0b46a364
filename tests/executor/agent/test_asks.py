"""When a phase that was asked for may be entered: the plan alone, whatever happens in whatever order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tidegate_events.events import Quota
from tidegate_events.orders import SandboxOrder
from tidegate_events.resources import Resources
from tidegate_events.spec import ResourceRange
from tidegate_executor import granting
from tidegate_executor.attempts import asks, entry, phases, planning, transitions
from tidegate_executor.attempts.asks import Ask
from tidegate_executor.attempts.phases import DWELL_NS
from tidegate_executor.attempts.state import AttemptState, decode, encode
from tidegate_executor.sandbox.base import ReplicaExited, ReplicaStarted

from tests.executor.agent.conftest import component, job

SECOND = 1_000_000_000
T0 = 1_000 * SECOND
replace = msgspec.structs.replace

NEEDS = {
    "default": ResourceRange(minimum=Resources(500, 64)),
    "learning": ResourceRange(minimum=Resources(500, 256, gpus=1)),  # of each of two components
    "sampling": ResourceRange(minimum=Resources(500, 64)),
}
ORDER = job("a", component("sim", "", kind="simulator"), component("learn", "", kind="learner"), phase_entry="asked")
ORDER = replace(
    ORDER, spec=replace(ORDER.spec, components=tuple(replace(c, resources=NEEDS) for c in ORDER.spec.components))
)
SPEC = ORDER.spec
LOW, HIGH = ORDER.quotas, tuple(replace(quota, memory_mib=256) for quota in ORDER.quotas)


def running() -> AttemptState:
    state = transitions.accept(ORDER, 0, level="unisolated", image_digest="", uid_slot=0)
    for replica in state.replicas:
        event = ReplicaStarted(at_ns=0, component=replica.component, replica=replica.replica, pid=1)
        state = transitions.on_history(state, event, state.history_offset + 1, SPEC)
    return transitions.on_order(transitions.started(state), ORDER, 1)


def asking(state: AttemptState, phase: str, client: str = "c", who: str = "learn", seq: int = 1) -> AttemptState:
    new = Ask(client=client, seq=seq, component=who, replica=0, phase=phase, is_main=who == "learn")
    return replace(state, asks=asks.ask(state.asks, new))


def withdrawn(state: AttemptState, client: str = "c") -> AttemptState:
    return replace(state, asks=asks.withdraw(state.asks, client))


def entering(state: AttemptState, phase: str | None, now_ns: int, client: str = "c") -> AttemptState:
    if phase is not None:
        state = withdrawn(state, client)
    speaker = phases.Speaker(client=client, component="learn", replica=int(client == "d"), is_main=True)
    return replace(state, phase=phases.say(state.phase, speaker, phase, None, now_ns))


def ordered(state: AttemptState, at_seq: int, phase: str = "", **changes: Any) -> AttemptState:
    order: SandboxOrder = replace(ORDER, phase=phase, **changes)
    return transitions.on_order(state, order, at_seq)


def applied(state: AttemptState) -> AttemptState:
    return transitions.quotas_applied(state, state.quotas_wanted, state.quotas_wanted)


def facts_of(state: AttemptState, now_ns: int) -> list[str]:
    return [
        f"ask {action.phase}" if isinstance(action, planning.SayAsk) else "phase"
        for action in planning.plan(state, SPEC, now_ns).actions
        if isinstance(action, planning.SayAsk | planning.SayPhase)
    ]


def say(state: AttemptState, now_ns: int, seq: int | None = None) -> tuple[AttemptState, list[str]]:
    """Do what the plan says of facts until nothing is left, as the runner does; `seq` is theirs in the journal."""
    said: list[str] = []
    while facts := facts_of(state, now_ns):
        if facts[0] == "phase":
            state = transitions.phase_told(state, now_ns)
            said.append(f"in {state.phase.journaled}")
        else:
            state = replace(state, asks=asks.tell(state.asks, facts[0].removeprefix("ask "), now_ns))
            said.append(facts[0])
            if seq is not None:
                state = replace(state, asks=asks.journaled(state.asks, now_ns, seq))
    return state, said


def answered(state: AttemptState) -> list[str]:
    return [each.client for each in entry.entitled(state)]


def in_learning() -> tuple[AttemptState, int]:
    state, _ = say(asking(running(), "learning"), T0, seq=5)
    state = entering(applied(ordered(state, 6, "learning", quotas=HIGH, gpu_indices=(3,))), "learning", T0)
    state, said = say(state, T0)
    assert said == ["in learning"]
    return ordered(state, 7, quotas=HIGH, gpu_indices=(3,)), T0 + 10 * SECOND


def test_an_ask_is_told_once_and_granted_by_an_order_whose_limits_hold() -> None:
    state, said = say(asking(running(), "learning"), T0, seq=5)
    assert said == ["ask learning"]
    assert say(state, T0 + SECOND)[1] == [], "told once"
    state = ordered(state, 6, "learning", quotas=HIGH, gpu_indices=(3,))
    assert answered(state) == [], "the kernel does not hold them yet"
    state = replace(state, gpu_indices=(3, 4, 5))  # the last is that of the phase before, and goes with it
    state = applied(state)
    assert granting.answers(state, ORDER) == {
        "c": {
            "seq": 1,
            "phase": "learning",
            "environment": {
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES": "3,4",
                "TIDEGATE_GPU_MILLIS": "1000",
            },
        }
    }
    state, said = say(entering(state, "learning", T0 + SECOND), T0 + SECOND)
    assert said == ["in learning"]
    assert (state.asks.told, state.asks.waiting) == ("", ())


def test_an_order_from_before_the_ask_is_no_grant() -> None:
    state, _ = say(asking(running(), "learning"), T0)
    state = applied(ordered(state, 9, "learning"))
    assert answered(state) == [], "the ask is not in the journal yet"
    state = replace(state, asks=asks.journaled(state.asks, T0, 10))
    assert answered(state) == [], "it names an earlier grant"
    assert answered(ordered(state, 10, "learning")) == ["c"]
    assert answered(ordered(state, 10, "sampling")) == []


def test_who_waits_no_longer_is_told_and_not_granted() -> None:
    state, _ = say(asking(running(), "learning"), T0, seq=5)
    state = withdrawn(state)
    assert say(state, T0 + 1)[1] == [], "facts about asks keep their distance"
    assert planning.plan(state, SPEC, T0 + 1).wake_ns == T0 + asks.TOLD_NS
    state, said = say(state, T0 + asks.TOLD_NS, seq=6)
    assert said == ["ask "]
    assert answered(applied(ordered(state, 7, "learning"))) == []


def test_while_it_waits_the_phase_before_is_left_and_the_ask_is_told_anew() -> None:
    state, now = in_learning()
    state = entering(state, None, now)
    state, said = say(asking(state, "sampling", seq=2), now, seq=8)
    assert said == ["ask sampling"]
    between = applied(ordered(transitions.phase_told(state, now + DWELL_NS), 8, "sampling"))
    assert answered(between) == [], "it is void with the change, and not told anew yet"
    state, said = say(state, now + DWELL_NS, seq=9)
    assert said == ["in default", "ask sampling"], "a change of the phase ends what was asked for"
    assert answered(applied(ordered(state, 8, "sampling"))) == []
    assert answered(applied(ordered(state, 9, "sampling"))) == ["c"]


def test_who_is_granted_at_once_passes_through_no_phase() -> None:
    state, now = in_learning()
    state, _ = say(asking(entering(state, None, now), "sampling", seq=2), now, seq=8)
    state = applied(ordered(state, 8, "sampling"))
    assert answered(state) == ["c"]
    assert say(state, now + 10 * DWELL_NS)[1] == []
    state = entering(state, "sampling", now + DWELL_NS)
    assert entry.to_tell(state) is None, "that it waits no longer follows from where it is"
    state, said = say(state, now + DWELL_NS)
    assert said == ["in sampling"]


def test_who_comes_back_at_once_needs_no_fact_unless_the_lease_is_recalled() -> None:
    state, now = in_learning()
    state = asking(entering(state, None, now), "learning", seq=2)
    assert answered(state) == ["c"]
    assert say(state, now + 10 * DWELL_NS)[1] == []
    recalled = ordered(state, 8, quotas=HIGH, gpu_indices=(3,), hand_back_ns=now + 30 * SECOND)
    assert answered(recalled) == []
    recalled, said = say(recalled, now, seq=9)
    assert said == ["in default", "ask learning"], "leaving is the answer, and is told at once"
    assert answered(applied(ordered(recalled, 10, "learning"))) == ["c"]


def test_memory_that_the_kernel_keeps_does_not_keep_anybody_from_the_next_phase() -> None:
    state, now = in_learning()
    state, _ = say(asking(entering(state, None, now), "sampling", seq=2), now, seq=8)
    state = ordered(state, 8, "sampling", quotas=LOW)
    assert answered(state) == []
    assert answered(replace(state, shrinks_refused=LOW[:1])) == []
    assert answered(replace(state, shrinks_refused=LOW)) == ["c"]
    assert answered(replace(state, shrinks_refused=HIGH)) == [], "that was another order"


def test_nothing_is_granted_while_it_is_asked_to_leave() -> None:
    state, _ = say(asking(running(), "learning"), T0, seq=5)
    state = applied(ordered(state, 6, "learning"))
    assert answered(ordered(state, 7, "learning", desired="suspend", deadline_ns=T0 + SECOND)) == []


def test_those_who_ask_for_the_same_go_together_and_the_others_after_them() -> None:
    state = running()
    for client, phase in (("a", "learning"), ("b", "sampling"), ("c", "learning")):
        state = asking(state, phase, client)
    state, _ = say(state, T0, seq=5)
    state = applied(ordered(state, 6, "learning"))
    assert answered(state) == ["a", "c"]
    state = entering(entering(state, "learning", T0, "a"), "learning", T0, "c")
    state, said = say(state, T0 + SECOND, seq=7)
    assert said == ["in learning"]
    state = entering(state, None, T0 + 2 * SECOND, "a")
    assert say(state, T0 + 3 * SECOND)[1] == [], "the other is in it still"
    state, said = say(entering(state, None, T0 + 3 * SECOND, "c"), T0 + 3 * SECOND, seq=7)
    assert said == ["ask sampling"]
    assert answered(applied(ordered(state, 8, "sampling"))) == ["b"]


def told_answers(state: AttemptState) -> AttemptState:
    return replace(state, asks=asks.answer(state.asks, entry.entitled(state)))


def two_in_learning() -> tuple[AttemptState, int]:
    state, _ = say(asking(asking(running(), "learning", "c"), "learning", "d"), T0, seq=5)
    state = told_answers(applied(ordered(state, 6, "learning", quotas=HIGH, gpu_indices=(3,))))
    assert answered(state) == ["c", "d"]
    return say(entering(state, "learning", T0, "c"), T0)[0], T0 + 10 * SECOND


def recalled(state: AttemptState, now: int) -> AttemptState:
    return ordered(state, 8, quotas=HIGH, gpu_indices=(3,), hand_back_ns=now + 30 * SECOND)


@pytest.mark.parametrize("killed", [False, True])
def test_what_two_were_granted_is_handed_back_when_both_have_left(killed: bool) -> None:
    state, now = two_in_learning()
    state = entering(entering(state, "learning", T0, "d"), None, now, "c")
    if killed:
        state = entry.restarted(decode(bytes(encode(state))), now)
    assert say(recalled(state, now), now + SECOND)[1] == [], "the other computes on them"
    assert say(state, now + SECOND)[1] == []
    state = entering(recalled(state, now), None, now + 2 * SECOND, "d")
    assert say(state, now + 2 * SECOND)[1] == ["in default"]


@pytest.mark.parametrize("killed", [False, True])
def test_who_was_told_that_it_may_enter_is_waited_for(killed: bool) -> None:
    state, now = two_in_learning()
    state = recalled(entering(state, None, now, "c"), now)
    if killed:
        state = recalled(entry.restarted(decode(bytes(encode(state))), now), now)
    assert answered(state) == ["d"], "the answer stands, also on the next connection"
    assert say(state, now + SECOND)[1] == []
    late = say(entering(state, "learning", now + SECOND, "d"), now + SECOND)[0]
    assert late.phase.journaled == "learning"
    event = ReplicaExited(at_ns=now, component="learn", replica=0, exit_code=None, signal=9)
    assert say(transitions.on_history(state, event, 9, SPEC), now + SECOND)[1] == ["in default"]


def test_a_process_that_stays_away_has_left_its_phase() -> None:
    state, now = two_in_learning()
    state = entering(withdrawn(state, "d"), "learning", T0, "d")
    state = recalled(entering(state, None, now, "c"), now)
    state = replace(state, phase=phases.away(state.phase, "d", now))
    later = now + phases.AWAY_NS
    assert planning.ForgetAway() not in planning.plan(state, SPEC, later - 1).actions
    assert planning.plan(state, SPEC, later - 1).wake_ns == later
    assert planning.ForgetAway() in planning.plan(state, SPEC, later).actions
    assert say(entry.forget_away(state, later), later)[1] == ["in default"]


def test_a_process_that_does_not_speak_for_the_member_is_answered_at_once() -> None:
    state = asking(running(), "sampling", "s", who="sim")
    assert entry.to_tell(state) == "sampling", "nobody else has spoken"
    state = asking(state, "learning", "l")
    assert answered(state) == ["s"]
    assert say(state, T0)[1] == ["ask learning"]


def test_a_replica_that_exits_waits_for_nothing() -> None:
    state, _ = say(asking(running(), "learning"), T0, seq=5)
    event = ReplicaExited(at_ns=T0, component="learn", replica=0, exit_code=None, signal=9)
    assert transitions.on_history(state, event, 9, SPEC).asks.waiting == ()


def test_a_process_that_does_not_come_back_waits_for_nothing() -> None:
    state = asking(running(), "learning")
    state = replace(state, asks=asks.away(state.asks, "c", T0))
    assert planning.ForgetAway() not in planning.plan(state, SPEC, T0 + asks.AWAY_NS - 1).actions
    assert planning.ForgetAway() in planning.plan(state, SPEC, T0 + asks.AWAY_NS).actions
    back = replace(state, asks=asks.back(state.asks, "c"))
    assert planning.ForgetAway() not in planning.plan(back, SPEC, T0 + asks.AWAY_NS).actions
    assert asks.forget_away(state.asks, T0 + asks.AWAY_NS).waiting == ()


def test_after_a_restart_the_ask_stands_and_only_a_new_order_grants_it() -> None:
    state, _ = say(asking(running(), "learning"), T0)
    state = applied(ordered(state, 6, "learning"))
    again = entry.restarted(decode(bytes(encode(state))), T0 + SECOND)
    assert answered(again) == []
    assert say(again, T0 + SECOND)[1] == [], "it was told before"
    assert answered(ordered(again, 2, "learning")) == ["c"]
    assert asks.forget_away(again.asks, T0 + SECOND + asks.AWAY_NS).waiting == ()


STEPS = st.lists(
    st.sampled_from(
        ["ask learning", "ask sampling", "withdraw", "leave", "enter", "order", "grant", "apply", "wait", "kill"]
    ),
    max_size=60,
)


@given(STEPS)
@example(["ask learning", "grant", "order", "grant", "enter"])
@settings(max_examples=300)
def test_nobody_enters_what_was_not_granted_whenever_the_agent_is_killed(steps: list[str]) -> None:
    """A scheduler that grants some asks, a process that does as it may, an agent that is killed between any two steps.

    `allowed` is what the journal granted last, and until a change of the phase or another ask voids it.
    """
    state, now, seq, held = running(), T0, 10, ["default"]
    wanted = granted = ""
    for step in steps:
        now += DWELL_NS // 3
        seq += 1
        state = told_answers(state)
        if step.startswith("ask ") and state.phase.current == "default":
            state = asking(state, step.removeprefix("ask "), seq=seq)
        elif step == "withdraw":
            state = withdrawn(state)
        elif step == "leave":
            state = entering(state, None, now)
        elif step == "enter":
            for each in entry.entitled(state):
                assert each.phase in (granted, state.phase.journaled), "it enters only what is its own"
                assert state.quotas_asked == state.quotas_wanted
                state = entering(state, each.phase, now, each.client)
        elif step == "grant" and wanted:
            granted = wanted
            state = ordered(state, seq, granted, quotas=HIGH if granted == "learning" else LOW)
        elif step == "order":
            # A grant stands with its limits until it is used.
            state = ordered(state, seq, granted, quotas=HIGH if (granted or held[-1]) == "learning" else LOW)
        elif step == "apply":
            state = applied(state)
        elif step == "wait":
            now += 2 * DWELL_NS
        elif step == "kill":
            assert planning.plan(decode(bytes(encode(state))), SPEC, now) == planning.plan(state, SPEC, now)
            state = entry.restarted(decode(bytes(encode(state))), now)
            state = replace(state, asks=asks.back(state.asks, "c"))
        state, said = say(state, now, seq)
        for fact in said:
            if fact.startswith("in "):
                held.append(fact.removeprefix("in "))
                wanted = granted = ""
            else:
                wanted, granted = fact.removeprefix("ask "), ""
    state, _ = say(state, now + SECOND, seq + 1)
    if state.asks.waiting and state.phase.current == "default":
        state = applied(ordered(state, seq + 2, state.asks.told))
        assert answered(state) == ["c"], "whoever waits is let in by the next grant"


def test_a_process_that_starts_sees_the_devices_of_its_phase() -> None:
    state = ordered(running(), 3, gpu_indices=(3, 4))
    assert granting.with_devices(ORDER, state).gpu_indices == (), "the default phase needs none"
    learning, _ = in_learning()
    assert granting.with_devices(ORDER, replace(learning, gpu_indices=(6, 7, 8))).gpu_indices == (6, 7)
    told = replace(ORDER, spec=replace(SPEC, phase_entry="told"), gpu_indices=(3, 4))
    assert granting.with_devices(told, replace(state, gpu_indices=None)).gpu_indices == (3, 4)


@pytest.mark.parametrize("phase", ["learning", ""])
def test_quotas_of_an_order_travel_with_its_phase(phase: str) -> None:
    state = ordered(running(), 3, phase, quotas=HIGH, hand_back_ns=7)
    assert (state.granted, state.hand_back_ns, state.order_seq) == (phase, 7, 3)
    assert not entry.limits_hold(state)
    assert entry.limits_hold(applied(state))
    assert all(isinstance(quota, Quota) for quota in state.quotas_wanted)
