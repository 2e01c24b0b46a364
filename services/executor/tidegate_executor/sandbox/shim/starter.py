"""A program of a few hundred bytes that waits, inside a sandbox, for the first replica's command and becomes it.

To be executed out of it is cheap; out of a Python, whose memory must be given up, it takes four times as long. It reads
a table of system calls from descriptor TELL, its size first, and makes one after the other: the last is an execve that
does not return. What a call that failed returned goes to STATUS, in eight bytes each, after ARRIVED that it is in its
directory, and GAVE_UP when it ends.

It is used where no process of a job runs yet: one of the same user could look into it.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import struct
from typing import NoReturn

from tidegate_executor.sandbox.shim import hold
from tidegate_executor.sandbox.shim.memory import memory_program

TELL, STATUS = 3, 4
AREA = 0x10000000  # where what it reads lies
CALL_BYTES = 48  # number, four arguments, and whether it ends if this one fails
END = -1
ARRIVED, GAVE_UP = 0, 1
HIGH = 64  # above the two descriptors

X86_64 = bytes.fromhex(
    "31c0"  # xor eax, eax            read the size
    "bf03000000"  # mov edi, TELL
    "488d7424f0"  # lea rsi, [rsp-16]
    "ba08000000"  # mov edx, 8
    "0f05"  # syscall
    "83f808"  # cmp eax, 8
    "0f85a1000000"  # jne to give up
    "4c8b7424f0"  # mov r14, [rsp-16]
    "b809000000"  # mov eax, 9              mmap
    "bf00000010"  # mov edi, AREA
    "4c89f6"  # mov rsi, r14
    "ba03000000"  # mov edx, 3              to read and write
    "41ba32000000"  # mov r10d, 0x32          private, anonymous, fixed
    "49c7c0ffffffff"  # mov r8, -1
    "4531c9"  # xor r9d, r9d
    "0f05"  # syscall
    "4885c0"  # test rax, rax
    "7873"  # js to give up
    "4889c3"  # mov rbx, rax
    "4989c5"  # mov r13, rax
    "4901c6"  # add r14, rax            its end
    "31c0"  # xor eax, eax            read
    "bf03000000"  # mov edi, TELL
    "4889de"  # mov rsi, rbx
    "4c89f2"  # mov rdx, r14
    "4829da"  # sub rdx, rbx
    "740c"  # je to mov rbx, r13: all is read
    "0f05"  # syscall
    "4885c0"  # test rax, rax
    "7e51"  # jle to give up
    "4801c3"  # add rbx, rax
    "ebe2"  # jmp back to read
    "4c89eb"  # mov rbx, r13
    "488b03"  # mov rax, [rbx]          the next call
    "4885c0"  # test rax, rax
    "7841"  # js to give up
    "488b7b08"  # mov rdi, [rbx+8]
    "488b7310"  # mov rsi, [rbx+16]
    "488b5318"  # mov rdx, [rbx+24]
    "4c8b5320"  # mov r10, [rbx+32]
    "0f05"  # syscall
    "4885c0"  # test rax, rax
    "7806"  # js to mov r12: it failed
    "4883c330"  # add rbx, CALL_BYTES
    "ebdb"  # jmp back to the next call
    "4c8b6328"  # mov r12, [rbx+40]
    "48894424f0"  # mov [rsp-16], rax
    "b801000000"  # mov eax, 1              write
    "bf04000000"  # mov edi, STATUS
    "488d7424f0"  # lea rsi, [rsp-16]
    "ba08000000"  # mov edx, 8
    "0f05"  # syscall
    "4d85e4"  # test r12, r12
    "74d6"  # je back to add rbx
    "48c74424f001000000"  # mov qword [rsp-16], GAVE_UP
    "b801000000"  # mov eax, 1              write
    "bf04000000"  # mov edi, STATUS
    "488d7424f0"  # lea rsi, [rsp-16]
    "ba08000000"  # mov edx, 8
    "0f05"  # syscall
    "bf7f000000"  # mov edi, 127
    "b8e7000000"  # mov eax, 231            exit_group
    "0f05"  # syscall
)

# The same. mmap is 222, read 63, write 64, exit_group 94 there.
AARCH64 = struct.pack(
    "<58I",
    0xD10043FF,  # sub sp, sp, #16
    0xD2800060,  # mov x0, #3
    0x910003E1,  # mov x1, sp
    0xD2800102,  # mov x2, #8
    0xD28007E8,  # mov x8, #63
    0xD4000001,  # svc #0
    0xF100201F,  # cmp x0, #8
    0x54000501,  # b.ne give up
    0xF94003F5,  # ldr x21, [sp]
    0xD2A20000,  # mov x0, #0x10000000
    0xAA1503E1,  # mov x1, x21
    0xD2800062,  # mov x2, #3
    0xD2800643,  # mov x3, #0x32
    0x92800004,  # mov x4, #-1
    0xD2800005,  # mov x5, #0
    0xD2801BC8,  # mov x8, #222
    0xD4000001,  # svc #0
    0xB7F803C0,  # tbnz x0, #63, give up
    0xAA0003F3,  # mov x19, x0
    0xAA0003F4,  # mov x20, x0
    0x8B0002B5,  # add x21, x21, x0
    0xEB1302A2,  # subs x2, x21, x19
    0x54000120,  # b.eq the next call
    0xD2800060,  # mov x0, #3
    0xAA1303E1,  # mov x1, x19
    0xD28007E8,  # mov x8, #63
    0xD4000001,  # svc #0
    0xF100001F,  # cmp x0, #0
    0x5400026D,  # b.le give up
    0x8B000273,  # add x19, x19, x0
    0x17FFFFF7,  # b back to subs
    0xF9400288,  # ldr x8, [x20]        the next call
    0xB7F801E8,  # tbnz x8, #63, give up
    0xA9408680,  # ldp x0, x1, [x20, #8]
    0xA9418E82,  # ldp x2, x3, [x20, #24]
    0xD4000001,  # svc #0
    0xB7F80060,  # tbnz x0, #63, to ldr x22: it failed
    0x9100C294,  # add x20, x20, #48
    0x17FFFFF9,  # b back to the next call
    0xF9401696,  # ldr x22, [x20, #40]
    0xF90003E0,  # str x0, [sp]
    0xD2800080,  # mov x0, #4
    0x910003E1,  # mov x1, sp
    0xD2800102,  # mov x2, #8
    0xD2800808,  # mov x8, #64
    0xD4000001,  # svc #0
    0xB4FFFEF6,  # cbz x22, back to add x20
    0xD2800020,  # mov x0, #1           give up
    0xF90003E0,  # str x0, [sp]
    0xD2800080,  # mov x0, #4
    0x910003E1,  # mov x1, sp
    0xD2800102,  # mov x2, #8
    0xD2800808,  # mov x8, #64
    0xD4000001,  # svc #0
    0xD2800FE0,  # mov x0, #127
    0xD2800BC8,  # mov x8, #94
    0xD4000001,  # svc #0
    0xD503201F,  # nop
)

CODE = {"x86_64": X86_64, "aarch64": AARCH64}

# asm/unistd_64.h and asm-generic/unistd.h
NUMBERS = {
    "x86_64": {"fcntl": 72, "chdir": 80, "write": 1, "execve": 59},
    "aarch64": {"fcntl": 25, "chdir": 49, "write": 64, "execve": 221},
}


def executable(machine: str) -> bytes:
    """The program, for `os.uname().machine`."""
    return hold.wrap(machine, CODE[machine])


def program() -> int:
    """Return a descriptor that can be executed; -1 where this kernel executes no file of memory alone."""
    try:
        return memory_program("start", executable(os.uname().machine))
    except PermissionError:  # vm.memfd_noexec=2
        return -1


def become(descriptor: int, tell: int, status: int) -> NoReturn:
    """Be the program, which hears and says over these descriptors."""
    kept = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, HIGH) for each in (descriptor, tell, status)]
    os.dup2(kept[1], TELL)
    os.dup2(kept[2], STATUS)
    os.execve(kept[0], ["start"], {})


def told(machine: str, places: list[str], process: tuple[list[str], dict[str, str], str]) -> bytes:
    """What it is told: go to a directory and execute the first of these files that can be.

    `process` is its arguments, its environment and the directory.
    """
    argv, env, cwd = process
    strings = [cwd, *places, *argv, *(f"{name}={value}" for name, value in env.items())]
    texts = [os.fsencode(text) + b"\0" for text in strings]
    arrived_at = AREA + CALL_BYTES * (4 + len(places)) + 8
    argv_at = arrived_at + 8
    env_at = argv_at + 8 * (len(argv) + 1)
    at = list(itertools.accumulate(map(len, texts), initial=env_at + 8 * (len(env) + 1)))
    first = 1 + len(places)
    calls: list[tuple[str, tuple[int, int, int], int]] = [
        ("fcntl", (TELL, fcntl.F_SETFD, fcntl.FD_CLOEXEC), 1),
        ("fcntl", (STATUS, fcntl.F_SETFD, fcntl.FD_CLOEXEC), 1),
        ("chdir", (at[0], 0, 0), 1),
        ("write", (STATUS, arrived_at, 8), 1),
        *(("execve", (at[1 + number], argv_at, env_at), 0) for number in range(len(places))),
    ]
    numbers = NUMBERS[machine]
    table = b"".join(struct.pack("<6Q", numbers[name], *words, 0, must) for name, words, must in calls)
    pointers = [*at[first : first + len(argv)], 0, *at[first + len(argv) : -1], 0]
    table += struct.pack(f"<2q{len(pointers)}Q", END, ARRIVED, *pointers)
    text = table + b"".join(texts)
    return struct.pack("<Q", len(text)) + text


def failure(said: bytes, cwd: str) -> list[int] | OSError | None:
    """What went wrong, by what it said: at what it ended, or what executing each file failed with; None: nothing."""
    returned = [number for (number,) in struct.iter_unpack("<q", said)]
    if returned[-1:] != [GAVE_UP]:
        return None
    if returned[0] == ARRIVED:
        return [-number for number in returned[1:-1]]
    number = -returned[0] if len(returned) > 1 else errno.ENOMEM
    return OSError(number, os.strerror(number), cwd)
