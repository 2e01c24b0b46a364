"""The few system calls that Python 3.11 does not offer, with errors as OSError."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PARENT = 0x00008000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_NOATIME = 1, 2, 4, 32, 1024
MNT_DETACH = 2
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE, MS_SLAVE, MS_SHARED = 4096, 8192, 16384, 1 << 18, 1 << 19, 1 << 20

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_CAPBSET_DROP = 4, 38, 22, 24
PR_SET_CHILD_SUBREAPER, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 36, 47, 4
SECCOMP_MODE_FILTER = 2
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8
SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
CAPABILITIES_MAX = 64
CAPABILITY_VERSION_3 = 0x20080522
CAP_SYS_RESOURCE = 24
NS_GET_USERNS, NS_GET_PARENT = 0xB701, 0xB702  # linux/nsfs.h

AT_EMPTY_PATH, AT_RECURSIVE, AT_FDCWD = 0x1000, 0x8000, -100
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH = 4, 0x40
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_IDMAP = 1, 2, 4, 0x00100000
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_MOUNT_SETATTR = 428, 429, 442
SYS_CLONE = {"x86_64": 56, "aarch64": 220}
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


class SockFprog(ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(descriptor: int, kind: int) -> None:
    _checked(_libc.setns(descriptor, kind), f"setns({kind:#x})")


def checked_options(data: str) -> str:
    """Return the options of a mount, which the kernel would cut off at the end of a page. Raises OSError."""
    size, most = len(os.fsencode(data)), os.sysconf("SC_PAGE_SIZE") - 1
    if size > most:
        raise OSError(errno.E2BIG, f"options of {size} bytes ({data[:80]}...); the kernel takes {most}")
    return data


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    checked_options(data)
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), data.encode()
    )
    _checked(result, f"mount {source} on {target}")


def unmount(target: str, flags: int) -> None:
    _checked(_libc.umount2(target.encode(), ctypes.c_int(flags)), f"umount {target}")


def change_root(place: str) -> None:
    """Make what is mounted at `place` the root, for every process of this mount namespace that had the old one.

    The old root is mounted nowhere any more (pivot_root(2), which says why both of its arguments may be one place).
    """
    os.chdir(place)
    _checked(_libc.syscall(SYS_PIVOT_ROOT[os.uname().machine], b".", b"."), f"pivot_root to {place}")
    unmount(".", MNT_DETACH)
    os.chdir("/")


def mount_idmapped(source: int, target: str, user_namespace: int) -> None:
    """Bind the directory behind descriptor `source` on `target`, owners translated (mount_setattr(2), 5.12)."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH
    tree = _checked(_libc.syscall(SYS_OPEN_TREE, source, b"", ctypes.c_uint(flags)), "open_tree")
    try:
        attributes = struct.pack("<4Q", MOUNT_ATTR_IDMAP, 0, 0, user_namespace)
        result = _libc.syscall(SYS_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attributes, ctypes.c_size_t(32))
        _checked(result, "mount_setattr")
        result = _libc.syscall(
            SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, target.encode(), ctypes.c_uint(MOVE_MOUNT_F_EMPTY_PATH)
        )
        _checked(result, "move_mount")
    finally:
        os.close(tree)


def copy_mounts(source: int | str, attributes: int) -> int:
    """Return a descriptor of copies, attached nowhere, of what is mounted at a path, or a descriptor's, and below.

    What is mounted below the originals later is not seen in them: it would have none of these attributes.
    """
    flags = ctypes.c_uint(OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE | AT_EMPTY_PATH)
    at, path = (AT_FDCWD, source.encode()) if isinstance(source, str) else (source, b"")
    tree = _checked(_libc.syscall(SYS_OPEN_TREE, at, path, flags), f"open_tree {source}")
    wanted = struct.pack("<4Q", attributes, 0, MS_PRIVATE, 0)
    where = ctypes.c_uint(AT_EMPTY_PATH | AT_RECURSIVE)
    _checked(_libc.syscall(SYS_MOUNT_SETATTR, tree, b"", where, wanted, ctypes.c_size_t(32)), "mount_setattr")
    return tree


def attach_mounts(tree: int, place: int) -> None:
    """Mount such copies, whichever mount namespace they were copied in, on what a descriptor is of (move_mount(2))."""
    flags = ctypes.c_uint(MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH)
    _checked(_libc.syscall(SYS_MOVE_MOUNT, tree, b"", place, b"", flags), "move_mount")


def create_as(uid: int) -> None:
    """Have what this process creates from now on belong to `uid` and the group of that number."""
    _libc.setfsgid(ctypes.c_uint(uid))  # both return what was before, whatever they did
    _libc.setfsuid(ctypes.c_uint(uid))


def mount_overlay(target: str, options: str, uid: int | None) -> None:
    """Mount an overlay that writes as `uid`, if one is given: it does all in the name of whoever mounted it.

    Root's own could fill the blocks that file systems keep for root, and exceed quotas.
    """
    if uid is None:
        mount("overlay", target, "overlay", 0, options)
        return
    header, before = struct.pack("<Ii", CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    _checked(_libc.capget(header, before), "capget")
    create_as(uid)
    try:
        # With its file system's user it lost those of root's that overlays need as well.
        effective, *rest = struct.unpack("<6I", before.raw)
        lent = struct.pack("<6I", effective & ~(1 << CAP_SYS_RESOURCE), *rest)
        _checked(_libc.capset(header, lent), "capset")
        mount("overlay", target, "overlay", 0, options)
    finally:
        create_as(0)
        _checked(_libc.capset(header, before.raw), "capset")


def clone_sibling() -> int:
    """Fork a child whose parent is OUR parent, in the pid namespace set for children; 0 in the child.

    Raw, because no libc function does this; safe only in a single-threaded process that soon executes.
    """
    flags = CLONE_PARENT | int(signal.SIGCHLD)
    number = SYS_CLONE[os.uname().machine]
    return _checked(_libc.syscall(number, ctypes.c_ulong(flags), None, None, None, None), "clone")


def become_subreaper() -> None:
    _checked(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def make_undumpable() -> None:
    """Keep this process's memory (secrets) out of reach of processes with the same uid, and out of core dumps."""
    _checked(_libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def make_dumpable() -> None:
    """Let this process's owner have its files in /proc again; only for one whose memory holds no secret."""
    _checked(_libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def drop_capabilities() -> None:
    """Empty every capability set, the bounding set included."""
    for capability in range(CAPABILITIES_MAX):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the last capability this kernel knows
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = struct.pack("<Ii", CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, bytes(24)), "capset")


def forbid_new_privileges() -> None:
    _checked(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def load_filter(program: bytes) -> None:
    """Install a seccomp filter on this process and what it will execute."""
    holder = SockFprog(len(program) // 8, program)
    _checked(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(holder), 0, 0), "prctl(PR_SET_SECCOMP)")


def load_told_filter(program: bytes) -> int:
    """Install a filter that asks; return the listener, a descriptor for whoever answers (seccomp(2), Linux 5.0)."""
    holder = SockFprog(len(program) // 8, program)
    number = SYS_SECCOMP[os.uname().machine]
    flags = ctypes.c_ulong(SECCOMP_FILTER_FLAG_NEW_LISTENER)
    return _checked(_libc.syscall(number, SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(holder)), "seccomp")


def set_hostname(name: str) -> None:
    """Name the present UTS namespace."""
    text = name.encode()
    _checked(_libc.sethostname(text, ctypes.c_size_t(len(text))), "sethostname")
