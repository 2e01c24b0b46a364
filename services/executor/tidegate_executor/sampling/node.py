"""Reads the node as a whole: CPU, memory, pressure, disk, network. Blocks for milliseconds: call it in a thread."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

PRESSURE = Path("/proc/pressure")
# What the kernel counts as a stall: "some" task waited, or all of them ("full"). Documentation/accounting/psi.rst.
_PRESSURE_NAMES = {
    ("cpu", "some"): "cpu_pressure_seconds",
    ("memory", "some"): "memory_pressure_seconds",
    ("memory", "full"): "memory_stall_seconds",
    ("io", "some"): "io_pressure_seconds",
    ("io", "full"): "io_stall_seconds",
}


class Readings(NamedTuple):
    """Gauges and counters by the names of tidegate_events.telemetry; what the node does not tell is left out."""

    gauges: dict[str, float]
    counters: dict[str, float]


class NodeReader:
    """Remembers the CPU times of the last reading, because a share of time needs two; `counted` is the agent's own."""

    def __init__(
        self, data_dir: Path, pressure: Path = PRESSURE, counted: Callable[[], dict[str, float]] = dict
    ) -> None:
        self._data_dir = data_dir
        self._counted = counted
        self._pressure = pressure
        self._before: tuple[float, float] | None = None

    def read(self) -> Readings:
        """Return the node's readings."""
        gauges: dict[str, float] = {"load1": os.getloadavg()[0], "cpu_cores": float(os.cpu_count() or 1)}
        busy, idle = _cpu_seconds()
        counters = {"cpu_seconds": busy}
        if self._before is not None and (passed := busy + idle - sum(self._before)) > 0:
            gauges["cpu_ratio"] = min(1.0, max(0.0, (busy - self._before[0]) / passed))
        self._before = (busy, idle)
        memory = psutil.virtual_memory()
        gauges["memory_total_bytes"] = float(memory.total)
        gauges["memory_used_bytes"] = float(memory.total - memory.available)
        gauges["swap_used_bytes"] = float(psutil.swap_memory().used)
        disk = psutil.disk_usage(str(self._data_dir))
        gauges["disk_total_bytes"] = float(disk.total)
        gauges["disk_free_bytes"] = float(disk.free)
        return Readings(gauges, counters | pressure_seconds(self._pressure) | _traffic() | self._counted())


def _cpu_seconds() -> tuple[float, float]:
    """Return busy and idle seconds since boot, over all CPUs. The time of guests is part of the user's."""
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
    return busy, times.idle + times.iowait


def pressure_seconds(directory: Path) -> dict[str, float]:
    """Return the stall times that the kernel keeps; nothing where it keeps none (old, or switched off)."""
    found: dict[str, float] = {}
    for resource in ("cpu", "memory", "io"):
        try:
            text = (directory / resource).read_text()
        except OSError:
            continue
        for line in text.splitlines():
            kind, _, rest = line.partition(" ")
            name = _PRESSURE_NAMES.get((resource, kind))
            if name is not None:
                found[name] = int(rest.rpartition("total=")[2]) / 1_000_000
    return found


def _traffic() -> dict[str, float]:
    found: dict[str, float] = {}
    if (disk := psutil.disk_io_counters()) is not None:
        found |= {"disk_read_bytes": float(disk.read_bytes), "disk_written_bytes": float(disk.write_bytes)}
    cards = [card for name, card in psutil.net_io_counters(pernic=True).items() if name != "lo"]
    found["network_received_bytes"] = float(sum(card.bytes_recv for card in cards))
    found["network_sent_bytes"] = float(sum(card.bytes_sent for card in cards))
    return found
