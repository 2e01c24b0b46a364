"""Process 1 of a guest that stands ready: does what it is told in order, holds then, and ends where it cannot."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest
from tidegate_executor.sandbox.shim import told

WAIT_SECONDS = 10
MACHINE = os.uname().machine
WRITE = told.NUMBERS[MACHINE]["write"]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "told"
    path.write_bytes(told.carry_out_and_hold(MACHINE))
    path.chmod(0o755)
    return path


def calls(*wanted: tuple[int, int, bytes, int]) -> bytes:
    """Calls with one argument each that points to bytes behind all of them."""
    start = told.AREA + told.CALL_BYTES * len(wanted) + 8
    table, data = b"", b""
    for number, first, text, third in wanted:
        table += struct.pack("<6Q", number, first, start + len(data), third, 0, 0)
        data += text
    return table + struct.pack("<q", told.END) + data


def test_it_does_one_after_the_other_and_holds(program: Path) -> None:
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        long = b"x" * 30_000
        for part in (calls((WRITE, 1, b"one", 3), (WRITE, 1, b"two", 3)) + long, long):  # more than one read of it
            running.stdin.write(part)
        running.stdin.close()
        assert running.stdout.read(6) == b"onetwo"
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(0.2)
        running.kill()


def test_a_call_that_fails_ends_it(program: Path) -> None:
    given = calls((WRITE, 99, b"nowhere", 7), (WRITE, 1, b"never", 5))
    done = subprocess.run([program], input=given, capture_output=True, timeout=WAIT_SECONDS, check=False)
    assert (done.returncode, done.stdout) == (256 - 9, b""), "EBADF, negative, in eight bits"


def test_told_nothing_it_ends(program: Path) -> None:
    done = subprocess.run([program], input=b"", capture_output=True, timeout=WAIT_SECONDS, check=False)
    assert done.returncode == 0


def test_instructions_give_up_the_user_last_and_say_so() -> None:
    given = told.instructions("x86_64", "rank0", [("/late/0", "/workspace")], "/late")
    table = given[: given.index(struct.pack("<q", told.END))]
    numbers = [struct.unpack_from("<Q", table, at)[0] for at in range(0, len(table), told.CALL_BYTES)]
    names = {number: name for name, number in told.NUMBERS["x86_64"].items()}
    assert [names[number] for number in numbers] == [
        "mount", "umount2", "sethostname", "prctl", "rt_sigaction", "setresgid", "setresuid", "prctl", "write",
    ]  # fmt: skip
    for text in (b"/late/0\0", b"/workspace\0", b"/late\0", b"rank0"):
        assert text in given[len(table) :]


def test_more_than_it_can_hold_is_refused() -> None:
    binds = [(f"/late/{number}", "/" + "x" * 100) for number in range(1000)]
    with pytest.raises(ValueError, match=r"bytes of instructions; accepted: 65536"):
        told.instructions("x86_64", "rank0", binds, "/late")
