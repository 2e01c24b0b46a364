"""Process 1 of a sandbox: an ELF executable of under 250 bytes that reaps and waits, and nothing else.

It needs nothing from the image, costs 12 KiB, and as process 1 of its namespace cannot be killed from inside. What
it does, in order: prctl(PR_SET_DUMPABLE, 0), so that the job (same uid) can neither open its memory nor its
descriptors; sigaction(SIGCHLD, SIG_IGN), so that the kernel reaps orphans; write(1, "\\1", 1), which tells the shim
that the sandbox stands; then sleep for ever. It must never execute anything.
"""

from __future__ import annotations

import struct

LOAD_ADDRESS = 0x400000
EHDR_BYTES, PHDR_BYTES = 64, 56
READ_EXECUTE = 5

# struct sigaction of rt_sigaction(2), same on both: handler = SIG_IGN (1), flags, restorer, mask.
SIGACTION_IGNORE = struct.pack("<4Q", 1, 0, 0, 0)

X86_64 = bytes.fromhex(
    "b89d000000"  # mov eax, 157          prctl
    "bf04000000"  # mov edi, 4            PR_SET_DUMPABLE
    "31f6"  # xor esi, esi
    "0f05"  # syscall
    "b80d000000"  # mov eax, 13           rt_sigaction
    "bf11000000"  # mov edi, 17           SIGCHLD
    "488d352b000000"  # lea rsi, [rip+43] the struct behind the code
    "31d2"  # xor edx, edx
    "41ba08000000"  # mov r10d, 8         size of the mask
    "0f05"  # syscall
    "b801000000"  # mov eax, 1            write
    "bf01000000"  # mov edi, 1
    "488d3510000000"  # lea rsi, [rip+16] its first byte is 1
    "ba01000000"  # mov edx, 1
    "0f05"  # syscall
    "b822000000"  # mov eax, 34           pause
    "0f05"  # syscall
    "ebf7"  # jmp back to pause
)

AARCH64 = struct.pack(
    "<23I",
    0xD2800080,  # mov x0, #4             PR_SET_DUMPABLE
    0xD2800001,  # mov x1, #0
    0xD28014E8,  # mov x8, #167           prctl
    0xD4000001,  # svc #0
    0xD2800220,  # mov x0, #17            SIGCHLD
    0x10000241,  # adr x1, the struct behind the code
    0xD2800002,  # mov x2, #0
    0xD2800103,  # mov x3, #8             size of the mask
    0xD28010C8,  # mov x8, #134           rt_sigaction
    0xD4000001,  # svc #0
    0xD2800020,  # mov x0, #1
    0x10000181,  # adr x1, its first byte is 1
    0xD2800022,  # mov x2, #1
    0xD2800808,  # mov x8, #64            write
    0xD4000001,  # svc #0
    0xD2800000,  # mov x0, #0
    0xD2800001,  # mov x1, #0
    0xD2800002,  # mov x2, #0
    0xD2800003,  # mov x3, #0
    0xD2800004,  # mov x4, #0
    0xD2800928,  # mov x8, #73            ppoll(nothing, for ever)
    0xD4000001,  # svc #0
    0x17FFFFF9,  # b back to ppoll's first argument
)

MACHINES = {"x86_64": (62, X86_64), "aarch64": (183, AARCH64)}  # e_machine, code


def executable(machine: str) -> bytes:
    """A static ELF64 file for `os.uname().machine`. Raises ValueError for one that is not known."""
    _, code = _machine(machine)
    return wrap(machine, code + SIGACTION_IGNORE)


def wrap(machine: str, body: bytes) -> bytes:
    """A static ELF64 file of position independent code for one machine (layout: elf(5))."""
    number, _ = _machine(machine)
    size = EHDR_BYTES + PHDR_BYTES + len(body)
    ident = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    entry = LOAD_ADDRESS + EHDR_BYTES + PHDR_BYTES
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", 2, number, 1, entry, EHDR_BYTES, 0, 0, EHDR_BYTES, PHDR_BYTES, 1, 0, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, READ_EXECUTE, 0, LOAD_ADDRESS, LOAD_ADDRESS, size, size, 0x1000)
    return header + segment + body


def _machine(machine: str) -> tuple[int, bytes]:
    if machine not in MACHINES:
        raise ValueError(f"no process 1 for machine {machine!r}; known: {', '.join(sorted(MACHINES))}")
    return MACHINES[machine]
