"""Process 1 of a guest that was booted before it is known whose it is: does what it is told once, then only holds.

It reads system calls with their arguments from its standard input, to the end of that, and makes one after the other;
a call that fails ends it, and so the guest. The last of them give up its user and its rights and say that all is done.
Nothing of a job runs in the guest before.
"""

from __future__ import annotations

import struct

from tidegate_executor.sandbox.shim import hold
from tidegate_executor.sandbox.shim.runtime import HOLD_ID

AREA, AREA_BYTES = 0x10000000, 65536  # where what it reads lies
CALL_BYTES = 48  # its number and five arguments
END = -1

# mmap(AREA, AREA_BYTES, read and write, private, anonymous, fixed); read(0, ...) until the end; then each call
X86_64 = bytes.fromhex(
    "b809000000"  # mov eax, 9            mmap
    "bf00000010"  # mov edi, AREA
    "be00000100"  # mov esi, AREA_BYTES
    "ba03000000"  # mov edx, 3
    "41ba32000000"  # mov r10d, 0x32
    "49c7c0ffffffff"  # mov r8, -1
    "4531c9"  # xor r9d, r9d
    "0f05"  # syscall
    "bb00000010"  # mov ebx, AREA
    "31c0"  # xor eax, eax          read
    "31ff"  # xor edi, edi
    "89de"  # mov esi, ebx
    "ba00100000"  # mov edx, 4096
    "0f05"  # syscall
    "85c0"  # test eax, eax
    "7e04"  # jle to cmp
    "01c3"  # add ebx, eax
    "ebeb"  # jmp back to xor eax, eax
    "81fb00000010"  # cmp ebx, AREA
    "742e"  # je to exit_group: told nothing
    "bb00000010"  # mov ebx, AREA
    "488b03"  # mov rax, [rbx]
    "4885c0"  # test rax, rax
    "782a"  # js to pause
    "488b7b08"  # mov rdi, [rbx+8]
    "488b7310"  # mov rsi, [rbx+16]
    "488b5318"  # mov rdx, [rbx+24]
    "4c8b5320"  # mov r10, [rbx+32]
    "4c8b4328"  # mov r8, [rbx+40]
    "0f05"  # syscall
    "4885c0"  # test rax, rax
    "7806"  # js to exit_group
    "4883c330"  # add rbx, 48
    "ebd7"  # jmp back to mov rax, [rbx]
    "89c7"  # mov edi, eax
    "b8e7000000"  # mov eax, 231          exit_group
    "0f05"  # syscall
    "b822000000"  # mov eax, 34           pause
    "0f05"  # syscall
    "ebf7"  # jmp back to pause
)

# The same. mmap is 222, read 63, exit_group 94, ppoll 73 there.
AARCH64 = struct.pack(
    "<40I",
    0xD2801BC8,  # mov x8,#222
    0xD2A20000,  # mov x0,#0x10000000
    0xD2A00021,  # mov x1,#0x10000
    0xD2800062,  # mov x2,#3
    0xD2800643,  # mov x3,#0x32
    0x92800004,  # mov x4,#-1
    0xD2800005,  # mov x5,#0
    0xD4000001,  # svc #0
    0xD2A20013,  # mov x19,#0x10000000
    0xD2800000,  # mov x0,#0
    0xAA1303E1,  # mov x1,x19
    0xD2820002,  # mov x2,#4096
    0xD28007E8,  # mov x8,#63
    0xD4000001,  # svc #0
    0xF100001F,  # cmp x0,#0
    0x5400006D,  # b.le done
    0x8B000273,  # add x19,x19,x0
    0x17FFFFF8,  # b l1
    0xD2A20014,  # mov x20,#0x10000000
    0xEB14027F,  # cmp x19,x20
    0x54000140,  # b.eq exit
    0xF9400288,  # ldr x8,[x20]
    0xB7F80148,  # tbnz x8,#63,hold
    0xA9408680,  # ldp x0,x1,[x20,#8]
    0xA9418E82,  # ldp x2,x3,[x20,#24]
    0xF9401684,  # ldr x4,[x20,#40]
    0xD4000001,  # svc #0
    0xB7F80060,  # tbnz x0,#63,exit
    0x9100C294,  # add x20,x20,#48
    0x17FFFFF8,  # b l2
    0xD2800BC8,  # mov x8,#94
    0xD4000001,  # svc #0
    0xD2800000,  # mov x0,#0
    0xD2800001,  # mov x1,#0
    0xD2800002,  # mov x2,#0
    0xD2800003,  # mov x3,#0
    0xD2800004,  # mov x4,#0
    0xD2800928,  # mov x8,#73
    0xD4000001,  # svc #0
    0x17FFFFF9,  # b hold
)

