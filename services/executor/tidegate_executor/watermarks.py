"""How full the disk of the images may be, and when this node has nothing better to do."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from tidegate_executor.settings import Settings

BUSY_PERCENT = 30.0
"""Of the last ten seconds in which something waited for a processor or a disk: above it, nothing is done ahead."""

IDLE_SECONDS_MAX = 120.0
LOOK_SECONDS = 2.0
PRESSURE = (Path("/proc/pressure/cpu"), Path("/proc/pressure/io"))


def excess_bytes(settings: Settings, directory: Path) -> int:
    """Return how many bytes should leave the disk: 0 below the high mark, else what brings it to the low one."""
    usage = shutil.disk_usage(directory)
    whole = usage.used + usage.free  # what only root may use is nobody's
    if usage.used * 100 <= whole * settings.images_high_percent:
        return 0
    return usage.used - whole * settings.images_low_percent // 100


async def idle(seconds_max: float = IDLE_SECONDS_MAX) -> bool:
    """Wait until neither processors nor disks are waited for; False if that did not come within the bound."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds_max
    while await asyncio.to_thread(_busy):
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(LOOK_SECONDS)
    return True


def _busy() -> bool:
    return any(pressure_percent(path) > BUSY_PERCENT for path in PRESSURE)


def pressure_percent(path: Path) -> float:
    """Return `some avg10` of a pressure file (Documentation/accounting/psi.rst); 0 where the kernel keeps none."""
    try:
        text = path.read_text()
    except OSError:
        return 0.0
    line = text.split("\n", 1)[0]
    return next((float(part.removeprefix("avg10=")) for part in line.split() if part.startswith("avg10=")), 0.0)
