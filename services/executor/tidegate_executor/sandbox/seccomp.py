"""The system call filter of a sandbox: a denylist assembled to classic BPF for x86_64 and aarch64.

Standard library only (the shim loads it). The list holds what reaches past the namespaces or widens the kernel's
attack surface; numbers are from the kernel's syscall tables. It must never allow a foreign calling convention.
"""

from __future__ import annotations

import errno
import functools
import struct
from typing import NamedTuple

# struct seccomp_data (linux/seccomp.h): int nr; u32 arch; u64 instruction_pointer; u64 args[6], little endian here.
OFFSET_NR, OFFSET_ARCH, OFFSET_ARGS = 0, 4, 16

LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT = 0x15, 0x35, 0x45
RETURN = 0x06

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
ERRNO = 0x00050000
USER_NOTIF = 0x7FC00000  # whoever holds the listener answers

NAMESPACE_FLAGS = 0x7E020080  # CLONE_NEW{USER,PID,NET,IPC,UTS,CGROUP,NS,TIME}
X32_BIT = 0x40000000
TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
SOCKET_FAMILIES = (1, 2, 10, 16)  # UNIX, INET, INET6, NETLINK; others (VSOCK, ALG, ...) are not kept by a network ns

X86_64_DENIED = {
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "swapon": 167, "swapoff": 168,
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "bpf": 321,
    "perf_event_open": 298, "userfaultfd": 323, "add_key": 248, "request_key": 249, "keyctl": 250,
    "kexec_load": 246, "kexec_file_load": 320, "create_module": 174, "init_module": 175, "finit_module": 313,
    "delete_module": 176, "setns": 308, "unshare": 272, "name_to_handle_at": 303, "open_by_handle_at": 304,
    "reboot": 169, "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159,
    "sethostname": 170, "setdomainname": 171, "acct": 163, "quotactl": 179, "syslog": 103, "vhangup": 153,
    "iopl": 172, "ioperm": 173, "modify_ldt": 154, "fanotify_init": 300, "lookup_dcookie": 212,
    "nfsservctl": 180, "uselib": 134, "sysctl": 156, "move_pages": 279,
}  # fmt: skip
AARCH64_DENIED = {
    "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "swapon": 224, "swapoff": 225,
    "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "bpf": 280,
    "perf_event_open": 241, "userfaultfd": 282, "add_key": 217, "request_key": 218, "keyctl": 219,
    "kexec_load": 104, "kexec_file_load": 294, "init_module": 105, "finit_module": 273,
    "delete_module": 106, "setns": 268, "unshare": 97, "name_to_handle_at": 264, "open_by_handle_at": 265,
    "reboot": 142, "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266, "adjtimex": 171,
    "sethostname": 161, "setdomainname": 162, "acct": 89, "quotactl": 60, "syslog": 116, "vhangup": 58,
    "fanotify_init": 262, "lookup_dcookie": 18, "nfsservctl": 42, "move_pages": 239,
}  # fmt: skip
# From 424 on, numbers are the same on every architecture.
COMMON_DENIED = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "mount_setattr": 442,
    "quotactl_fd": 443, "open_tree_attr": 467,
}  # fmt: skip
CLONE3 = 435
# Denied like the others, but nobody is told: ordinary libraries make these calls, some of them often.
QUIET = {"move_pages", "kcmp", "adjtimex", "clock_adjtime", "modify_ldt", "io_uring_enter", "io_uring_register"}
INET_FAMILIES = (2, 10)
FAMILIES_MAX = 64  # of addresses, more than Linux has
RAW_KINDS = (3, 10)  # SOCK_RAW, SOCK_PACKET
KIND_MASK = 0xF  # the rest of a socket's kind are flags
INT_MASK = 0xFFFFFFFF  # what the filter, and the kernel, look at of an argument that is an int


class Architecture(NamedTuple):
    audit: int  # AUDIT_ARCH_*, linux/audit.h
    denied: dict[str, int]
    clone: int
    ioctl: int
    sockets: tuple[int, int]  # socket, socketpair: which makes them before it finds that a family has no pairs
    x32: bool


ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, X86_64_DENIED | COMMON_DENIED, 56, 16, (41, 53), x32=True),
    "aarch64": Architecture(0xC00000B7, AARCH64_DENIED | COMMON_DENIED, 220, 29, (198, 199), x32=False),
}


class Instruction(NamedTuple):
    """One instruction; jump targets are labels, None means the next one."""

    code: int
    value: int
    if_true: str | None = None
    if_false: str | None = None


