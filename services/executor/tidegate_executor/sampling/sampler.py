"""Takes the node's samples on time and hands them over as messages; never waits for whoever reads them.

The node and its sandboxes are read every second round only: those readings cost system calls, the reports lie ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from tidegate_events import telemetry
from tidegate_events.clock import Clock
from tidegate_events.telemetry import NodeSample, Sample

from tidegate_executor.attempts.state import AttemptState
from tidegate_executor.sampling.gpus import GpuReader
from tidegate_executor.sampling.node import NodeReader
from tidegate_executor.sampling.reports import ProcessReports
from tidegate_executor.sampling.sandboxes import SandboxReader
from tidegate_executor.sampling.stamp import Stamp
from tidegate_executor.sandbox.base import Sandbox

ROUND_SECONDS = 1.0
READING_EVERY = 2

log = structlog.get_logger()


class Sampler:
    """One agent's sampling. `running` names the sandboxes in which something may run."""

    def __init__(
        self,
        stamp: Stamp,
        clock: Clock,
        reports: ProcessReports,
        running: Callable[[], list[tuple[AttemptState, Sandbox]]],
        node: NodeReader,
    ) -> None:
        self._stamp = stamp
        self._clock = clock
        self._reports = reports
        self._running = running
        self._node = node
        self._gpus = GpuReader()
        self._sandboxes = SandboxReader()

    async def run(self, publish: Callable[[bytes], Awaitable[None]]) -> None:
        """Sample until cancelled."""
        await asyncio.to_thread(self._gpus.open)
        try:
            rounds = 0
            while True:
                await asyncio.sleep(ROUND_SECONDS)
                rounds += 1
                for message in telemetry.encode(await self.sample(readings=rounds % READING_EVERY == 0)):
                    await publish(message)
        finally:
            self._gpus.close()

    async def sample(self, *, readings: bool) -> list[Sample]:
        """Return what the processes said, and with `readings` what the node and its sandboxes use."""
        samples: list[Sample] = list(self._reports.take(self._stamp))
        if readings:
            samples += await self._sandboxes.read(self._running(), self._stamp)
            samples += await self._read_node()
        return samples

    async def _read_node(self) -> list[NodeSample]:
        try:
            found = await asyncio.to_thread(self._node.read)
            gpus = await asyncio.to_thread(self._gpus.read)
        except OSError as error:  # a file system that went away must not end the agent
            log.warning("node_not_sampled", why=str(error))
            return []
        stamp = self._stamp.next(self._clock.now_ns())
        return [NodeSample(**stamp, gauges=found.gauges, counters=found.counters, gpus=gpus)]
