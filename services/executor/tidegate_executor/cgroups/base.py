"""The control group port: one group per sandbox, one below it per replica, whatever kernel interface holds them.

Standard library only and synchronous: the sandbox's shim imports this too, and it must start in milliseconds.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import NamedTuple, Protocol

MIB = 1024 * 1024
CPU_PERIOD_USEC = 100_000
GIVEN_UP_BYTES_MAX = 64 << 20
REMOVE_SECONDS_MAX = 5.0
FREEZE_SECONDS_MAX = 5.0
KILL_ROUNDS_MAX = 200
READ_BYTES = 65536


class CgroupError(Exception):
    """The kernel did not do what a control group must do; the text names file and reason."""


class CgroupRefusedError(CgroupError):
    """New limits were not taken; the old ones still hold."""


class Quota(NamedTuple):
    """Limits of one group. As a read-back it is what the kernel says."""

    cpu_millis: int
    memory_mib: int
    pids: int


class Usage(NamedTuple):
    """What a group uses now, and its counters since it was made.

    `cpu_periods` are quota periods in which something ran, `cpu_throttled_periods` those that used the quota up, and
    `memory_limit_hits` how often the memory limit was reached (which reclaims before it kills).
    """

    cpu_usec: int
    memory_bytes: int
    memory_peak_bytes: int
    processes: int
    oom_kills: int
    cpu_periods: int = 0
    cpu_throttled_periods: int = 0
    cpu_throttled_usec: int = 0
    memory_limit_hits: int = 0


class Group(Protocol):
    """One group; its directories exist after `create`."""

    def create(self) -> None: ...

    def child(self, name: str) -> Group: ...

    def add(self, pid: int) -> None:
        """Move one process here."""
        ...

    def apply(self, quota: Quota) -> None:
        """Set all limits, which `quota` reads back. Memory is never taken by killing (CgroupRefusedError)."""
        ...

    def bound(self, memory_mib: int, pids: int) -> None:
        """Set the limits of a group that holds other groups (no CPU limit)."""
        ...

    def usage(self) -> Usage: ...

    def quota(self) -> Quota: ...

    def pids(self) -> list[int]:
        """Every process in this group and below."""
        ...

    def kill(self) -> None:
        """SIGKILL everything in the group and below, leaving nothing time to fork away."""
        ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def frozen(self) -> bool: ...

    def watch_oom(self) -> int | None:
        """A descriptor that becomes readable when this group runs out of memory; None where the kernel
        kills the whole group itself.
        """
        ...

    def exists(self) -> bool: ...

    def remove(self) -> None:
        """Kill what is left, then remove the group and those below it. Idempotent."""
        ...


class Driver(Protocol):
    """A place where this agent may make groups. `describe` round-trips through JSON with `driver_from`."""

    @property
    def kind(self) -> str: ...

    def prepare(self) -> None:
        """Make the place usable. Idempotent."""
        ...

    def group(self, name: str) -> Group: ...

    def names(self) -> list[str]:
        """Groups that exist in this place."""
        ...

    def release(self) -> None:
        """Remove the place itself if no group is left in it."""
        ...

    def describe(self) -> dict[str, str]: ...


def read(path: Path) -> str:
    """Read a control file; errors name it. By bare calls: a start reads several, and Python's own files cost more."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = b""
            while part := os.read(descriptor, READ_BYTES):
                text += part
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CgroupError(f"cannot read {path}: {error.strerror}") from error
    return text.decode()


def write(path: Path, value: str) -> None:
    """Write a control file in one write(2), as the kernel wants it; errors name file and value."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    except OSError as error:
        raise CgroupError(f"cannot open {path}: {error.strerror}") from error
    try:
        os.write(descriptor, value.encode())
    except OSError as error:
        raise CgroupError(f"cannot write {value!r} to {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def keyed(text: str) -> dict[str, int]:
    """Parse a flat-keyed file (`name value` per line)."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].lstrip("-").isdigit()}


def subtree(top: Path) -> list[Path]:
    """`top` and every group below it, deepest first."""
    if not top.is_dir():
        return []
    return [Path(where) for where, _, _ in os.walk(top, topdown=False)]


def give_up_memory(top: Path, usage: str, reclaim: str, how: str) -> None:
    """Have the kernel take back what dead processes left in a group and those below: file pages, names it looked up.

    While there is any, a removed group lives on in the kernel, and 1,500 of them slow the next starts down by a third.
    `usage` and `reclaim` are names of control files, `how` what is written, with `{}` for the bytes. A group with much
    left keeps it: taking back means to write out what is not on disk yet, and many such groups there cannot be.
    """
    for directory in subtree(top):
        try:
            left = int(read(directory / usage))
            if 0 < left <= GIVEN_UP_BYTES_MAX:
                write(directory / reclaim, how.format(left))
        except CgroupError:
            continue  # something of it is in use, or the kernel is too old to be asked: it goes when memory runs short


def remove_empty(directory: Path) -> None:
    """rmdir, where having groups or being gone are both fine; one that had groups until now is busy for a moment."""
    deadline = time.monotonic() + REMOVE_SECONDS_MAX
    while True:
        try:
            os.rmdir(directory)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EBUSY, errno.ENOTEMPTY):
                raise CgroupError(f"cannot remove {directory}: {error.strerror}") from error
            passing = error.errno == errno.EBUSY and subtree(directory) == [directory]
            if passing and not read(directory / "cgroup.procs") and time.monotonic() < deadline:
                time.sleep(0.01)
                continue
        return


def remove_directories(top: Path) -> None:
    """rmdir a tree of groups; a group stays busy until its last killed process is gone, so retry in bounds."""
    deadline = time.monotonic() + REMOVE_SECONDS_MAX
    pause_seconds = 0.0005
    for directory in subtree(top):
        while True:
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise CgroupError(f"cannot remove {directory}: {error.strerror}") from error
                time.sleep(pause_seconds)
                pause_seconds = min(pause_seconds * 2, 0.05)
            else:
                break
