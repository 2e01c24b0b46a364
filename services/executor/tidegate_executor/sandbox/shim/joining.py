"""Join a sandbox to its job's private network: a cable from the switch's namespace into the sandbox's own.

Done by a child, which enters both; the shim itself never leaves its network namespace. The switch is a bridge in a
namespace that holds nothing else; the first sandbox that needs it makes it, and it stays when that one ends.
"""

from __future__ import annotations

import fcntl
import os
from typing import Any

from tidegate_executor.sandbox.shim import netlink, syscalls

BRIDGE = "switch"
INTERFACE = "gang0"  # inside
LOCK_NAME = ".lock"
PREFIX_BITS = 16
COMPLAINT_BYTES_MAX = 2000


class JoiningError(Exception):
    """The sandbox could not be joined; the text says at what."""


def join(network: dict[str, Any] | None, inside: int) -> None:
    """Give the network namespace `inside` its interface, if the sandbox has a network. Raises JoiningError."""
    if network is None:
        return
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _join(network, inside)
        except BaseException as error:  # noqa: BLE001 - the report is the only way out of a forked child
            os.write(write, f"{type(error).__name__}: {error}".encode()[:COMPLAINT_BYTES_MAX])
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as reading:
        complaint = reading.read()
    os.waitpid(child, 0)
    if complaint:
        raise JoiningError(f"the job's network: {complaint.decode(errors='replace')}")


def _join(network: dict[str, Any], inside: int) -> None:
    with open(_lock_of(network["switch"]), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stands(network["switch"]):
            _make_switch(network["switch"])
    switch = os.open(network["switch"], os.O_RDONLY | os.O_CLOEXEC)
    syscalls.setns(switch, syscalls.CLONE_NEWNET)
    try:
        netlink.make_pair(network["port"], BRIDGE, (INTERFACE, inside))
    except FileExistsError:
        # Who had this place has ended: the kernel takes away the namespaces of the dead, and their cables, when it can.
        netlink.remove(network["port"])
        netlink.make_pair(network["port"], BRIDGE, (INTERFACE, inside))
    syscalls.setns(inside, syscalls.CLONE_NEWNET)
    netlink.add_address(INTERFACE, network["address"], PREFIX_BITS)
    netlink.set_up(INTERFACE)


def _lock_of(switch: str) -> str:
    directory = os.path.dirname(switch)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    return os.path.join(directory, LOCK_NAME)


def stands(switch: str) -> bool:
    """Whether a namespace is mounted there; a file that a power cut left is its directory's file system's."""
    try:
        return os.stat(switch).st_dev != os.stat(os.path.dirname(switch)).st_dev
    except FileNotFoundError:
        return False


def _make_switch(switch: str) -> None:
    os.close(os.open(switch, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    syscalls.unshare(syscalls.CLONE_NEWNET)
    netlink.set_up("lo")
    netlink.make_bridge(BRIDGE)
    syscalls.mount("/proc/self/ns/net", switch, None, syscalls.MS_BIND)
