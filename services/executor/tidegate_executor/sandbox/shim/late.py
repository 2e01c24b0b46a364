"""Mounts for a sandbox that stands already: gathered where their sources are seen, attached in its mount namespace.

Done by a child of the shim, which goes from the one to the other and ends; what is attached stays. Its end takes long,
for a mount namespace ends with it, so nobody waits for that: the shim reaps it. Nothing of a job may run in the sandbox
before: who could change its files meanwhile could lead a mount elsewhere.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from tidegate_executor.sandbox.shim import staging, syscalls
from tidegate_executor.sandbox.shim.layout import Layout, hosts_text

COMPLAINT_BYTES_MAX = 2000
DONE = b"\1"
LENGTH = "<I"
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


class Carrier:
    """That child, forked while there is time, with all it needs but the word what to mount; it ends without one."""

    def __init__(self, attach: Callable[[dict[str, Any], list[Gathered]], None]) -> None:
        """`attach` is what it does, with the configuration by then and the mounts that it has gathered."""
        self._mapping: staging.Mapping | None = staging.Mapping()
        tell_read, self._tell = os.pipe()
        self._report, report_write = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(self._tell)
            assert self._mapping is not None, "it was just made"
            _be_carrier(self._mapping, (tell_read, report_write), attach)
        os.close(tell_read)
        os.close(report_write)

    def carry(self, config: dict[str, Any], late: list[list[str]]) -> None:
        """Have the mounts of these plan entries, and /etc/hosts, attached. Raises LateError."""
        named = {name: config[name] for name in ("state_dir", "uid", "network")}
        named["bwrap"] = {**config["bwrap"], "plan": late, "site": []}
        Layout(named).give()
        with suppress(BrokenPipeError), open(self._tell, "wb") as telling:  # it says why it ended, if it did
            self._tell = -1
            text = json.dumps(named).encode()
            telling.write(struct.pack(LENGTH, len(text)) + text)
        with open(self._report, "rb") as reading:
            self._report = -1
            report = reading.read()
        self.close()
        if report != DONE:
            raise LateError(report.decode(errors="replace") or "what mounts it ended early")

    def close(self) -> None:
        """Need it no more."""
        for descriptor in (self._tell, self._report):
            if descriptor >= 0:
                os.close(descriptor)
        self._tell = self._report = -1
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None


def _be_carrier(
    mapping: staging.Mapping,
    pipes: tuple[int, int],
    attach: Callable[[dict[str, Any], list[Gathered]], None],
) -> NoReturn:
    tell, report = pipes
    try:
        with open(tell, "rb") as hearing:
            length = hearing.read(struct.calcsize(LENGTH))
            if not length:
                os._exit(0)  # nobody needs us
            # Not to the end, which comes late: processes that were forked since hold the pipe too.
            config = json.loads(hearing.read(*struct.unpack(LENGTH, length)))
        layout = Layout(config, mapping)
        attach(config, _gather(layout, hosts_text(config["bwrap"]["hostname"], config["network"])))
        os.write(report, DONE)
    except BaseException as error:  # noqa: BLE001 - the report is the only way out of a forked child
        os.write(report, f"{type(error).__name__}: {error}".encode()[:COMPLAINT_BYTES_MAX])
    finally:
        os.close(report)
        os._exit(0)


def _gather(layout: Layout, hosts: bytes) -> list[Gathered]:
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
