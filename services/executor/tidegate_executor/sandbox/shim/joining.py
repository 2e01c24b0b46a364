"""Join a sandbox to its job's private network: a cable from the switch's namespace into the sandbox's own.

Done by a child, which enters both; the shim itself never leaves its network namespace. The switch is a bridge in a
namespace that holds nothing else; the first sandbox that needs it makes it, and it stays when that one ends.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    if network is not None:
        in_child(lambda: _join(network, inside))


def in_child(work: Callable[[], None], what: str = "the job's network") -> None:
    """Do this in a child, which may go to other namespaces. Raises JoiningError: `what` it was about, and the error."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the report is the only way out of a forked child
            os.write(write, f"{type(error).__name__}: {error}".encode()[:COMPLAINT_BYTES_MAX])
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as reading:
        complaint = reading.read()
    os.waitpid(child, 0)
    if complaint:
        raise JoiningError(f"{what}: {complaint.decode(errors='replace')}")


def _join(network: dict[str, Any], inside: int) -> None:
    with locked(network["switch"]):
        if not stands(network["switch"]):
            _make_switch(network["switch"])
    switch = os.open(network["switch"], os.O_RDONLY | os.O_CLOEXEC)
    syscalls.setns(switch, syscalls.CLONE_NEWNET)
    try:
        netlink.make_pair(network["port"], BRIDGE, (INTERFACE, inside))
    except FileExistsError:
        # Who had this place has ended: the kernel takes away the namespaces of the dead, and their cables, when it can.
        netlink.remove_named(network["port"])
        netlink.make_pair(network["port"], BRIDGE, (INTERFACE, inside))
    syscalls.setns(inside, syscalls.CLONE_NEWNET)
    interface = socket.if_nametoindex(INTERFACE)
    netlink.add_address(interface, network["address"], PREFIX_BITS)
    netlink.set_up(interface)


@contextmanager
def locked(switch: str) -> Iterator[None]:
    """Nobody else makes a switch beside this one meanwhile."""
    directory = os.path.dirname(switch)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    with open(os.path.join(directory, LOCK_NAME), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def stands(switch: str) -> bool:
    """Whether a namespace is mounted there; a file that a power cut left is its directory's file system's."""
    try:
        return os.stat(switch).st_dev != os.stat(os.path.dirname(switch)).st_dev
    except FileNotFoundError:
        return False


def keep_switch(switch: str, namespace: int) -> None:
    """Keep this network namespace (a descriptor) as the switch."""
    os.close(os.open(switch, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    syscalls.mount(f"/proc/self/fd/{namespace}", switch, None, syscalls.MS_BIND)


def _make_switch(switch: str) -> None:
    syscalls.unshare(syscalls.CLONE_NEWNET)
    netlink.set_up(socket.if_nametoindex("lo"))
    netlink.make_bridge(BRIDGE)
    namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    keep_switch(switch, namespace)
    os.close(namespace)
