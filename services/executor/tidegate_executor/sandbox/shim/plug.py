"""A cable and a switch of its own for a sandbox that stands ready, before it is known whether its job has a network.

If the job's switch is not there yet, this one becomes it; else the cable is moved to the one that is. Used once: what
nobody took ends with the sandbox that it was made for. What is to do then is asked of the kernel over sockets that
were opened in both network namespaces, so nobody has to enter them.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

from tidegate_executor.sandbox.shim import netlink, syscalls
from tidegate_executor.sandbox.shim.descriptors import receive
from tidegate_executor.sandbox.shim.joining import (
    BRIDGE,
    INTERFACE,
    PREFIX_BITS,
    in_child,
    join,
    keep_switch,
    locked,
    stands,
)

PORT = "spare"  # until it is known whose
INDICES = "<ii"


def join_over(plug: Plug | None, network: dict[str, Any] | None, inside: int) -> None:
    """Have the network namespace `inside` in its network, if it has one, over its plug, if it has one.

    Raises JoiningError, OSError.
    """
    if plug is None:
        join(network, inside)
    elif network is None:
        plug.remove()
    else:
        plug.join(network)


class Plug:
    """See the module. `inside` is the sandbox's network namespace. Raises JoiningError."""

    def __init__(self, inside: int) -> None:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                in_child(lambda: _make(inside, theirs))
            packed, found = receive(ours, struct.calcsize(INDICES), 3)
        self._switch = found[0]
        self._outside, self._within = (socket.socket(fileno=each) for each in found[1:])
        self._port, self._interface = struct.unpack(INDICES, packed)

    def join(self, network: dict[str, Any]) -> None:
        """Have the sandbox in this network. Raises JoiningError, OSError."""
        with locked(network["switch"]):
            if stands(network["switch"]):
                in_child(lambda: self._move(network))
            else:
                netlink.name_and_set_up(self._port, network["port"], self._outside)
                keep_switch(network["switch"], self._switch)
        netlink.add_address(self._interface, network["address"], PREFIX_BITS, self._within)
        netlink.set_up(self._interface, self._within)
        self.close()

    def remove(self) -> None:
        """The sandbox has no network: take the cable out of it."""
        netlink.remove(self._interface, self._within)
        self.close()

    def close(self) -> None:
        """Keep nothing of it."""
        self._outside.close()
        self._within.close()
        if self._switch >= 0:
            os.close(self._switch)
            self._switch = -1

    def _move(self, network: dict[str, Any]) -> None:
        switch = os.open(network["switch"], os.O_RDONLY | os.O_CLOEXEC)
        syscalls.setns(switch, syscalls.CLONE_NEWNET)
        netlink.remove_named(network["port"])  # who had this place has ended, and the kernel may not be that far
        netlink.move(self._port, (network["port"], switch), self._outside)
        port = socket.if_nametoindex(network["port"])
        netlink.plug(port, socket.if_nametoindex(BRIDGE))


def _make(inside: int, theirs: socket.socket) -> None:
    syscalls.unshare(syscalls.CLONE_NEWNET)
    netlink.set_up(socket.if_nametoindex("lo"))
    netlink.make_bridge(BRIDGE)
    netlink.make_pair(PORT, BRIDGE, (INTERFACE, inside), up=False)
    port = socket.if_nametoindex(PORT)
    switch = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    outside = netlink.open_socket()
    syscalls.setns(inside, syscalls.CLONE_NEWNET)
    within = netlink.open_socket()
    indices = struct.pack(INDICES, port, socket.if_nametoindex(INTERFACE))
    socket.send_fds(theirs, [indices], [switch, outside.fileno(), within.fileno()])
