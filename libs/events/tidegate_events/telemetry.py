"""Samples that are watched and forgotten: never journaled, so that no job can fill the journal with them.

Labels are bounded and the same on all levels: tenant, job, component, node. Base units: seconds, bytes, ratios. The
names of gauges and counters are those of the tables below; a reader leaves out the ones it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tidegate_events.subjects import TELEMETRY_STREAM, TELEMETRY_SUBJECTS

MESSAGE_BYTES_MAX = 256 * 1024
STREAM_BYTES_MAX = 32 * 1024**2
STREAM_AGE_SECONDS_MAX = 600

NODE_GAUGES = {
    "cpu_ratio": "share of the node's CPUs that was busy since the last sample",
    "cpu_cores": "CPUs that the node has",
    "load1": "runnable and waiting processes, averaged over a minute",
    "memory_total_bytes": "memory of the node",
    "memory_used_bytes": "memory that is not available to new processes",
    "swap_used_bytes": "swapped out memory",
    "disk_total_bytes": "size of the file system that holds the agent's data",
    "disk_free_bytes": "room left on the file system that holds the agent's data",
}
NODE_COUNTERS = {
    "cpu_seconds": "CPU time spent, idle time left out, over all CPUs",
    "cpu_pressure_seconds": "time in which some process waited for a CPU",
    "memory_pressure_seconds": "time in which some process waited for memory",
    "memory_stall_seconds": "time in which every process waited for memory",
    "io_pressure_seconds": "time in which some process waited for input or output",
    "io_stall_seconds": "time in which every process waited for input or output",
    "disk_read_bytes": "bytes read from disks",
    "disk_written_bytes": "bytes written to disks",
    "network_received_bytes": "bytes received, the loopback interface left out",
    "network_sent_bytes": "bytes sent, the loopback interface left out",
    "images_fetched": "images that the agent fetched since it began",
    "image_fetch_failures": "times that an image could not be fetched since the agent began",
    "image_fetched_bytes": "bytes of the images that the agent fetched since it began",
    "starts_prepared": "sandboxes that found their process waiting ready since the agent began",
    "starts_unprepared": "sandboxes that found none, in a burst perhaps, since the agent began",
    "starts_warm": "members whose sandbox stood ready for their image and level, since the agent began",
    "starts_image_late": "members whose image came to a sandbox that stood ready without one, since the agent began",
    "starts_cold": "members for which none did, at levels at which sandboxes can stand ready, since the agent began",
}
GPU_GAUGES = {
    "utilization_ratio": "share of time in which a kernel ran on the GPU",
    "memory_used_bytes": "memory in use on the GPU",
    "memory_total_bytes": "memory of the GPU",
    "power_watts": "power drawn by the GPU",
    "temperature_celsius": "temperature of the GPU",
}
SANDBOX_GAUGES = {
    "cpu_cores": "CPUs used, averaged since the last sample",
    "cpu_limit_cores": "CPUs that may be used",
    "memory_bytes": "memory in use, page cache included",
    "memory_peak_bytes": "largest memory in use so far",
    "memory_limit_bytes": "memory that may be used",
    "processes": "processes and threads",
}
SANDBOX_COUNTERS = {
    "cpu_seconds": "CPU time spent",
    "cpu_periods": "CPU quota periods in which something ran",
    "cpu_throttled_periods": "CPU quota periods in which the quota was used up",
    "cpu_throttled_seconds": "time spent waiting for the next CPU quota period",
    "memory_limit_hits": "times that the memory limit was reached",
    "oom_kills": "processes that the kernel killed for want of memory",
    "calls_refused": "system calls that the sandbox's filter denied, where it tells the agent",
}


class _Sample(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="kind", tag=True):
    """What every sample carries."""

    node: str
    at_ns: int
    seq: int
    """Counts up per node and incarnation, so that a redelivered sample is known."""
    incarnation: int


class GpuReading(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One GPU as its driver reports it; what it does not report is left out. Names: GPU_GAUGES."""

    index: int
    gauges: dict[str, float] = {}


class NodeSample(_Sample, frozen=True, kw_only=True):
    """A node as a whole; counters are since boot. Names: NODE_GAUGES, NODE_COUNTERS."""

    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    gpus: tuple[GpuReading, ...] = ()


class _ReplicaSample(_Sample, frozen=True, kw_only=True):
    """Which process of a job a sample is about."""

    tenant: str
    job: str
    attempt: int
    rank: int
    component: str
    replica: int


class SandboxSample(_ReplicaSample, frozen=True, kw_only=True):
    """One replica's control group; counters are since that began. Names: SANDBOX_GAUGES, SANDBOX_COUNTERS."""

    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}


class CheckpointTiming(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How long a save kept the training code waiting (`copy`), and how long it then took to be durable (`write`)."""

    step: int
    copy_seconds: float
    write_seconds: float


class ProcessSample(_ReplicaSample, frozen=True, kw_only=True):
    """What the training process itself said last (`job.report`) and what the SDK saw.

    `metrics` holds finite numbers only (JSON has no others); the names of the rest are in `not_finite`.
    `dropped_reports` are those lost since the sample before, `checkpoints` the saves since then.
    """

    step: int | None = None
    progress: float | None = None
    metrics: dict[str, float] = {}
    not_finite: tuple[str, ...] = ()
    phase: str = ""
    phase_flips: int = 0
    dropped_reports: int = 0
    checkpoints: tuple[CheckpointTiming, ...] = ()


Sample = NodeSample | SandboxSample | ProcessSample

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(tuple[Sample, ...])


def encode(samples: Iterable[Sample]) -> list[bytes]:
    """Return the messages (JSON) that carry these samples in their order, each within MESSAGE_BYTES_MAX."""
    messages: list[bytes] = []
    part: list[bytes] = []
    size = 2
    for sample in samples:
        data = _encoder.encode(sample)
        if part and size + len(data) + 1 > MESSAGE_BYTES_MAX:
            messages.append(b"[" + b",".join(part) + b"]")
            part, size = [], 2
        part.append(data)
        size += len(data) + 1
    if part:
        messages.append(b"[" + b",".join(part) + b"]")
    return messages


def decode(data: bytes) -> tuple[Sample, ...]:
    """Return the samples of a message; raises msgspec.MsgspecError for anything else."""
    return _decoder.decode(data)


def stream_config(*, max_bytes: int = STREAM_BYTES_MAX) -> dict[str, Any]:
    """Return the configuration of stream TELEMETRY for JetStream's API: in memory, the oldest go first."""
    return {
        "name": TELEMETRY_STREAM,
        "subjects": list(TELEMETRY_SUBJECTS),
        "retention": "limits",
        "storage": "memory",
        "discard": "old",
        "max_bytes": max_bytes,
        "max_age": STREAM_AGE_SECONDS_MAX * 1_000_000_000,
        "max_msgs": -1,
        "max_consumers": -1,
        "num_replicas": 1,
        "duplicate_window": 1_000_000_000,
        "deny_delete": True,
    }
