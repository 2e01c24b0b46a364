"""Our control groups as a container engine names them, and what it makes of them in hierarchies that we do not use.

An engine that is told a parent group makes it in every hierarchy of version 1 and leaves it there.
"""

from __future__ import annotations

from pathlib import Path

from tidegate_executor.cgroups.base import CgroupError, Driver, remove_directories, remove_empty
from tidegate_executor.cgroups.detect import prove
from tidegate_executor.cgroups.v1 import CONTROLLERS, V1Driver


def engine_driver(driver: Driver, name: str) -> Driver:
    """A driver whose groups an engine can be told: one path for every hierarchy. Raises CgroupError, OSError.

    Of version 1 the agent's own groups may lie elsewhere in each hierarchy; ours lie at the top, as an engine's do.
    """
    if not isinstance(driver, V1Driver):
        return driver
    described = driver.describe()
    places = {controller: _mount_of(Path(described[controller])) / name for controller in CONTROLLERS}
    chosen = V1Driver(places)
    prove(chosen)
    return chosen


def engine_path(driver: Driver) -> str:
    """The path of the driver's place, in every hierarchy."""
    described = driver.describe()
    parts = [described["parent"], described["name"]] if "parent" in described else [described[CONTROLLERS[0]]]
    place = Path(*parts)
    return f"/{place.relative_to(_mount_of(place))}"


def _mount_of(place: Path) -> Path:
    found = [mount for mount in _mounts() if place.is_relative_to(mount)]
    if not found:
        raise CgroupError(f"{place} is below no mounted control group hierarchy")
    return max(found, key=lambda mount: len(mount.parts))


def remove_elsewhere(path: str, name: str) -> None:
    """Remove the empty groups that an engine made for one sandbox. Idempotent."""
    for mount in _mounts():
        place = mount / path.strip("/")
        if (place / name).is_dir():
            remove_directories(place / name)


def release_elsewhere(path: str) -> None:
    """Remove the place itself where nothing is left in it."""
    for mount in _mounts():
        remove_empty(mount / path.strip("/"))


def _mounts() -> list[Path]:
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.split()[0] in ("cgroup", "cgroup2"):
            found.append(Path(left.split()[4]))
    return found
