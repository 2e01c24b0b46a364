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


def ask(kind: int, body: bytes, flags: int = 0) -> None:
    """Send one request in the present network namespace. Raises OSError with the kernel's answer."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_ROUTE) as asking:
        asking.settimeout(ANSWER_SECONDS_MAX)
        header = struct.pack("=IHHII", 16 + len(body), kind, NLM_F_REQUEST | NLM_F_ACK | flags, 1, 0)
        asking.sendall(header + body)
        answer = asking.recv(ANSWER_BYTES)
    (answered,) = struct.unpack("=H", answer[4:6])
    (error,) = struct.unpack("=i", answer[16:20])
    if answered == NLMSG_ERROR and error:
        raise OSError(-error, f"rtnetlink: {os.strerror(-error)}")


def make_bridge(name: str) -> None:
    """Make a bridge and set it up."""
    information = attribute(IFLA_LINKINFO, attribute(IFLA_INFO_KIND, b"bridge\0"))
    body = link(flags=IFF_UP, change=IFF_UP) + attribute(IFLA_IFNAME, f"{name}\0".encode()) + information
    ask(RTM_NEWLINK, body, NLM_F_CREATE | NLM_F_EXCL)


def make_pair(name: str, bridge: str, peer: tuple[str, int]) -> None:
    """Make a veth pair: one end here, on the bridge and up; its peer (name, descriptor) in another namespace."""
    master = attribute(IFLA_MASTER, struct.pack("=i", socket.if_nametoindex(bridge)))
    other = link() + attribute(IFLA_IFNAME, f"{peer[0]}\0".encode())
    other += attribute(IFLA_NET_NS_FD, struct.pack("=i", peer[1]))
    data = attribute(IFLA_INFO_DATA, attribute(VETH_INFO_PEER, other))
    information = attribute(IFLA_LINKINFO, attribute(IFLA_INFO_KIND, b"veth\0") + data)
    head = link(flags=IFF_UP, change=IFF_UP) + attribute(IFLA_IFNAME, f"{name}\0".encode())
    ask(RTM_NEWLINK, head + master + information, NLM_F_CREATE | NLM_F_EXCL)


def remove(name: str) -> None:
    """Remove an interface, and its peer with it; one that is gone is no fault."""
    try:
        ask(RTM_DELLINK, link(socket.if_nametoindex(name)))
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise


def set_up(name: str) -> None:
    """Set an interface up."""
    ask(RTM_NEWLINK, link(socket.if_nametoindex(name), IFF_UP, IFF_UP))


def add_address(name: str, address: str, prefix_bits: int) -> None:
    """Give an interface an IPv4 address."""
    packed = socket.inet_aton(address)
    head = struct.pack("=BBBBi", socket.AF_INET, prefix_bits, 0, 0, socket.if_nametoindex(name))
    body = head + attribute(IFA_LOCAL, packed) + attribute(IFA_ADDRESS, packed)
    ask(RTM_NEWADDR, body, NLM_F_CREATE | NLM_F_EXCL)
