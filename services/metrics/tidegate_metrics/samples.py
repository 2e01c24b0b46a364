"""What a sample says: which readings it holds, by the names of the catalogue and of the rows. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate_events import telemetry
from tidegate_events.telemetry import NodeSample, ProcessSample, Sample, SandboxSample

from tidegate_metrics.aggregates import Place
from tidegate_metrics.catalogue import NODE_PREFIX, SANDBOX_PREFIX
from tidegate_metrics.totals import Series

ENV_STEPS = "env_steps"
QUEUE_DEPTH = "queue_depth"
BUFFER_HIT_RATE = "buffer_hit_rate"
WELL_KNOWN = (ENV_STEPS, QUEUE_DEPTH, BUFFER_HIT_RATE)
"""Names of `job.report` that have a meaning of their own; docs/reference/metrics.md says which."""


def place_of(sample: Sample) -> Place:
    """Return the labels of a sample as rows hold them."""
    if isinstance(sample, NodeSample):
        return ("", "", "", sample.node)
    return (sample.tenant, sample.job, sample.component, sample.node)


def process_of(sample: SandboxSample | ProcessSample) -> str:
    """Return a name of the process that no other process ever has."""
    return f"{sample.job}.{sample.attempt}.{sample.rank}.{sample.component}.{sample.replica}"


def gauges(sample: Sample) -> Iterator[tuple[str, Place, float]]:
    """Yield every momentary value for the rows, as (name, place, value)."""
    place = place_of(sample)
    if isinstance(sample, NodeSample):
        yield from (("node." + name, place, value) for name, value in _known(sample.gauges, telemetry.NODE_GAUGES))
        for gpu in sample.gpus:
            of_gpu = ("", "", f"gpu{gpu.index}", sample.node)
            yield from (("gpu." + name, of_gpu, value) for name, value in _known(gpu.gauges, telemetry.GPU_GAUGES))
    elif isinstance(sample, SandboxSample):
        known = _known(sample.gauges, telemetry.SANDBOX_GAUGES)
        yield from (("sandbox." + name, place, value) for name, value in known)
    else:
        yield from (("report." + name, place, value) for name, value in sample.metrics.items())
        if sample.step is not None:
            yield ("process.step", place, float(sample.step))
        if sample.progress is not None:
            yield ("process.progress", place, sample.progress)


def counters(sample: NodeSample | SandboxSample) -> Iterator[tuple[str, Series, str, float]]:
    """Yield every counter as (name of the row, series, source, value)."""
    if isinstance(sample, NodeSample):
        for name, value in _known(sample.counters, telemetry.NODE_COUNTERS):
            yield "node." + name, (f"{NODE_PREFIX}{name}_total", (sample.node,)), sample.node, value
    else:
        for name, value in _known(sample.counters, telemetry.SANDBOX_COUNTERS):
            series = (f"{SANDBOX_PREFIX}{name}_total", place_of(sample))
            yield "sandbox." + name, series, process_of(sample), value


def env_steps(sample: ProcessSample) -> float | None:
    """Return the process's own count of environment steps, else its step, else None."""
    counted = sample.metrics.get(ENV_STEPS)
    if counted is not None:
        return counted
    return None if sample.step is None else float(sample.step)


def _known(found: dict[str, float], names: dict[str, str]) -> Iterator[tuple[str, float]]:
    return ((name, value) for name, value in found.items() if name in names)
