"""Network interfaces by rtnetlink(7): bridges, veth pairs, addresses, in whatever network namespace the caller is.

Standard library only. Every call is one request and its acknowledgement.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

NETLINK_ROUTE = 0
RTM_NEWLINK, RTM_DELLINK, RTM_NEWADDR = 16, 17, 20
NLM_F_REQUEST, NLM_F_ACK, NLM_F_EXCL, NLM_F_CREATE = 0x1, 0x4, 0x200, 0x400
NLMSG_ERROR = 2
IFF_UP = 1
IFLA_IFNAME, IFLA_MASTER, IFLA_LINKINFO, IFLA_NET_NS_FD = 3, 10, 18, 28
IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER = 1, 2, 1
IFA_ADDRESS, IFA_LOCAL = 1, 2
ANSWER_BYTES = 65536
ANSWER_SECONDS_MAX = 10.0


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def link(index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    """struct ifinfomsg."""
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, change)


def open_socket() -> socket.socket:
    """A socket to ask over about the present network namespace, wherever it is used."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_ROUTE)


def ask(kind: int, body: bytes, flags: int = 0, over: socket.socket | None = None) -> None:
    """Send one request, in the present network namespace or that of a socket. Raises OSError with the answer."""
    if over is None:
        with open_socket() as asking:
            ask(kind, body, flags, asking)
        return
    over.settimeout(ANSWER_SECONDS_MAX)
    header = struct.pack("=IHHII", 16 + len(body), kind, NLM_F_REQUEST | NLM_F_ACK | flags, 1, 0)
    over.sendall(header + body)
    answer = over.recv(ANSWER_BYTES)
    (answered,) = struct.unpack("=H", answer[4:6])
    (error,) = struct.unpack("=i", answer[16:20])
    if answered == NLMSG_ERROR and error:
        raise OSError(-error, f"rtnetlink: {os.strerror(-error)}")


def make_bridge(name: str) -> None:
    """Make a bridge and set it up."""
    information = attribute(IFLA_LINKINFO, attribute(IFLA_INFO_KIND, b"bridge\0"))
    body = link(flags=IFF_UP, change=IFF_UP) + attribute(IFLA_IFNAME, f"{name}\0".encode()) + information
    ask(RTM_NEWLINK, body, NLM_F_CREATE | NLM_F_EXCL)


def make_pair(name: str, bridge: str, peer: tuple[str, int], *, up: bool = True) -> None:
    """Make a veth pair: one end here, on the bridge and up; its peer (name, descriptor) in another namespace."""
    master = attribute(IFLA_MASTER, struct.pack("=i", socket.if_nametoindex(bridge)))
    other = link() + attribute(IFLA_IFNAME, f"{peer[0]}\0".encode())
    other += attribute(IFLA_NET_NS_FD, struct.pack("=i", peer[1]))
    data = attribute(IFLA_INFO_DATA, attribute(VETH_INFO_PEER, other))
    information = attribute(IFLA_LINKINFO, attribute(IFLA_INFO_KIND, b"veth\0") + data)
    flags = IFF_UP if up else 0
    head = link(flags=flags, change=flags) + attribute(IFLA_IFNAME, f"{name}\0".encode())
    ask(RTM_NEWLINK, head + master + information, NLM_F_CREATE | NLM_F_EXCL)


def remove(index: int, over: socket.socket | None = None) -> None:
    """Remove an interface, and its peer with it; one that is gone is no fault. Raises OSError."""
    _remove(link(index), over)


def remove_named(name: str) -> None:
    """Remove the interface of this name, and its peer with it; where there is none is no fault. Raises OSError."""
    _remove(link() + attribute(IFLA_IFNAME, f"{name}\0".encode()), None)


def _remove(body: bytes, over: socket.socket | None) -> None:
    try:
        ask(RTM_DELLINK, body, over=over)
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise


def move(index: int, to: tuple[str, int], over: socket.socket) -> None:
    """Give an interface to another namespace (a descriptor), under this name."""
    body = link(index) + attribute(IFLA_NET_NS_FD, struct.pack("=i", to[1]))
    ask(RTM_NEWLINK, body + attribute(IFLA_IFNAME, f"{to[0]}\0".encode()), over=over)


def plug(index: int, bridge: int) -> None:
    """Put an interface on a bridge, and set it up."""
    ask(RTM_NEWLINK, link(index, IFF_UP, IFF_UP) + attribute(IFLA_MASTER, struct.pack("=i", bridge)))


def name_and_set_up(index: int, name: str, over: socket.socket) -> None:
    """Give an interface that is down its name, and set it up."""
    ask(RTM_NEWLINK, link(index, IFF_UP, IFF_UP) + attribute(IFLA_IFNAME, f"{name}\0".encode()), over=over)


def set_up(index: int, over: socket.socket | None = None) -> None:
    """Set an interface up."""
    ask(RTM_NEWLINK, link(index, IFF_UP, IFF_UP), over=over)


def add_address(index: int, address: str, prefix_bits: int, over: socket.socket | None = None) -> None:
    """Give an interface an IPv4 address."""
    packed = socket.inet_aton(address)
    head = struct.pack("=BBBBi", socket.AF_INET, prefix_bits, 0, 0, index)
    body = head + attribute(IFA_LOCAL, packed) + attribute(IFA_ADDRESS, packed)
    ask(RTM_NEWADDR, body, NLM_F_CREATE | NLM_F_EXCL, over)
