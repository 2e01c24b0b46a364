"""What is told of limits that the kernel takes, and of those that it does not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import structlog
from tidegate_events.clock import SystemClock
from tidegate_events.events import Quota, QuotaApplied, ShrinkRefused
from tidegate_executor import resizing
from tidegate_executor.attempt_memory import AttemptMemory
from tidegate_executor.attempts import planning, transitions
from tidegate_executor.context import Context
from tidegate_executor.sandbox.base import (
    InfrastructureError,
    Limits,
    ReplicaStarted,
    ReplicaStats,
    ResizeRefusedError,
    Sandbox,
    SandboxStats,
)
from tidegate_executor.spool.spool import Spool, SpoolFullError

from tests.executor.agent.conftest import component, job

replace = msgspec.structs.replace
ORDER = job("r", component("sim", "", kind="simulator", replicas=2), component("learn", "", kind="learner"))
LOG = structlog.get_logger()


class Kernel:
    """The control groups of a sandbox: each replica has so much in use that no limit can be lower."""

    def __init__(self) -> None:
        self.limits = {name: Limits(cpu_millis=500, memory_mib=128, pids=9) for name in ("sim.0", "sim.1", "learn.0")}
        self.in_use_mib = dict.fromkeys(self.limits, 10)
        self.gone = False

    async def resize(self, where: str, number: int, limits: Limits) -> Limits:
        name = f"{where}.{number}"
        if limits.memory_mib < self.in_use_mib[name]:
            raise ResizeRefusedError(f"{self.in_use_mib[name]} MiB are in use")
        self.limits[name] = limits
        return limits

    async def stats(self) -> SandboxStats:
        if self.gone:
            raise InfrastructureError("it does not answer")
        return SandboxStats(at_ns=0, limits_enforced=True, frozen=False, replicas=tuple(map(self._stats, self.limits)))

    def _stats(self, name: str) -> ReplicaStats:
        where, number = name.split(".")
        return msgspec.convert(
            {
                **dict.fromkeys(ReplicaStats.__struct_fields__, 0),
                "component": where,
                "replica": int(number),
                "limits": msgspec.to_builtins(self.limits[name]),
            },
            ReplicaStats,
        )


class Disk:
    """Everything is durable at once, unless it is full."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.full = False

    def put(self, events: Any = (), **_more: Any) -> asyncio.Future[None]:
        if self.full:
            raise SpoolFullError("full")
        self.events += events
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


class Node:
    """A running sandbox and its agent's part that resizes it, as often as the plan says."""

    def __init__(self) -> None:
        self.kernel, self.disk = Kernel(), Disk()
        state = transitions.accept(ORDER, 0, level="trusted", image_digest="", uid_slot=0)
        for replica in state.replicas:
            event = ReplicaStarted(at_ns=0, component=replica.component, replica=replica.replica, pid=1)
            state = transitions.on_history(state, event, state.history_offset + 1, ORDER.spec)
        state = replace(transitions.started(state), quotas_reported=ORDER.quotas)
        self.memory = AttemptMemory(cast(Spool, self.disk), ORDER, state)
        self.context = cast(Context, SimpleNamespace(node="n1", clock=SystemClock()))

    async def want(self, memory_mib: int, *, times: int = 1, cpu_millis: int = 500) -> list[Any]:
        quotas = tuple(replace(quota, memory_mib=memory_mib, cpu_millis=cpu_millis) for quota in ORDER.quotas)
        self.memory.change(transitions.on_order(self.memory.state, replace(ORDER, quotas=quotas)))
        told = len(self.disk.events)
        for _ in range(times):
            later = self.context.clock.now_ns() + planning.QUOTA_RETRY_NS
            for action in planning.plan(self.memory.state, ORDER.spec, later).actions:
                if isinstance(action, planning.Resize):
                    await resizing.resize(self.context, self.memory, cast(Sandbox, self.kernel), action.quotas, LOG)
        return self.disk.events[told:]


def limits(event: QuotaApplied | ShrinkRefused) -> dict[str, int]:
    return {quota.component: quota.memory_mib for quota in event.quotas}


async def test_what_the_kernel_keeps_is_told_once_for_each_change() -> None:
    node = Node()
    node.kernel.in_use_mib["sim.1"] = 100
    applied, refused = await node.want(64, times=4)
    assert (type(applied), limits(applied)) == (QuotaApplied, {"sim": 128, "learn": 64})
    assert (type(refused), limits(refused)) == (ShrinkRefused, {"sim": 128, "learn": 64}), "all that hold, by the most"
    assert (refused.rank, refused.node) == (0, "n1")
    applied, again = await node.want(72, times=3)
    assert (limits(applied), limits(again)) == ({"sim": 128, "learn": 72},) * 2
    node.kernel.in_use_mib["sim.1"] = 10
    (done,) = await node.want(72)
    assert (type(done), limits(done)) == (QuotaApplied, {"sim": 72, "learn": 72})
    assert await node.want(72, times=3) == []
    node.kernel.in_use_mib["learn.0"] = 70
    assert [type(event) for event in await node.want(64)] == [QuotaApplied, ShrinkRefused], "another one is told"
    assert [type(event) for event in await node.want(72)] == [QuotaApplied]
    assert [type(event) for event in await node.want(64)] == [QuotaApplied, ShrinkRefused], "and again after that"


async def test_memory_in_use_keeps_nobody_from_cpu_nor_the_other_replicas_from_their_limits() -> None:
    node = Node()
    node.kernel.in_use_mib["sim.0"] = 100
    await node.want(64, cpu_millis=900)
    held = {name: (limits.cpu_millis, limits.memory_mib) for name, limits in node.kernel.limits.items()}
    assert held == {"sim.0": (900, 128), "sim.1": (900, 64), "learn.0": (900, 64)}
    (refused,) = [event for event in node.disk.events if isinstance(event, ShrinkRefused)]
    assert [(quota.cpu_millis, quota.memory_mib) for quota in refused.quotas] == [(900, 128), (900, 64)]


async def test_what_cannot_be_read_is_told_with_the_next_try() -> None:
    node = Node()
    node.kernel.gone = True
    assert await node.want(64, times=2) == []
    node.kernel.gone = False
    assert [type(event) for event in await node.want(64)] == [QuotaApplied]


async def test_what_there_was_no_room_to_tell_is_told_later() -> None:
    node = Node()
    node.kernel.in_use_mib["sim.0"] = 100
    node.disk.full = True
    assert await node.want(64, times=2) == []
    assert node.memory.state.shrinks_refused == ()
    node.disk.full = False
    assert [type(event) for event in await node.want(64)] == [QuotaApplied, ShrinkRefused]
    assert all(isinstance(quota, Quota) for quota in node.memory.state.shrinks_refused)
