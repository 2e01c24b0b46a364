"""Programs of ours that run inside a guest for a moment: ELF files of a few hundred bytes, as `hold` is.

They need nothing from the image. What they shall do comes on standard input, or as their one argument.
"""

from __future__ import annotations

import struct

from tidegate_executor.sandbox.shim import hold

RLIMIT_NPROC = 6
PIDS_TOLD = 32768  # process ids of a guest that are reached: it starts counting at 1

# read(0, stack, 16); for pid in 1..PIDS_TOLD: prlimit64(pid, RLIMIT_NPROC, stack, 0); exit_group(0)
X86_64 = (
    bytes.fromhex(
        "4883ec10"  # sub rsp, 16
        "31c0"  # xor eax, eax          read
        "31ff"  # xor edi, edi
        "4889e6"  # mov rsi, rsp
        "ba10000000"  # mov edx, 16
        "0f05"  # syscall
        "bb01000000"  # mov ebx, 1
        "b82e010000"  # mov eax, 302      prlimit64
        "89df"  # mov edi, ebx
    )
    + b"\xbe"
    + struct.pack("<I", RLIMIT_NPROC)  # mov esi, RLIMIT_NPROC
    + bytes.fromhex(
        "4889e2"  # mov rdx, rsp
        "4531d2"  # xor r10d, r10d
        "0f05"  # syscall
        "ffc3"  # inc ebx
        "81fb"  # cmp ebx, PIDS_TOLD
    )
    + struct.pack("<I", PIDS_TOLD)
    + bytes.fromhex(
        "75e2"  # jne to mov eax, 302
        "b8e7000000"  # mov eax, 231      exit_group
        "31ff"  # xor edi, edi
        "0f05"  # syscall
    )
)

AARCH64 = struct.pack(
    "<21I",
    0xD10043FF,  # sub sp, sp, #16
    0xD2800000,  # mov x0, #0
    0x910003E1,  # mov x1, sp
    0xD2800202,  # mov x2, #16
    0xD28007E8,  # mov x8, #63           read
    0xD4000001,  # svc #0
    0xD2800033,  # mov x19, #1
    0xD2900014,  # mov x20, #32768
    0xAA1303E0,  # mov x0, x19
    0xD28000C1,  # mov x1, #6            RLIMIT_NPROC
    0x910003E2,  # mov x2, sp
    0xD2800003,  # mov x3, #0
    0xD28020A8,  # mov x8, #261          prlimit64
    0xD4000001,  # svc #0
    0x91000673,  # add x19, x19, #1
    0xEB14027F,  # cmp x19, x20
    0x54FFFF01,  # b.ne to mov x0, x19
    0xD2800000,  # mov x0, #0
    0xD2800BC8,  # mov x8, #94           exit_group
    0xD4000001,  # svc #0
    0xD503201F,  # nop
)

CODE = {"x86_64": X86_64, "aarch64": AARCH64}

# kill(-1, two digits of argv[1]): everything of the own user in the namespace of processes; exit_group(0)
SIGNAL_X86_64 = bytes.fromhex(
    "488b742410"  # mov rsi, [rsp+16]      argv[1]
    "0fb606"  # movzx eax, byte [rsi]
    "83e830"  # sub eax, '0'
    "6bc00a"  # imul eax, eax, 10
    "0fb65601"  # movzx edx, byte [rsi+1]
    "8d7410d0"  # lea esi, [rax+rdx-'0']
    "48c7c7ffffffff"  # mov rdi, -1
    "b83e000000"  # mov eax, 62         kill
    "0f05"  # syscall
    "b8e7000000"  # mov eax, 231        exit_group
    "31ff"  # xor edi, edi
    "0f05"  # syscall
)
SIGNAL_AARCH64 = struct.pack(
    "<14I",
    0xF9400BE1,  # ldr x1, [sp, #16]
    0x39400022,  # ldrb w2, [x1]
    0x5100C042,  # sub w2, w2, #'0'
    0x52800143,  # mov w3, #10
    0x1B037C42,  # mul w2, w2, w3
    0x39400424,  # ldrb w4, [x1, #1]
    0x0B040041,  # add w1, w2, w4
    0x5100C021,  # sub w1, w1, #'0'
    0x92800000,  # mov x0, #-1
    0xD2801028,  # mov x8, #129          kill
    0xD4000001,  # svc #0
    0xD2800000,  # mov x0, #0
    0xD2800BC8,  # mov x8, #94           exit_group
    0xD4000001,  # svc #0
)
SIGNAL_CODE = {"x86_64": SIGNAL_X86_64, "aarch64": SIGNAL_AARCH64}

# sethostname(argv[1], its length); exit_group(what came of it)
NAME_X86_64 = bytes.fromhex(
    "488b7c2410"  # mov rdi, [rsp+16]      argv[1]
    "31f6"  # xor esi, esi
    "803c3700"  # cmp byte [rdi+rsi], 0
    "7404"  # je to mov eax, 170
    "ffc6"  # inc esi
    "ebf6"  # jmp back to cmp
    "b8aa000000"  # mov eax, 170        sethostname
    "0f05"  # syscall
    "89c7"  # mov edi, eax
    "b8e7000000"  # mov eax, 231        exit_group
    "0f05"  # syscall
)
NAME_AARCH64 = struct.pack(
    "<10I",
    0xF9400BE0,  # ldr x0, [sp, #16]
    0xD2800001,  # mov x1, #0
    0x38616802,  # ldrb w2, [x0, x1]
    0x34000062,  # cbz w2, to mov x8, #161
    0x91000421,  # add x1, x1, #1
    0x17FFFFFD,  # b back to ldrb
    0xD2801428,  # mov x8, #161          sethostname
    0xD4000001,  # svc #0
    0xD2800BC8,  # mov x8, #94           exit_group
    0xD4000001,  # svc #0
)
NAME_CODE = {"x86_64": NAME_X86_64, "aarch64": NAME_AARCH64}


def set_process_limit(machine: str) -> bytes:
    """An executable that gives every process of its guest the limit of processes on its standard input."""
    return hold.wrap(machine, CODE[machine])


def process_limit(pids: int) -> bytes:
    """That input: struct rlimit64, soft and hard."""
    return struct.pack("<QQ", pids, pids)


def set_name(machine: str) -> bytes:
    """An executable that names its guest as its argument says; it needs CAP_SYS_ADMIN there."""
    return hold.wrap(machine, NAME_CODE[machine])


def send_signal(machine: str) -> bytes:
    """An executable that sends a signal, of two digits, to every process of its user in its guest."""
    return hold.wrap(machine, SIGNAL_CODE[machine])
