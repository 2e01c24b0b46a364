"""Step rates over whole, tumbling windows of time. Pure: samples and the time come as arguments.

A window's rate is the steps made between the last sample before it and the last one in it, over the time between those
two. So the irregular arrival of samples does not blur it, and the steps of all windows add up to the steps made.
"""

from __future__ import annotations

import msgspec

NS_PER_SECOND = 1_000_000_000
PROCESSES_MAX = 8192
AHEAD_MAX = 4
"""Windows that a sample's clock may be ahead of ours."""
SILENT_WINDOWS_MAX = 12
"""A process that says nothing for so many windows is forgotten."""


class ProcessKey(msgspec.Struct, frozen=True):
    """A training process."""

    job: str
    attempt: int
    rank: int
    component: str
    replica: int


class WindowRate(msgspec.Struct, frozen=True):
    """One process in one window. `rate_millis` (thousandths of a step per second) is None where it cannot be known.

    `silent`: nothing was heard of the process in the window, so the rate is 0 if it could have been heard at all.
    """

    key: ProcessKey
    node: str
    start_ns: int
    end_ns: int
    rate_millis: int | None
    silent: bool = False


class _Process(msgspec.Struct):
    """`carried` is the last sample (time, step) before the open windows, `newest` the last one in each of them."""

    node: str
    carried: tuple[int, int] | None = None
    newest: dict[int, tuple[int, int]] = {}
    silent: int = 0


class StepWindows:
    """The open windows of every process that reports steps."""

    def __init__(self, window_seconds: int) -> None:
        self.window_ns = window_seconds * NS_PER_SECOND
        self._processes: dict[ProcessKey, _Process] = {}
        self._closed: int | None = None
        """The index of the newest window that was closed."""

    def add(self, key: ProcessKey, node: str, at_ns: int, step: int) -> None:
        """Take a sample; one that came too late counts in the oldest window that is open."""
        process = self._processes.get(key)
        if process is None:
            if len(self._processes) >= PROCESSES_MAX:
                return
            process = self._processes[key] = _Process(node)
        index = at_ns // self.window_ns
        if self._closed is not None:
            if index > self._closed + AHEAD_MAX:
                return  # a clock that is far ahead would never be heard of again
            index = max(index, self._closed + 1)
        process.node = node
        known = process.newest.get(index)
        if known is None or at_ns >= known[0]:
            process.newest[index] = (at_ns, step)

    def close(self, now_ns: int) -> list[WindowRate]:
        """Close the windows that ended by `now_ns`; return each process's rate in each, in order of time."""
        last = now_ns // self.window_ns - 1
        if self._closed is None:
            self._closed = last
            for process in self._processes.values():
                process.carried = _take_until(process, last)
            return []
        # After a long pause the windows of that time say nothing: only the newest ones are looked at.
        first = max(self._closed + 1, last - SILENT_WINDOWS_MAX)
        rates: list[WindowRate] = []
        for index in range(first, last + 1):
            self._closed = index
            rates += [self._close_one(key, process, index) for key, process in self._processes.items()]
            gone = [key for key, process in self._processes.items() if process.silent > SILENT_WINDOWS_MAX]
            for key in gone:
                del self._processes[key]
        return rates

    def forget(self, job: str) -> None:
        """Drop the processes of a job that ended."""
        for key in [key for key in self._processes if key.job == job]:
            del self._processes[key]

    def _close_one(self, key: ProcessKey, process: _Process, index: int) -> WindowRate:
        start_ns, end_ns = index * self.window_ns, (index + 1) * self.window_ns
        before, newest = process.carried, _take_until(process, index)
        if newest is None:
            process.silent += 1
            rate = 0 if before is not None else None
            if before is not None:
                # The steps of a silent time count when they are told, so they cannot have taken longer than since now.
                process.carried = (max(before[0], end_ns), before[1])
            return WindowRate(key, process.node, start_ns, end_ns, rate, silent=True)
        process.silent, process.carried = 0, newest
        return WindowRate(key, process.node, start_ns, end_ns, _rate_millis(before, newest))


def _take_until(process: _Process, index: int) -> tuple[int, int] | None:
    """Remove and return the newest sample of the windows up to `index`."""
    ready = sorted(at for at in process.newest if at <= index)
    taken = [process.newest.pop(at) for at in ready]
    return taken[-1] if taken else None


def _rate_millis(before: tuple[int, int] | None, newest: tuple[int, int]) -> int | None:
    """Return the rate between two samples; None where the step went back, or no time passed."""
    if before is None or newest[0] <= before[0] or newest[1] < before[1]:
        return None
    return (newest[1] - before[1]) * 1000 * NS_PER_SECOND // (newest[0] - before[0])
