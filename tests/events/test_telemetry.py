"""Samples keep their order and their bound on the wire, and what is no sample is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_events import telemetry
from tidegate_events.telemetry import (
    CheckpointTiming,
    GpuReading,
    NodeSample,
    ProcessSample,
    Sample,
    SandboxSample,
    decode,
    encode,
)

_ABOUT = {"tenant": "lab-a", "job": "j-1", "attempt": 2, "rank": 1, "component": "sim", "replica": 3}
_WHERE = {"node": "n1", "at_ns": 1_796_000_000_000_000_000, "incarnation": 4}

SAMPLES: tuple[Sample, ...] = (
    NodeSample(
        **_WHERE,
        seq=1,
        gauges={"cpu_ratio": 0.5},
        counters={"cpu_seconds": 10.25},
        gpus=(GpuReading(index=0, gauges={"power_watts": 300.0}),),
    ),
    SandboxSample(**_WHERE, **_ABOUT, seq=2, gauges={"memory_bytes": 1024.0}, counters={"oom_kills": 1.0}),
    ProcessSample(
        **_WHERE,
        **_ABOUT,
        seq=3,
        step=7,
        progress=0.5,
        metrics={"loss": 0.25},
        not_finite=("grad",),
        phase="sampling",
        phase_flips=2,
        dropped_reports=1,
        checkpoints=(CheckpointTiming(step=5, copy_seconds=0.125, write_seconds=1.5),),
    ),
)


def test_every_kind_survives_the_wire() -> None:
    (message,) = encode(SAMPLES)
    assert decode(message) == SAMPLES


def test_nothing_becomes_no_message() -> None:
    assert encode(()) == []


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(10, 4000))
def test_messages_are_bounded_and_keep_the_order(sizes: list[int], bytes_max: int) -> None:
    samples = [
        NodeSample(**_WHERE, seq=seq, gauges={f"g{i}": 1.0 for i in range(size)}) for seq, size in enumerate(sizes)
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(telemetry, "MESSAGE_BYTES_MAX", bytes_max)
        messages = encode(samples)
    assert [sample for message in messages for sample in decode(message)] == samples
    for message in messages:
        assert len(message) <= bytes_max or len(decode(message)) == 1


@pytest.mark.parametrize("data", [b"", b"{}", b'[{"kind": "Other"}]', b'[{"kind": "NodeSample"}]', b"[null]"])
def test_what_is_no_sample_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode(data)
