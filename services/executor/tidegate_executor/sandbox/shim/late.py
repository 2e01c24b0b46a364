"""Mounts for a sandbox that stands already: gathered where their sources are seen, attached in its mount namespace.

Done by a child, which goes from the one to the other and ends; what is attached stays. Its end takes long, for a mount
namespace ends with it, so nobody waits for that: the shim reaps it. Nothing of a job may run in the sandbox before: who
could change its files meanwhile could lead a mount elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from tidegate_executor.sandbox.shim import staging, syscalls
from tidegate_executor.sandbox.shim.layout import Layout, hosts_text

COMPLAINT_BYTES_MAX = 2000
KINDS = ("read", "write", "take", "workspace")  # of plan entries that can come late
HOSTS_PATH = "/etc/hosts"


class LateError(Exception):
    """What a sandbox needs could not be mounted in it; the text says why."""


class Gathered(NamedTuple):
    """One mount that is attached nowhere yet."""

    target: str
    tree: int
    is_directory: bool
    writable: bool


def carry(config: dict[str, Any], late: list[list[str]], attach: Callable[[list[Gathered]], None]) -> None:
    """Gather the mounts of these plan entries, and /etc/hosts; have a child `attach` them. Raises LateError."""
    named = {**config, "bwrap": {**config["bwrap"], "plan": late, "site": []}}
    mapping = staging.Mapping() if any(kind == "workspace" for kind, _, _ in late) else None
    layout = Layout(named, mapping)
    layout.give()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            attach(_gather(layout, late, hosts_text(config["bwrap"]["hostname"], config["network"])))
        except BaseException as error:  # noqa: BLE001 - the report is the only way out of a forked child
            os.write(write, f"{type(error).__name__}: {error}".encode()[:COMPLAINT_BYTES_MAX])
        finally:
            os.close(write)
            os._exit(0)
    os.close(write)
    if mapping is not None:
        mapping.close()
    with open(read, "rb") as reading:
        complaint = reading.read()
    if complaint:
        raise LateError(complaint.decode(errors="replace"))


def _gather(layout: Layout, late: list[list[str]], hosts: bytes) -> list[Gathered]:
    layout.stage()
    os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)  # else it would end as we leave it, not when we do
    found = [_copied(layout, entry) for entry in layout.staged()]
    path = f"{staging.STAGE}/own.hosts"
    with open(path, "wb") as writing:
        writing.write(hosts)
    os.chmod(path, 0o444)
    attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_RDONLY
    found.append(Gathered(HOSTS_PATH, syscalls.copy_mounts(path, attributes), is_directory=False, writable=False))
    return found


def _copied(layout: Layout, entry: tuple[int, str, str, str]) -> Gathered:
    _, kind, source, target = entry
    if kind not in KINDS:
        raise LateError(f"{kind} at {target} cannot come late")
    if kind == "workspace":
        merged = f"{staging.STAGE}/merged"
        os.mkdir(merged)
        upper, work = layout.workspace()
        syscalls.mount("overlay", merged, "overlay", 0, f"lowerdir={source},upperdir={upper},workdir={work}")
        source = merged
    attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
    attributes |= syscalls.MOUNT_ATTR_RDONLY if kind == "read" else 0
    return Gathered(target, syscalls.copy_mounts(source, attributes), os.path.isdir(source), kind != "read")


def make_place(path: str, *, is_directory: bool) -> None:
    """Have something there to mount on."""
    if is_directory:
        os.makedirs(path, mode=0o755, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o444))
