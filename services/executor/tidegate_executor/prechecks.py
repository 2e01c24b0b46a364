"""Checks beside a start, too slow to come before it: a failed one ends the member as the node's failure, and is named.

`driver`: the versions that the image asks for; `layers`: the converted image is what was converted; `disk`: the hot
directory is as fast as the operator says it is.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
import structlog

from tidegate_executor import requirements_of_images
from tidegate_executor.context import Context
from tidegate_executor.sampling.gpus import versions

DISK_PROBE_BYTES = 8 * 1024**2
CHECKS_SECONDS_MAX = 900.0
MIB = 1024**2

log = structlog.get_logger()


class PrecheckFailedError(Exception):
    """The node is not what the member needs; the text begins with the check's name."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is about to run: the image, and whether devices are leased to it."""

    digest: str
    env: Mapping[str, str]
    gpus: bool


async def run(context: Context, subject: Subject) -> None:
    """Carry every check out. Raises PrecheckFailedError for the first that fails."""
    began = time.monotonic()
    checks: dict[str, Callable[[], Awaitable[str]]] = {
        "driver": lambda: asyncio.to_thread(driver, subject, versions),
        "layers": lambda: context.images.check(subject.digest),
        "disk": lambda: asyncio.to_thread(
            disk, Path(context.settings.hot_dir), context.settings.hot_mib_per_second_min
        ),
    }
    for name, check in checks.items():
        try:
            async with asyncio.timeout(CHECKS_SECONDS_MAX):
                problem = await check()
        except (OSError, TimeoutError) as error:
            problem = f"it could not be carried out: {error or 'it took too long'}"
        if problem:
            raise PrecheckFailedError(f"pre-check {name} failed: {problem}")
    log.debug("prechecks_passed", seconds=round(time.monotonic() - began, 3))


def driver(subject: Subject, known: Callable[[], dict[str, str]]) -> str:
    """Return what the driver lacks for the image; a member without devices needs none."""
    if not subject.gpus or requirements_of_images.VARIABLE not in subject.env:
        return ""
    return requirements_of_images.unmet(subject.env, known())


def disk(directory: Path, least: int) -> str:
    """Return how slow the disk is, where it is slower than `least` MiB a second; 0: it is not asked."""
    if least == 0:
        return ""
    block = os.urandom(MIB)
    with tempfile.TemporaryFile(dir=directory) as writing:
        began = time.monotonic()
        for _ in range(DISK_PROBE_BYTES // MIB):
            writing.write(block)
        writing.flush()
        os.fsync(writing.fileno())
        seconds = time.monotonic() - began
    return too_slow(seconds, least)


def too_slow(seconds: float, least: int) -> str:
    """Return what to say of a probe that took so long; nothing where that is fast enough."""
    found = DISK_PROBE_BYTES / MIB / max(seconds, 1e-6)
    return f"{found:.1f} MiB/s were written and synced, and hot_mib_per_second_min is {least}" if found < least else ""
