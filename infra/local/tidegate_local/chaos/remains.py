"""Sandboxes that are still there though every job has ended: their directories, cgroups, processes and mounts.

Agents keep some groups and processes for the next sandbox, which nobody has left behind: those that their records name,
and those of the few shims that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Set
from pathlib import Path

from tidegate_local.home import Home
from tidegate_local.leftovers import PROC, cgroup_directories
from tidegate_local.sandbox_groups import group_names

SETTLE_SECONDS_MAX = 20.0
POLL_SECONDS = 0.2
JOB_PREFIX = "j-"
READY_PREFIX, WAITING_MAX = "ready-", 2  # of cgroups made ahead, and of shims that wait: as agents do it


def sandboxes(home: Home) -> list[str]:
    """Return what the kernel still knows of any sandbox of the stack's nodes."""
    return [*_directories(home), *_cgroups(home), *_mounts(home), *_processes(home)]


async def settled(home: Home) -> list[str]:
    """Return what is left after a bounded wait."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLE_SECONDS_MAX
    while True:
        left = sandboxes(home)
        if not left or loop.time() > deadline:
            return left
        await asyncio.sleep(POLL_SECONDS)


def _directories(home: Home) -> Iterator[str]:
    yield from (f"directory {path}" for path in Path(home.root).glob(f"nodes/*/sandboxes/{JOB_PREFIX}*"))


def _cgroups(home: Home) -> Iterator[str]:
    kept = group_names(Path(home.root), ".ready/*")
    for top in cgroup_directories(home.cgroup_name):
        yield from (f"cgroup {path}" for path in top.rglob(f"{JOB_PREFIX}*") if path.is_dir())
        ahead = {path.name for path in top.rglob(f"{READY_PREFIX}*") if path.is_dir()}
        yield from (f"cgroup {top}/{name}" for name in unclaimed(ahead, kept))


def unclaimed(ahead: Set[str], kept: Set[str]) -> list[str]:
    """Return, of a node's groups that were made ahead, those too many for the sandboxes and shims that wait there."""
    others = sorted(ahead - kept)
    return others if len(others) > WAITING_MAX else []


def _mounts(home: Home) -> Iterator[str]:
    nodes = f"{home.root}/nodes/"
    for line in (PROC / "self" / "mountinfo").read_text().splitlines():
        target = line.split()[4].encode().decode("unicode_escape")
        if target.startswith(nodes):
            yield f"mount {target}"


def _processes(home: Home) -> Iterator[str]:
    own = f"/{home.cgroup_name}"
    for directory in PROC.iterdir():
        if not directory.name.isdigit():
            continue
        try:
            groups = (directory / "cgroup").read_text().splitlines()
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # gone meanwhile, or another user's
        if any(own in group and f"/{JOB_PREFIX}" in group for group in groups):
            yield f"process {directory.name} {command[:100]}"


def newest_logs(home: Home, lines: int) -> str:
    """Return the end of every log, for the message of a run that ended badly."""
    ends = []
    for file in sorted(Path(home.logs_dir).glob("*.log")):
        ends.append(f"--- {file.name}\n" + "\n".join(file.read_text(errors="replace").splitlines()[-lines:]))
    return "\n".join(ends)
