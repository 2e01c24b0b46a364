"""The newest reading of every node, sandbox and process: what gauges show. Pure; bounded; empty after a restart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec
from tidegate_events import telemetry
from tidegate_events.telemetry import NodeSample, ProcessSample, Sample, SandboxSample

from tidegate_metrics import samples as reading
from tidegate_metrics.catalogue import GPU_PREFIX, NODE_PREFIX, SANDBOX_PREFIX
from tidegate_metrics.totals import Series

SOURCES_MAX = 20_000
FRESH_SECONDS = 15
PROCESS_FRESH_SECONDS = 90
"""A step of a large model takes a while, and it reports at each."""
NS_PER_SECOND = 1_000_000_000

_T = TypeVar("_T")
_LARGEST = {"tidegate_step", "tidegate_progress_ratio", f"{SANDBOX_PREFIX}memory_peak_bytes"}
_MEAN = {"tidegate_buffer_hit_ratio"}
_REPORTED = {reading.QUEUE_DEPTH: "tidegate_queue_depth", reading.BUFFER_HIT_RATE: "tidegate_buffer_hit_ratio"}


class _Said(msgspec.Struct):
    """What a process reported last, by the names of the catalogue; each may come in a report of its own."""

    sample: ProcessSample
    heard_ns: int
    values: dict[str, float]


class Readings:
    """`hear` with the time of arrival; `gauges` with the time it is."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[NodeSample, int]] = {}
        self._sandboxes: dict[str, tuple[SandboxSample, int]] = {}
        self._processes: dict[str, _Said] = {}

    def hear(self, sample: Sample, arrived_ns: int) -> None:
        """Take a sample in; beyond the bound it takes the place of the one that was silent for longest."""
        if isinstance(sample, NodeSample):
            _put(self._nodes, sample.node, (sample, arrived_ns))
        elif isinstance(sample, SandboxSample):
            _put(self._sandboxes, reading.process_of(sample), (sample, arrived_ns))
        else:
            key = reading.process_of(sample)
            known = self._processes.get(key)
            values = {**(known.values if known else {}), **_said(sample)}
            _put(self._processes, key, _Said(sample, arrived_ns, values))

    def node_heard_ns(self, node: str) -> int:
        """Return when the node was last heard, 0 for never."""
        known = self._nodes.get(node)
        return known[1] if known is not None else 0

    def forget(self, now_ns: int) -> None:
        """Drop what is no longer shown."""
        oldest = now_ns - PROCESS_FRESH_SECONDS * NS_PER_SECOND
        self._nodes = {key: found for key, found in self._nodes.items() if found[1] >= oldest}
        self._sandboxes = {key: found for key, found in self._sandboxes.items() if found[1] >= oldest}
        self._processes = {key: said for key, said in self._processes.items() if said.heard_ns >= oldest}

    def gauges(self, now_ns: int) -> dict[Series, float]:
        """Return every gauge that is fresh, replicas of one component on one node taken together."""
        found: dict[Series, list[float]] = {}
        fresh_ns = now_ns - FRESH_SECONDS * NS_PER_SECOND
        for node, heard_ns in self._nodes.values():
            if heard_ns >= fresh_ns:
                _collect(found, _of_node(node))
        for sandbox, heard_ns in self._sandboxes.values():
            if heard_ns >= fresh_ns:
                place = reading.place_of(sandbox)
                known = sandbox.gauges.items()
                _collect(found, (((SANDBOX_PREFIX + n, place), v) for n, v in known if n in telemetry.SANDBOX_GAUGES))
        for said in self._processes.values():
            if said.heard_ns >= now_ns - PROCESS_FRESH_SECONDS * NS_PER_SECOND:
                place = reading.place_of(said.sample)
                _collect(found, (((name, place), value) for name, value in said.values.items()))
        return {series: _together(series[0], values) for series, values in found.items()}


def _said(sample: ProcessSample) -> dict[str, float]:
    values = {shown: sample.metrics[name] for name, shown in _REPORTED.items() if name in sample.metrics}
    if sample.step is not None:
        values["tidegate_step"] = float(sample.step)
    if sample.progress is not None:
        values["tidegate_progress_ratio"] = sample.progress
    return values


def _of_node(sample: NodeSample) -> Iterable[tuple[Series, float]]:
    for name, value in sample.gauges.items():
        if name in telemetry.NODE_GAUGES:
            yield (NODE_PREFIX + name, (sample.node,)), value
    for gpu in sample.gpus:
        for name, value in gpu.gauges.items():
            if name in telemetry.GPU_GAUGES:
                yield (GPU_PREFIX + name, (sample.node, str(gpu.index))), value


def _collect(found: dict[Series, list[float]], values: Iterable[tuple[Series, float]]) -> None:
    for series, value in values:
        found.setdefault(series, []).append(value)


def _together(name: str, values: list[float]) -> float:
    if name in _LARGEST:
        return max(values)
    return sum(values) / len(values) if name in _MEAN else sum(values)


def _put(table: dict[str, _T], key: str, value: _T) -> None:
    """Set a key as the newest of a bounded table."""
    table.pop(key, None)
    table[key] = value
    if len(table) > SOURCES_MAX:
        del table[next(iter(table))]
