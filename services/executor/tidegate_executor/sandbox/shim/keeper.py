"""The namespaces in which a sandbox's guests are started: its files laid out as they shall see them, and loopback.

One child makes them and ends; descriptors keep them. Whatever is mounted there is gone with the last one. It must
never change a host mount.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import struct
from collections.abc import Callable
from typing import Any

from tidegate_executor.sandbox.shim import staging, syscalls
from tidegate_executor.sandbox.shim.hands import Gathered
from tidegate_executor.sandbox.shim.hold import executable
from tidegate_executor.sandbox.shim.joining import join
from tidegate_executor.sandbox.shim.late import HOSTS_PATH, Carrier, attach, open_place
from tidegate_executor.sandbox.shim.layout import DIRECTORIES, HOLD_PATH, Layout, hosts_text
from tidegate_executor.sandbox.shim.own_programs import set_process_limit
from tidegate_executor.sandbox.shim.plug import Plug, join_over
from tidegate_executor.sandbox.shim.told import carry_out_and_hold

ROOTFS = f"{staging.STAGE}/rootfs"
STATE = f"{staging.STAGE}/state"  # of the runtime
UPPER = f"{staging.STAGE}/upper"
SHARED = {"/tmp": f"{staging.STAGE}/tmp", "/dev/shm": f"{staging.STAGE}/shm"}
LIMITER_PATH = f"{os.path.dirname(HOLD_PATH)}/limit"
TOLD_PATH = f"{os.path.dirname(HOLD_PATH)}/told"
LATE = f"{staging.STAGE}/late"  # what is mounted here later is seen by guests that stand, at LATE_PATH
LATE_PATH = f"{os.path.dirname(HOLD_PATH)}/late"
SETUP_SECONDS_MAX = 20.0
REPORT_BYTES_MAX = 65536
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1

Mounts = list[dict[str, Any]]


class KeeperError(Exception):
    """The namespaces could not be made; the text says at what."""


class Keeper:
    """Holds them. `mounts` are what each guest mounts besides its root, as its runtime wants them; `state` is the
    directory of that, reached from outside. `late` are places seen by a guest that was booted before they were, each
    with where it belongs.
    """

    def __init__(self, config: dict[str, Any], place: Callable[[int], None]) -> None:
        self._config = config
        self._place = place
        self._mount_namespace = self._network = -1
        self.state = -1
        self.mounts: Mounts = []
        self.late: list[tuple[str, str]] = []
        self._carrier: Carrier | None = None
        self._plug: Plug | None = None

    def open(self) -> None:
        """Make them. Raises KeeperError; then nothing is left."""
        mapping = staging.Mapping()
        layout = Layout(self._config, mapping)
        layout.prepare()
        report_read, report_write = os.pipe()
        done_read, done_write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(done_write)
            _child(layout, self._config, (report_write, done_read))
        os.close(report_write)
        os.close(done_read)
        try:
            mapping.close()
            self._place(child)
            report = _report(report_read)
            if "error" in report:
                raise KeeperError(report["error"])
            self.mounts = report["mounts"]
            flags = os.O_RDONLY | os.O_CLOEXEC
            self._mount_namespace = os.open(f"/proc/{child}/ns/mnt", flags)
            self._network = os.open(f"/proc/{child}/ns/net", flags)
            join(self._config["network"], self._network)
            self.state = os.open(f"/proc/{child}/root{STATE}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        finally:
            os.close(report_read)
            os.close(done_write)
            os.waitpid(child, 0)
        if self._config.get("ready"):
            self._carrier = Carrier(self._attach, self._config["state_dir"])

    def plug(self) -> None:
        """Have a cable, for a network that may come. Raises JoiningError."""
        self._plug = Plug(self._network)

    def adopt(self, config: dict[str, Any], entries: list[list[str]], meanwhile: Callable[[], None]) -> None:
        """Add these entries of the mount plan. Raises LateError."""
        assert self._carrier is not None, "it stands ready"
        self._carrier.begin(config, entries)
        meanwhile()
        plug, self._plug = self._plug, None
        join_over(plug, config["network"], self._network)
        self._carrier.end()
        # /etc/hosts, which comes last, is mounted in every guest already.
        targets = [*((target, kind != "read") for kind, _, target in entries), (HOSTS_PATH, False)]
        self.late = [(f"{LATE_PATH}/{number}", target) for number, (target, _) in enumerate(targets)]
        self.mounts = [mount for mount in self.mounts if mount["destination"] != HOSTS_PATH]
        self.mounts += [
            bind(f"{LATE}/{number}", target, writable=writable) for number, (target, writable) in enumerate(targets)
        ]

    def _attach(self, config: dict[str, Any], gathered: list[Gathered]) -> None:
        """In a child: mount all of it where guests see it, and have places for it in their root."""
        syscalls.setns(self._mount_namespace, syscalls.CLONE_NEWNS)
        for number, each in enumerate(gathered):
            os.close(open_place(ROOTFS, each.target, is_directory=each.is_directory))
            attach(each, LATE, f"{number}")

    def enter(self) -> None:
        """In a child: go there."""
        syscalls.setns(self._network, syscalls.CLONE_NEWNET)
        syscalls.setns(self._mount_namespace, syscalls.CLONE_NEWNS)
        os.chdir("/")

    def close(self) -> None:
        if self._carrier is not None:
            self._carrier.close()
        if self._plug is not None:
            self._plug.close()
        for descriptor in (self._mount_namespace, self._network, self.state):
            if descriptor >= 0:
                os.close(descriptor)
        self._mount_namespace = self._network = self.state = -1


def _report(report_read: int) -> dict[str, Any]:
    text = b""
    while True:
        ready, _, _ = select.select([report_read], [], [], SETUP_SECONDS_MAX)
        if not ready:
            raise KeeperError(f"the sandbox's files were not laid out within {SETUP_SECONDS_MAX} s")
        part = os.read(report_read, REPORT_BYTES_MAX)
        text += part
        if text.endswith(b"\n"):
            found: dict[str, Any] = json.loads(text)
            return found
        if not part:
            raise KeeperError("what lays out the sandbox's files ended early")


def _child(layout: Layout, config: dict[str, Any], descriptors: tuple[int, int]) -> None:
    report, done = descriptors
    try:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        bring_up("lo")
        mounts = lay_out(layout, config)
        os.write(report, json.dumps({"mounts": mounts}).encode() + b"\n")
        os.read(done, 1)
    except BaseException as error:  # noqa: BLE001 - the report is the only way out of a forked child
        os.write(report, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
    finally:
        os._exit(0)


def bring_up(interface: str) -> None:
    """Set an interface of the present network namespace up (netdevice(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = struct.pack("16sh", interface.encode(), 0)
        (flags,) = struct.unpack("16xh", fcntl.ioctl(asking, SIOCGIFFLAGS, request)[:18])
        fcntl.ioctl(asking, SIOCSIFFLAGS, struct.pack("16sh", interface.encode(), flags | IFF_UP))


def lay_out(layout: Layout, config: dict[str, Any]) -> Mounts:
    """In the private mount namespace: build the root, return what is mounted on it by the runtime."""
    layout.stage()
    os.chdir(staging.STAGE)
    syscalls.mount("none", staging.STAGE, None, syscalls.MS_SHARED)  # so that guests see what is mounted later
    for path in (ROOTFS, STATE, UPPER, LATE, *SHARED.values()):
        os.mkdir(path, 0o755)
    for path in SHARED.values():
        syscalls.mount("tmpfs", path, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=1777")
    mounts: Mounts = []
    entries = layout.staged()
    for entry in entries:
        if entry[3] == "/":
            _lay(layout, entry, mounts)
    for name in ("/proc", "/dev", "/sys", "/tmp", "/etc", *DIRECTORIES):
        os.makedirs(ROOTFS + name, mode=0o755, exist_ok=True)
    for entry in entries:
        if entry[3] != "/":
            _lay(layout, entry, mounts)
    for target, source in {**SHARED, **layout.private()}.items():
        mounts.append(bind(source, target))
    machine = os.uname().machine
    hostname = config["hostname"]
    own = {
        HOLD_PATH: executable(machine),
        LIMITER_PATH: set_process_limit(machine),
        "/etc/hosts": hosts_text(hostname, config["network"]),
    }
    if config.get("ready"):
        own[TOLD_PATH] = carry_out_and_hold(machine)
    for target, content in own.items():
        path = _file(os.path.basename(target), content)
        mounts.append(bind(path, target, writable=False))
        if target == "/etc/hosts":
            os.chmod(path, 0o444)
            staging.own(path, config["uid"])
    return mounts


def _lay(layout: Layout, entry: tuple[int, str, str, str], mounts: Mounts) -> None:
    index, kind, source, target = entry
    place = ROOTFS + target
    if kind == "link":
        os.symlink(source, place)
    elif kind == "layer":
        os.makedirs(place, exist_ok=True)
        upper, work = f"{UPPER}/{index}", f"{UPPER}/{index}.work"
        os.mkdir(upper)
        os.mkdir(work)
        stack = [os.path.relpath(each, staging.STAGE) for each in source.split(":")]  # so more of them fit
        syscalls.mount_overlay(place, staging.overlay_options(stack, upper, work), layout.uid)
    elif kind == "workspace":
        merged = f"{UPPER}/workspace"
        os.mkdir(merged)
        upper, work = layout.workspace()
        syscalls.mount_overlay(merged, staging.overlay_options([source], upper, work), layout.uid)
        mounts.append(bind(merged, target))
    else:
        mounts.append(bind(source, target, writable=kind != "read"))


def _file(name: str, content: bytes) -> str:
    path = f"{staging.STAGE}/own.{name}"
    with open(path, "wb") as writing:
        writing.write(content)
    os.chmod(path, 0o555)
    return path


def bind(source: str, target: str, *, writable: bool = True) -> dict[str, Any]:
    """A mount of the OCI runtime specification."""
    options = ["rbind", "nosuid", "nodev", "rw" if writable else "ro"]
    return {"destination": target, "type": "bind", "source": source, "options": options}
