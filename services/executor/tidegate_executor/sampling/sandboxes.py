"""Reads the control groups of every running replica, through the sandbox port and a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog
from tidegate_events.telemetry import SandboxSample

from tidegate_executor.attempts.state import AttemptState
from tidegate_executor.sampling.stamp import Stamp
from tidegate_executor.sandbox.base import InfrastructureError, ReplicaStats, Sandbox, SandboxStats

AT_ONCE_MAX = 8
ANSWER_SECONDS_MAX = 1.0
MIB = 1024 * 1024

log = structlog.get_logger()
_Key = tuple[str, str, int, int]


class SandboxReader:
    """Remembers each replica's CPU time, because a rate needs two readings."""

    def __init__(self) -> None:
        self._before: dict[_Key, tuple[int, int]] = {}

    async def read(self, running: Iterable[tuple[AttemptState, Sandbox]], stamp: Stamp) -> list[SandboxSample]:
        """Return a sample of every replica whose sandbox answers in time; the others are missing this once."""
        gate = asyncio.Semaphore(AT_ONCE_MAX)
        async with asyncio.TaskGroup() as tasks:
            asked = [(state, tasks.create_task(_ask(sandbox, gate))) for state, sandbox in running]
        seen: dict[_Key, tuple[int, int]] = {}
        samples: list[SandboxSample] = []
        for state, task in asked:
            stats = task.result()
            if stats is None or not stats.limits_enforced:
                continue  # without control groups the kernel counts nothing for it
            for replica in stats.replicas:
                samples.append(self._sample(state, replica, stats.at_ns, stamp))
                seen[_key(state, replica)] = (replica.cpu_usec, stats.at_ns)
        self._before = seen
        return samples

    def _sample(self, state: AttemptState, replica: ReplicaStats, at_ns: int, stamp: Stamp) -> SandboxSample:
        gauges = {
            "memory_bytes": float(replica.memory_bytes),
            "memory_peak_bytes": float(replica.memory_peak_bytes),
            "processes": float(replica.processes),
        }
        before = self._before.get(_key(state, replica))
        if before is not None and at_ns > before[1]:
            gauges["cpu_cores"] = max(0.0, (replica.cpu_usec - before[0]) * 1000 / (at_ns - before[1]))
        if replica.limits is not None:
            gauges["cpu_limit_cores"] = replica.limits.cpu_millis / 1000
            gauges["memory_limit_bytes"] = float(replica.limits.memory_mib * MIB)
        counters = {
            "cpu_seconds": replica.cpu_usec / 1_000_000,
            "cpu_periods": float(replica.cpu_periods),
            "cpu_throttled_periods": float(replica.cpu_throttled_periods),
            "cpu_throttled_seconds": replica.cpu_throttled_usec / 1_000_000,
            "memory_limit_hits": float(replica.memory_limit_hits),
            "oom_kills": float(replica.oom_kills),
            "calls_refused": float(replica.calls_refused),
        }
        return SandboxSample(
            **stamp.next(at_ns),
            tenant=state.tenant,
            job=state.job,
            attempt=state.attempt,
            rank=state.rank,
            component=replica.component,
            replica=replica.replica,
            gauges=gauges,
            counters=counters,
        )


def _key(state: AttemptState, replica: ReplicaStats) -> _Key:
    return state.id, replica.component, replica.replica, replica.pid


async def _ask(sandbox: Sandbox, gate: asyncio.Semaphore) -> SandboxStats | None:
    async with gate:
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await sandbox.stats()
        except (InfrastructureError, TimeoutError) as error:  # it ends, or is busy: the next round tells
            log.debug("sandbox_not_sampled", sandbox=sandbox.id, why=str(error))
            return None
