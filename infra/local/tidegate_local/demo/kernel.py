"""Reads CPU limits straight from the kernel's cgroup files: the demo does not take a service's word for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tidegate_local.demo.observed import KernelQuota
from tidegate_local.home import Home
from tidegate_local.leftovers import cgroup_directories
from tidegate_local.sandbox_groups import group_names

DEPTH_MAX = 6


def quotas(home: Home, job: str, components: tuple[str, ...]) -> set[KernelQuota]:
    """Return the limits that the replicas of `job` have now; empty while none run, or where no limit is enforced."""
    found, groups = set(), group_names(Path(home.root), f"{job}.*")
    for top in cgroup_directories(home.cgroup_name) if groups else ():
        for directory in _below(top):
            component = _component(directory, groups, components)
            millis = read_cpu_millis(directory) if component else None
            if component and millis is not None:
                found.add(KernelQuota(component, millis))
    return found


def read_cpu_millis(directory: Path) -> int | None:
    """Return the CPU limit of a cgroup (version 2 or 1) in thousandths of a CPU; None where there is none."""
    try:
        if (directory / "cpu.max").exists():
            quota, period = (directory / "cpu.max").read_text().split()
        else:
            quota = (directory / "cpu.cfs_quota_us").read_text().strip()
            period = (directory / "cpu.cfs_period_us").read_text().strip()
    except OSError:
        return None  # another controller's hierarchy, or gone meanwhile
    if quota in {"max", "-1"}:
        return None
    return round(int(quota) * 1000 / int(period))


def _component(directory: Path, groups: set[str], components: tuple[str, ...]) -> str | None:
    if groups.isdisjoint(directory.parts):
        return None
    return next((name for name in components if directory.name.startswith(name)), None)


def _below(top: Path) -> Iterator[Path]:
    for root, directories, _ in os.walk(top):
        if len(Path(root).relative_to(top).parts) >= DEPTH_MAX:
            directories.clear()
        yield Path(root)