CODE = {"x86_64": X86_64, "aarch64": AARCH64}

# asm/unistd_64.h and asm-generic/unistd.h
NUMBERS = {
    "x86_64": {
        "mount": 165, "umount2": 166, "sethostname": 170, "setresgid": 119, "setresuid": 117, "prctl": 157,
        "rt_sigaction": 13, "write": 1,
    },
    "aarch64": {
        "mount": 40, "umount2": 39, "sethostname": 161, "setresgid": 149, "setresuid": 147, "prctl": 167,
        "rt_sigaction": 134, "write": 64,
    },
}  # fmt: skip
MS_BIND, MNT_DETACH = 4096, 2
PR_SET_DUMPABLE, SIGCHLD, SIGNAL_SET_BYTES = 4, 17, 8
DONE = b"\1"  # what it writes when all is done

Argument = int | bytes


def carry_out_and_hold(machine: str) -> bytes:
    """The executable."""
    return hold.wrap(machine, CODE[machine])


def instructions(machine: str, hostname: str, binds: list[tuple[str, str]], late: str) -> bytes:
    """What it is told: to bind these places where they belong, to forget `late`, which holds them, and its name."""
    calls: list[tuple[str, tuple[Argument, ...]]] = [
        ("mount", (_path(source), _path(target), 0, MS_BIND, 0)) for source, target in binds
    ]
    calls += [
        ("umount2", (_path(late), MNT_DETACH)),
        ("sethostname", (hostname.encode(), len(hostname.encode()))),
        # As `hold` does: nobody opens its memory, and the kernel reaps orphans.
        ("prctl", (PR_SET_DUMPABLE, 0)),
        ("rt_sigaction", (SIGCHLD, hold.SIGACTION_IGNORE, 0, SIGNAL_SET_BYTES)),
        ("setresgid", (HOLD_ID, HOLD_ID, HOLD_ID)),
        ("setresuid", (HOLD_ID, HOLD_ID, HOLD_ID)),  # with which every capability goes
        ("prctl", (PR_SET_DUMPABLE, 0)),  # what a change of user has set anew
        ("write", (1, DONE, len(DONE))),
    ]
    return _packed(NUMBERS[machine], calls)


def _path(text: str) -> bytes:
    return text.encode() + b"\0"


def _packed(numbers: dict[str, int], calls: list[tuple[str, tuple[Argument, ...]]]) -> bytes:
    """The calls, their end, and behind them what their arguments point to."""
    table, data = b"", b""
    start = AREA + CALL_BYTES * len(calls) + struct.calcsize("<q")
    for name, arguments in calls:
        words = []
        for argument in arguments:
            words.append(start + len(data) if isinstance(argument, bytes) else argument)
            data += argument + bytes(-len(argument) % 8) if isinstance(argument, bytes) else b""
        words += [0] * (CALL_BYTES // 8 - 1 - len(words))
        table += struct.pack("<6Q", numbers[name], *words)
    told = table + struct.pack("<q", END) + data
    if len(told) > AREA_BYTES:
        raise ValueError(f"{len(told)} bytes of instructions; accepted: {AREA_BYTES}")
    return told
