"""Samples that are watched and forgotten: never journaled, so that no job can fill the journal with them.

Labels are bounded and the same on all levels: tenant, job, component, node. Base units: seconds, bytes, ratios.
"""

from __future__ import annotations

import msgspec


class _Sample(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="kind", tag=True):
    """What every sample carries."""

    node: str
    at_ns: int
    seq: int
    """Counts up per node and incarnation, so that a redelivered sample is known."""
    incarnation: int


class NodeSample(_Sample, frozen=True, kw_only=True):
    """A node as a whole; counters are since boot."""

    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}


class SandboxSample(_Sample, frozen=True, kw_only=True):
    """One replica's control group; counters are since the sandbox began."""

    tenant: str
    job: str
    attempt: int
    rank: int
    component: str
    replica: int
    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}


class ProcessSample(_Sample, frozen=True, kw_only=True):
    """What the training process itself said last (`job.report`) and what the SDK saw."""

    tenant: str
    job: str
    attempt: int
    rank: int
    component: str
    replica: int
    step: int | None = None
    progress: float | None = None
    metrics: dict[str, float] = {}
    phase: str = ""
    phase_flips: int = 0
    dropped_reports: int = 0


Sample = NodeSample | SandboxSample | ProcessSample

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(tuple[Sample, ...])


def encode(samples: tuple[Sample, ...]) -> bytes:
    """Return one message of samples (JSON)."""
    return _encoder.encode(samples)


def decode(data: bytes) -> tuple[Sample, ...]:
    """Return the samples of a message; raises msgspec.MsgspecError for anything else."""
    return _decoder.decode(data)
