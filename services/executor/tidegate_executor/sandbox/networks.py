"""The private networks of jobs on this node: one switch per job, in a network namespace that holds nothing else.

Shims make a switch when the first of them needs it (`shim/joining.py`); it is kept by a file that the namespace is
mounted on, so that it outlives the agent and each shim. Whoever is not plugged in does not reach it.
"""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path

from tidegate_executor.sandbox.base import Network, RequestRefusedError
from tidegate_executor.sandbox.shim import syscalls
from tidegate_executor.sandbox.shim.joining import LOCK_NAME, stands
from tidegate_executor.sandbox.state import ID_PATTERN

DIRECTORY = ".networks"  # beside the sandboxes; no sandbox id starts with a dot
MEMBERS_MAX = 4096


def plan(sandboxes_dir: str, network: Network) -> dict[str, str]:
    """What a shim needs to join. Raises RequestRefusedError."""
    if os.geteuid() != 0:
        raise RequestRefusedError("a private network among a job's sandboxes needs an agent that runs as root")
    if not ID_PATTERN.fullmatch(network.name):
        raise RequestRefusedError(f"network {network.name!r} refused; accepted: {ID_PATTERN.pattern}")
    if not 0 <= network.member < MEMBERS_MAX:
        raise RequestRefusedError(f"member {network.member} refused; accepted: 0..{MEMBERS_MAX - 1}")
    place = Path(sandboxes_dir).absolute() / DIRECTORY / network.name
    return {"switch": str(place), "port": f"member{network.member}", "address": address(network.member)}


def address(member: int) -> str:
    """The address of a job's member on this node, counted from 0. Every job's network has the same ones."""
    number = member + 1
    return f"10.201.{number // 256}.{number % 256}"


def remove(sandboxes_dir: Path, name: str) -> None:
    """Remove a switch, which nobody may be plugged into any more. Idempotent. Blocks."""
    place = sandboxes_dir.absolute() / DIRECTORY / name
    if stands(str(place)):
        syscalls.unmount(str(place), 0)
    place.unlink(missing_ok=True)


def clear_strays(sandboxes_dir: Path, used: Set[str]) -> None:
    """Remove switches of no network in `used`: whoever removed its last sandbox ended before its switch. Blocks."""
    if os.geteuid() != 0:
        return  # who could make none cannot remove another's
    for name in set(names(str(sandboxes_dir))) - used:
        remove(sandboxes_dir, name)


def names(sandboxes_dir: str) -> list[str]:
    """Return the switches that are there."""
    directory = Path(sandboxes_dir) / DIRECTORY
    return sorted(entry.name for entry in directory.iterdir() if entry.name != LOCK_NAME) if directory.is_dir() else []
