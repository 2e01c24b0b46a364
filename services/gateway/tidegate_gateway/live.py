"""The last minute of telemetry, in bounded memory: what a screen shows beside the journal's facts.

Pure: it is told the time. It decides nothing and keeps nothing: after a restart it fills again in seconds.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
from tidegate_events.telemetry import NodeSample, ProcessSample, Sample, SandboxSample

NS_PER_SECOND = 1_000_000_000
RATE_WINDOW_NS = 60 * NS_PER_SECOND
"""Steps are counted over so long: a step of a large model may take half a minute."""
FRESH_NS = 15 * NS_PER_SECOND
PROCESSES_MAX = 8192
SAMPLES_KEPT = 32
OF_NODE = ("cpu_ratio", "memory_used_bytes")
OF_SANDBOX = ("cpu_cores", "memory_bytes")
"""Gauges that are passed on; `tidegate_events.telemetry` says what each is."""

Document = dict[str, Any]
_Key = tuple[str, int, int, str, int]
"""(job, attempt, rank, component, replica)"""


class _Steps(msgspec.Struct):
    """What one training process reported."""

    newest: ProcessSample
    seen: deque[tuple[int, int]]
    """(at_ns, step) of its last samples"""


class Live:
    """What was heard last, by process, by sandbox and by node."""

    def __init__(self) -> None:
        self._steps: dict[_Key, _Steps] = {}
        self._usage: dict[_Key, SandboxSample] = {}
        self._nodes: dict[str, NodeSample] = {}

    def hear(self, samples: tuple[Sample, ...]) -> None:
        """Take samples in; a process beyond the bound takes the place of the one that was silent for longest."""
        for sample in samples:
            if isinstance(sample, NodeSample):
                self._nodes.pop(sample.node, None)
                self._nodes[sample.node] = sample
                _bound(self._nodes)
            elif isinstance(sample, SandboxSample):
                self._hear_usage(sample)
            else:
                self._hear_process(sample)

    def of_node(self, node: str, now_ns: int) -> Document:
        """Return what a node said last of itself."""
        sample = self._nodes.get(node)
        gauges = sample.gauges if sample is not None and now_ns - sample.at_ns <= FRESH_NS else {}
        return {name: gauges.get(name) for name in OF_NODE}

    def of_job(self, job: str, attempt: int, now_ns: int) -> Document:
        """Return the step rate of an attempt's rank 0, and what all its sandboxes use together."""
        steps = [each for key, each in self._steps.items() if key[:3] == (job, attempt, 0)]
        stepping = [each for each in steps if each.newest.step is not None]
        newest = max(stepping or steps, key=lambda each: each.newest.at_ns, default=None)
        usage = [each for key, each in self._usage.items() if key[:2] == (job, attempt)]
        fresh = [each.gauges for each in usage if now_ns - each.at_ns <= FRESH_NS]
        return {
            "steps_per_second": _rate(newest, now_ns) if newest else None,
            "step": newest.newest.step if newest else None,
            **{name: _total(name, fresh) for name in OF_SANDBOX},
            "metrics": newest.newest.metrics if newest else {},
        }

    def _hear_process(self, sample: ProcessSample) -> None:
        key = (sample.job, sample.attempt, sample.rank, sample.component, sample.replica)
        known = self._steps.pop(key, None) or _Steps(sample, deque(maxlen=SAMPLES_KEPT))
        if sample.metrics or sample.step is not None:  # one that only tells of a checkpoint does not replace a report
            known.newest = sample
        if sample.step is not None and (not known.seen or sample.at_ns > known.seen[-1][0]):
            known.seen.append((sample.at_ns, sample.step))
        self._steps[key] = known
        _bound(self._steps)

    def _hear_usage(self, sample: SandboxSample) -> None:
        key = (sample.job, sample.attempt, sample.rank, sample.component, sample.replica)
        self._usage.pop(key, None)
        self._usage[key] = sample
        _bound(self._usage)


def _rate(steps: _Steps, now_ns: int) -> float | None:
    """Return steps per second over the window, None where fewer than two of its samples are known."""
    seen = [(at_ns, step) for at_ns, step in steps.seen if now_ns - at_ns <= RATE_WINDOW_NS]
    if len(seen) < 2 or seen[-1][1] < seen[0][1]:
        return None
    return (seen[-1][1] - seen[0][1]) * NS_PER_SECOND / (seen[-1][0] - seen[0][0])


def _total(name: str, gauges: list[dict[str, float]]) -> float | None:
    found = [each[name] for each in gauges if name in each]
    return sum(found) if found else None


def _bound(table: dict[Any, Any]) -> None:
    # What was heard last stands last, so the first one was silent for longest.
    while len(table) > PROCESSES_MAX:
        del table[next(iter(table))]
