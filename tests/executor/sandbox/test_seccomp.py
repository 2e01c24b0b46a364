"""The assembled filter, run by an interpreter of classic BPF: what it decides for each call, on both machines."""

from __future__ import annotations

import errno
import struct

import pytest
from tidegate_executor.sandbox import seccomp


def decide(machine: str, number: int, *arguments: int, audit: int | None = None, told: bool = False) -> int:
    """Run the filter over one struct seccomp_data."""
    arch = seccomp.ARCHITECTURES[machine].audit if audit is None else audit
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, arch, 0, *values)
    program = list(struct.iter_unpack("<HBBI", seccomp.program(machine, told=told)))
    accumulator, position = 0, 0
    for _ in range(len(program)):
        code, if_true, if_false, value = program[position]
        position += 1
        if code == seccomp.LOAD:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif code == seccomp.AND:
            accumulator &= value
        elif code == seccomp.RETURN:
            return int(value)
        else:
            holds = {
                seccomp.JUMP_EQUAL: accumulator == value,
                seccomp.JUMP_AT_LEAST: accumulator >= value,
                seccomp.JUMP_ANY_BIT: bool(accumulator & value),
            }[code]
            position += if_true if holds else if_false
    raise AssertionError("the filter ran off its end")


DENIED = seccomp.ERRNO | errno.EPERM


@pytest.mark.parametrize("machine", list(seccomp.ARCHITECTURES))
class TestFilter:
    def test_every_listed_call_is_denied(self, machine: str) -> None:
        for name, number in seccomp.ARCHITECTURES[machine].denied.items():
            assert decide(machine, number) == DENIED, name

    def test_every_other_call_is_allowed(self, machine: str) -> None:
        arch = seccomp.ARCHITECTURES[machine]
        special = {*arch.denied.values(), seccomp.CLONE3, *arch.sockets}
        for number in set(range(470)) - special:
            assert decide(machine, number) == seccomp.ALLOW, number

    def test_clone_makes_threads_and_processes_but_no_namespaces(self, machine: str) -> None:
        clone = seccomp.ARCHITECTURES[machine].clone
        assert decide(machine, clone, 17) == seccomp.ALLOW
        assert decide(machine, clone, 0x3D0F00) == seccomp.ALLOW  # what pthread_create passes
        for bit in (7, 17, 25, 26, 27, 28, 29, 30):
            assert decide(machine, clone, (1 << bit) | 17) == DENIED

    def test_clone3_is_absent_so_that_libc_falls_back(self, machine: str) -> None:
        assert decide(machine, seccomp.CLONE3) == seccomp.ERRNO | errno.ENOSYS

    def test_sockets_stay_in_the_network_namespace(self, machine: str) -> None:
        for number in seccomp.ARCHITECTURES[machine].sockets:  # a pair that cannot be is made before that is found
            for family in range(50):
                wanted = seccomp.ALLOW if family in (1, 2, 10, 16) else seccomp.ERRNO | errno.EAFNOSUPPORT
                assert decide(machine, number, family) == wanted

    def test_raw_sockets_are_denied_and_routing_sockets_are_not(self, machine: str) -> None:
        socket = seccomp.ARCHITECTURES[machine].sockets[0]
        for family in (2, 10):
            for kind, wanted in (
                (1, seccomp.ALLOW),
                (2, seccomp.ALLOW),
                (3, DENIED),
                (3 | 0x80800, DENIED),
                (10, DENIED),
            ):
                assert decide(machine, socket, family, kind) == wanted, (family, kind)
        assert decide(machine, socket, 16, 3) == seccomp.ALLOW

    def test_who_is_asked_answers_as_the_filter_would_by_itself(self, machine: str) -> None:
        arch = seccomp.ARCHITECTURES[machine]
        quiet = {arch.denied[name] for name in seccomp.QUIET if name in arch.denied}
        asked = 0
        for number in range(470):
            for arguments in ((0, 0, 0), (2, 3, 0), (2, 1, 0), (17, 3, 0), (1 << 28, 0x5412, 0), (1 << 32 | 2, 3, 0)):
                alone = decide(machine, number, *arguments)
                told = decide(machine, number, *arguments, told=True)
                if told != seccomp.USER_NOTIF:
                    assert told == alone, number
                    continue
                asked += 1
                assert alone == seccomp.ERRNO | seccomp.errno_of(machine, number, arguments), number
                assert number not in quiet
                assert "call" not in seccomp.name_of(machine, number, arguments)
        assert asked > 6 * (len(arch.denied) - len(quiet))

    def test_what_a_job_can_pass_makes_no_name_of_its_own(self, machine: str) -> None:
        socket = seccomp.ARCHITECTURES[machine].sockets[0]
        names = {seccomp.name_of(machine, socket, (family, 1)) for family in (*range(3, 10), *range(1000, 9000))}
        assert len(names) == 8

    def test_terminal_injection_is_denied(self, machine: str) -> None:
        ioctl = seccomp.ARCHITECTURES[machine].ioctl
        assert decide(machine, ioctl, 0, 0x5412) == DENIED
        assert decide(machine, ioctl, 0, 0x5413) == seccomp.ALLOW

    def test_a_foreign_architecture_is_killed(self, machine: str) -> None:
        assert decide(machine, 0, audit=0x40000003) == seccomp.KILL_PROCESS


def test_the_x32_convention_is_killed() -> None:
    assert decide("x86_64", 0x40000000 | 1) == seccomp.KILL_PROCESS


def test_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.program("riscv64")


def test_a_jump_out_of_reach_is_an_error_not_a_hole() -> None:
    load = seccomp.Instruction(seccomp.LOAD, 0)
    far: list[seccomp.Instruction | str] = [seccomp.Instruction(seccomp.JUMP_EQUAL, 0, "end"), *[load] * 300, "end"]
    with pytest.raises(ValueError, match="jumps"):
        seccomp.assemble([*far, seccomp.Instruction(seccomp.RETURN, 0)])