def instructions(arch: Architecture, *, told: bool = False) -> list[Instruction | str]:
    """The filter as instructions and labels (strings).

    `told`: whoever holds its listener is asked for what is denied, and has to answer with `errno_of`.
    """
    code: list[Instruction | str] = [
        Instruction(LOAD, OFFSET_ARCH),
        Instruction(JUMP_EQUAL, arch.audit, None, "kill"),
        Instruction(LOAD, OFFSET_NR),
    ]
    if arch.x32:
        code.append(Instruction(JUMP_AT_LEAST, X32_BIT, "kill"))
    code += [
        Instruction(JUMP_EQUAL, number, "quiet" if name in QUIET else "deny")
        for name, number in sorted(arch.denied.items(), key=lambda item: item[1])
    ]
    code += [
        Instruction(JUMP_EQUAL, CLONE3, "absent"),  # its flags lie in memory: glibc then falls back to clone
        Instruction(JUMP_EQUAL, arch.clone, "clone"),
        Instruction(JUMP_EQUAL, arch.ioctl, "ioctl"),
        *[Instruction(JUMP_EQUAL, number, "socket") for number in arch.sockets],
        "allow",
        Instruction(RETURN, ALLOW),
        "clone",
        Instruction(LOAD, OFFSET_ARGS),
        Instruction(JUMP_ANY_BIT, NAMESPACE_FLAGS, "deny", "allow2"),
        "ioctl",
        Instruction(LOAD, OFFSET_ARGS + 8),
        *[Instruction(JUMP_EQUAL, request, "deny") for request in TERMINAL_INJECTION],
        Instruction(RETURN, ALLOW),
        "socket",
        Instruction(LOAD, OFFSET_ARGS),
        *[Instruction(JUMP_EQUAL, family, "kind") for family in INET_FAMILIES],
        *[Instruction(JUMP_EQUAL, family, "allow2") for family in SOCKET_FAMILIES],
        Instruction(RETURN, USER_NOTIF if told else ERRNO | errno.EAFNOSUPPORT),
        "kind",
        Instruction(LOAD, OFFSET_ARGS + 8),
        Instruction(AND, KIND_MASK),
        *[Instruction(JUMP_EQUAL, kind, "deny") for kind in RAW_KINDS],
        "allow2",
        Instruction(RETURN, ALLOW),
        "deny",
        Instruction(RETURN, USER_NOTIF if told else ERRNO | errno.EPERM),
        "quiet",
        Instruction(RETURN, ERRNO | errno.EPERM),
        "absent",
        Instruction(RETURN, ERRNO | errno.ENOSYS),
        "kill",
        Instruction(RETURN, KILL_PROCESS),
    ]
    return code


def assemble(code: list[Instruction | str]) -> bytes:
    """Resolve labels to relative jumps; `struct sock_filter` is {u16 code; u8 jt; u8 jf; u32 k}."""
    at: dict[str, int] = {}
    plain: list[Instruction] = []
    for item in code:
        if isinstance(item, str):
            at[item] = len(plain)
        else:
            plain.append(item)
    packed = b""
    for index, item in enumerate(plain):
        jumps = [at[label] - index - 1 if label else 0 for label in (item.if_true, item.if_false)]
        if not all(0 <= jump <= 255 for jump in jumps):
            raise ValueError(f"instruction {index} jumps by {jumps}; classic BPF reaches 0..255 forward")
        packed += struct.pack("<HBBI", item.code, *jumps, item.value)
    return packed


@functools.cache
def program(machine: str, *, told: bool = False) -> bytes:
    """The filter for `os.uname().machine`."""
    return assemble(instructions(_architecture(machine), told=told))


def name_of(machine: str, number: int, arguments: tuple[int, ...]) -> str:
    """What a denied call is called, with what of its arguments it was denied for: one of a few hundred names."""
    arch = _architecture(machine)
    if number in arch.sockets:
        family = arguments[0] & INT_MASK
        if family in INET_FAMILIES:
            return "socket(raw)"
        return f"socket({family})" if family < FAMILIES_MAX else "socket"
    known = {**arch.denied, "clone(namespaces)": arch.clone, "ioctl(terminal)": arch.ioctl}
    return next((name for name, each in known.items() if each == number), f"call {number}")


def errno_of(machine: str, number: int, arguments: tuple[int, ...]) -> int:
    """What a denied call fails with."""
    other_family = number in _architecture(machine).sockets and arguments[0] & INT_MASK not in SOCKET_FAMILIES
    return errno.EAFNOSUPPORT if other_family else errno.EPERM


def _architecture(machine: str) -> Architecture:
    arch = ARCHITECTURES.get(machine)
    if arch is None:
        raise ValueError(f"no system call table for {machine!r}; known: {', '.join(sorted(ARCHITECTURES))}")
    return arch
