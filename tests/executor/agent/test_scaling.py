"""The number of simulators of a live sandbox: more are started, the last ones leave, and that is nobody's failure."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tidegate_events.events import Quota, QuotaApplied, SandboxExited, SandboxStarted
from tidegate_events.orders import SandboxOrder
from tidegate_events.spec import Component
from tidegate_executor.attempts import planning, scaling, transitions
from tidegate_executor.attempts.state import AttemptState
from tidegate_executor.sandbox.base import ReplicaExited, ReplicaStarted

from tests.executor.agent.conftest import Agent, Scheduler, component, job, until

SECOND = 1_000_000_000
replace = msgspec.structs.replace


def scaled(order: SandboxOrder, count: int | None) -> SandboxOrder:
    first, *others = order.quotas
    return replace(order, quotas=(replace(first, replicas=count), *others))


def order_of(sim: str = "", learn: str = "", **changes: object) -> SandboxOrder:
    simulator = component("sim", sim, kind="simulator", replicas=2, replicas_max=4)
    return job("s", simulator, component("learn", learn, kind="learner"), **changes)


ORDER = order_of()
SPEC = ORDER.spec


def running(order: SandboxOrder = ORDER) -> AttemptState:
    state = transitions.accept(order, 0, level="trusted", image_digest="", uid_slot=0)
    for replica in state.replicas:
        state = start(state, replica.name)
    return transitions.started(state)


def start(state: AttemptState, name: str) -> AttemptState:
    where, number = name.split(".")
    event = ReplicaStarted(at_ns=0, component=where, replica=int(number), pid=1)
    return transitions.on_history(state, event, state.history_offset + 1, SPEC)


def leave(state: AttemptState, name: str, number: int | None = None, code: int | None = None) -> AttemptState:
    where, replica = name.split(".")
    event = ReplicaExited(at_ns=0, component=where, replica=int(replica), exit_code=code, signal=number)
    return transitions.on_history(state, event, state.history_offset + 1, SPEC)


def todo(state: AttemptState, now_ns: int = 0) -> list[tuple[str, list[str]]]:
    scaling_actions = (planning.Grow, planning.Shrink, planning.Kill)
    actions = planning.plan(state, SPEC, now_ns).actions
    return [(type(a).__name__, [r.name for r in a.replicas]) for a in actions if isinstance(a, scaling_actions)]


@pytest.mark.parametrize(("asked", "count"), [(None, 2), (0, 2), (3, 3), (4, 4), (9, 4)])
def test_what_is_asked_for_counts_within_the_components_bounds(asked: int | None, count: int) -> None:
    state = transitions.accept(scaled(ORDER, asked), 0, level="trusted", image_digest="", uid_slot=0)
    assert len(state.replicas_of("sim")) == count


def test_a_component_without_a_maximum_is_never_scaled() -> None:
    fixed = Component(name="sim", command=("true",), resources=SPEC.components[0].resources, replicas=2)
    state = transitions.on_order(running(), scaled(ORDER, 4))
    assert scaling.wanted(state, fixed) == 2
    assert scaling.most(fixed) == 2


def test_the_lowest_free_numbers_are_started_and_the_highest_leave() -> None:
    state = transitions.on_order(running(), scaled(ORDER, 4))
    assert todo(state) == [("Grow", ["sim.2", "sim.3"])]
    state = scaling.add(state, scaling.to_start(state, SPEC))
    assert todo(state) == [], "they are being started"
    state = start(start(state, "sim.2"), "sim.3")
    state = transitions.on_order(state, scaled(ORDER, 3))
    assert todo(state) == [("Shrink", ["sim.3"])]


def test_one_that_was_told_to_leave_has_its_grace_and_is_no_failure() -> None:
    state = transitions.on_order(running(scaled(ORDER, 4)), scaled(ORDER, 2))
    state = scaling.leave(state, scaling.to_leave(state, SPEC), 0)
    assert todo(state) == []
    assert planning.plan(state, SPEC, 0).wake_ns == scaling.LEAVE_SECONDS * SECOND
    assert todo(state, scaling.LEAVE_SECONDS * SECOND) == [("Kill", ["sim.2", "sim.3"])]
    state = transitions.on_order(state, scaled(ORDER, 4))
    assert todo(state) == [], "their numbers are not free yet"
    state = leave(leave(state, "sim.2", signal.SIGKILL), "sim.3", code=1)
    assert state.failure is None
    assert todo(state) == [("Grow", ["sim.2", "sim.3"])]


def test_one_that_dies_by_itself_is_still_a_failure() -> None:
    state = leave(running(scaled(ORDER, 4)), "sim.3", code=1)
    assert state.failure is not None


def test_nothing_is_scaled_once_the_attempt_is_to_end() -> None:
    state = transitions.on_order(running(), scaled(ORDER, 4))
    state = transitions.on_order(state, replace(ORDER, desired="stop", deadline_ns=SECOND))
    assert todo(state) == []


SIMULATOR = """
import os, pathlib, signal, sys, time
here = pathlib.Path(os.environ["HERE"], os.environ["TIDEGATE_REPLICA"])
here.write_text(str(os.getpid()))
def leave(*_):
    if os.environ["TIDEGATE_REPLICA"] != "2":  # one of them does not leave by itself
        here.unlink()
        sys.exit(3)
signal.signal(signal.SIGTERM, leave)
while True:
    time.sleep(0.05)
"""


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_simulators_of_a_live_sandbox_come_and_go(
    make_agent: Callable[..., Agent], scheduler: Scheduler, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    agent = make_agent()
    await scheduler.joined()
    order = order_of(SIMULATOR, "import time; time.sleep(120)", env={"HERE": str(here)})
    scheduler.want(order)

    def there() -> list[str]:
        return sorted(path.name for path in here.iterdir() if path.read_text())

    await scheduler.first(SandboxStarted, "s")
    await until(lambda: there() == ["0", "1"])
    scheduler.want(scaled(order, 4))
    await until(lambda: there() == ["0", "1", "2", "3"])
    pids = {path.name: int(path.read_text()) for path in here.iterdir()}
    agent.end()  # what it had started is known to the next one
    agent.start()
    await scheduler.joined(2)
    scheduler.want(scaled(order, 2))
    await until(lambda: there() == ["0", "1", "2"])
    await until(lambda: not runs(pids["2"]))
    (here / "2").unlink()
    assert runs(pids["0"])
    assert runs(pids["1"])
    scheduler.want(scaled(order, 3))
    await until(lambda: there() == ["0", "1", "2"])

    async def told() -> bool:
        return (await scheduler.events(QuotaApplied))[-1].quotas[0].replicas == 3

    await until(told)
    assert Quota(component="learn", cpu_millis=500, memory_mib=128) in (await scheduler.events(QuotaApplied))[-1].quotas
    assert await scheduler.events(SandboxExited) == []
