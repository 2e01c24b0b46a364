"""Readings carry the names of the contract, rates come from two readings, and what does not answer is left out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tidegate_events import telemetry
from tidegate_events.clock import ManualClock
from tidegate_executor.attempts.state import AttemptState
from tidegate_executor.sampling import sandboxes as module
from tidegate_executor.sampling.gpus import GpuReader
from tidegate_executor.sampling.node import NodeReader, pressure_seconds
from tidegate_executor.sampling.reports import ProcessReports
from tidegate_executor.sampling.sampler import Sampler
from tidegate_executor.sampling.sandboxes import SandboxReader
from tidegate_executor.sampling.stamp import Stamp
from tidegate_executor.sandbox.base import Limits, ReplicaStats, SandboxLostError, SandboxStats

STATE = AttemptState(job="j1", tenant="lab-a", attempt=1, rank=0)


class FakeSandbox:
    """Answers `stats` with what the test put there."""

    def __init__(self, *answers: SandboxStats | Exception | None) -> None:
        self.id = "j1.1.0"
        self._answers = list(answers)

    async def stats(self) -> SandboxStats:
        answer = self._answers.pop(0)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        return answer


def stats(at_ns: int, cpu_usec: int, *, enforced: bool = True, pid: int = 10) -> SandboxStats:
    replica = ReplicaStats(
        component="main",
        replica=0,
        pid=pid,
        cpu_usec=cpu_usec,
        memory_bytes=1000,
        memory_peak_bytes=2000,
        processes=3,
        oom_kills=1,
        calls_refused=3,
        limits=Limits(cpu_millis=500, memory_mib=2, pids=9) if enforced else None,
        cpu_periods=20,
        cpu_throttled_periods=5,
        cpu_throttled_usec=2_500_000,
        memory_limit_hits=4,
    )
    return SandboxStats(at_ns=at_ns, limits_enforced=enforced, frozen=False, replicas=(replica,))


def test_a_node_is_read_with_the_names_of_the_contract(tmp_path: Path) -> None:
    reader = NodeReader(tmp_path)
    reader.read()
    found = reader.read()
    assert set(found.gauges) <= set(telemetry.NODE_GAUGES)
    assert set(found.counters) <= set(telemetry.NODE_COUNTERS)
    assert found.gauges["memory_total_bytes"] > found.gauges["memory_used_bytes"] > 0
    assert found.counters["cpu_seconds"] > 0
    assert 0 <= found.gauges.get("cpu_ratio", 0) <= 1


def test_pressure_is_in_seconds_and_absent_where_the_kernel_keeps_none(tmp_path: Path) -> None:
    (tmp_path / "cpu").write_text("some avg10=7.24 avg60=15.25 avg300=25.35 total=988133592\nfull avg10=0 total=5\n")
    (tmp_path / "memory").write_text("some avg10=0.00 total=58176\nfull avg10=0.00 total=16039\n")
    assert pressure_seconds(tmp_path) == {
        "cpu_pressure_seconds": 988.133592,
        "memory_pressure_seconds": 0.058176,
        "memory_stall_seconds": 0.016039,
    }


async def test_a_replica_is_read_in_base_units_and_its_rate_from_two_readings() -> None:
    reader, stamp = SandboxReader(), Stamp(node="n1", incarnation=1)
    sandbox: Any = FakeSandbox(stats(1_000_000_000, 100_000), stats(3_000_000_000, 1_100_000))
    (first,) = await reader.read([(STATE, sandbox)], stamp)
    (second,) = await reader.read([(STATE, sandbox)], stamp)
    assert "cpu_cores" not in first.gauges
    assert second.gauges["cpu_cores"] == 0.5
    assert second.gauges["cpu_limit_cores"] == 0.5
    assert second.gauges["memory_limit_bytes"] == 2 * 1024 * 1024
    assert second.counters == {
        "cpu_seconds": 1.1,
        "cpu_periods": 20.0,
        "cpu_throttled_periods": 5.0,
        "cpu_throttled_seconds": 2.5,
        "memory_limit_hits": 4.0,
        "oom_kills": 1.0,
        "calls_refused": 3.0,
    }
    assert set(second.gauges) == set(telemetry.SANDBOX_GAUGES)
    assert set(second.counters) == set(telemetry.SANDBOX_COUNTERS)
    assert (first.seq, second.seq) == (1, 2)


async def test_a_restarted_replica_has_no_rate_yet() -> None:
    reader, stamp = SandboxReader(), Stamp(node="n1", incarnation=1)
    sandbox: Any = FakeSandbox(stats(1_000_000_000, 900_000), stats(2_000_000_000, 10, pid=11))
    await reader.read([(STATE, sandbox)], stamp)
    (after,) = await reader.read([(STATE, sandbox)], stamp)
    assert "cpu_cores" not in after.gauges


async def test_a_sandbox_that_is_gone_busy_or_without_limits_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS_MAX", 0.05)
    gone: Any = FakeSandbox(SandboxLostError("gone"))
    busy: Any = FakeSandbox(None)
    plain: Any = FakeSandbox(stats(1, 1, enforced=False))
    fine: Any = FakeSandbox(stats(1, 1))
    running = [(STATE, sandbox) for sandbox in (gone, busy, plain, fine)]
    assert len(await SandboxReader().read(running, Stamp(node="n1", incarnation=1))) == 1


async def test_rounds_without_readings_carry_reports_alone(tmp_path: Path) -> None:
    sandbox: Any = FakeSandbox(stats(1_000_000_000, 1))
    reader = NodeReader(tmp_path, counted=lambda: {"images_fetched": 3.0})
    sampler = Sampler(
        Stamp(node="n1", incarnation=1), ManualClock(), ProcessReports(), lambda: [(STATE, sandbox)], reader
    )
    assert await sampler.sample(readings=False) == []
    samples = await sampler.sample(readings=True)
    assert [type(sample).__name__ for sample in samples] == ["SandboxSample", "NodeSample"]
    assert isinstance(samples[1], telemetry.NodeSample)
    assert samples[1].counters["images_fetched"] == 3.0


class FakeNvml:
    """One GPU that reports its memory alone."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        """What the driver answers."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*_arguments: Any) -> Any:
            raise self.NVMLError(name)

        return refuse

    def nvmlDeviceGetMemoryInfo(self, _handle: Any) -> Any:
        return SimpleNamespace(used=10, total=100)


def test_a_gpu_that_tells_little_is_still_read() -> None:
    reader = GpuReader()
    reader._nvml, reader._handles = FakeNvml(), [object()]
    (reading,) = reader.read()
    assert reading.gauges == {"memory_used_bytes": 10.0, "memory_total_bytes": 100.0}
    assert set(reading.gauges) <= set(telemetry.GPU_GAUGES)
