"""The program that waits for the first replica's command: becomes it, or says exactly what stood in the way."""

from __future__ import annotations

import errno
import os
import struct
import threading
from pathlib import Path

import pytest
from tidegate_executor.sandbox.shim import starter
from tidegate_executor.sandbox.shim.hold import MACHINES
from tidegate_executor.sandbox.shim.spawn import Process, places, worst

MACHINE = os.uname().machine
RELATIVE = "sh"


def run(process: Process, *, said: bool = True) -> tuple[int, bytes, bytes]:
    """Have the program told that; return its exit code, its output and what it said of itself."""
    program = starter.program()
    tell_read, tell = os.pipe()
    status, status_write = os.pipe()
    output, output_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(output_write, 1)
            starter.become(program, tell_read, status_write)
        finally:
            os._exit(99)
    for descriptor in (program, tell_read, status_write, output_write):
        os.close(descriptor)
    text = starter.told(MACHINE, places(process), process) if said else b""

    def telling() -> None:
        with open(tell, "wb") as writing:
            writing.write(text)

    thread = threading.Thread(target=telling)
    thread.start()
    with open(status, "rb") as reading:
        heard = reading.read()
    with open(output, "rb") as reading:
        printed = reading.read()
    thread.join()
    _, code = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(code), printed, heard


@pytest.mark.parametrize("machine", list(MACHINES))
def test_it_is_small_and_made_for_its_machine(machine: str) -> None:
    image = starter.executable(machine)
    assert image[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", image, 18)[0] == MACHINES[machine][0]
    assert len(image) < 400


@pytest.mark.skipif(MACHINE not in MACHINES, reason="no executable for this machine")
class TestProgram:
    def test_it_becomes_the_command(self, tmp_path: Path) -> None:
        script = 'pwd; echo "$0 $1 $WORD"; ls /proc/$$/fd | grep -cE "^[34]$"; exit 7'
        argv = ["/bin/sh", "-c", script, "zero", "två ord"]
        code, printed, said = run(Process(argv, {"WORD": "x=y", "PATH": "/bin"}, str(tmp_path)))
        # Neither of the two descriptors that the program had is left.
        assert (code, printed.decode()) == (7, f"{tmp_path}\nzero två ord x=y\n0\n")
        assert starter.failure(said, str(tmp_path)) is None

    def test_it_takes_the_first_that_can_be_executed(self, tmp_path: Path) -> None:
        plain = tmp_path / "plain"
        plain.mkdir()
        (plain / "sh").write_text("not executable")
        path = f"/nowhere:{plain}:/bin"
        code, printed, said = run(Process([RELATIVE, "-c", "echo found"], {"PATH": path}, "/"))
        assert (code, printed) == (0, b"found\n")
        assert starter.failure(said, "/") is None

    def test_more_than_a_pipe_holds_arrives(self) -> None:
        long = "x" * 100_000
        argv = ["/bin/sh", "-c", "echo ${#1} ${#LONG}", "sh", long]
        assert run(Process(argv, {"LONG": long}, "/"))[1] == b"100000 100000\n"

    def test_a_directory_that_is_not_there_is_named(self) -> None:
        code, printed, said = run(Process(["/bin/sh", "-c", "echo never"], {}, "/no/such"))
        problem = starter.failure(said, "/no/such")
        assert (code, printed) == (127, b"")
        assert isinstance(problem, OSError)
        assert (problem.errno, problem.filename) == (errno.ENOENT, "/no/such")

    def test_what_stood_in_the_way_of_each_file_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "tool").write_text("text")
        process = Process(["tool"], {"PATH": f"/no/such:{tmp_path}:/bin/sh"}, "/")
        code, _, said = run(process)
        assert code == 127
        assert starter.failure(said, "/") == [errno.ENOENT, errno.EACCES, errno.ENOTDIR]

    def test_told_nothing_it_ends(self) -> None:
        code, printed, said = run(Process(["/bin/true"], {}, "/"), said=False)
        assert (code, printed) == (127, b"")
        assert isinstance(starter.failure(said, "/"), OSError)


@pytest.mark.parametrize(
    ("argv", "path", "numbers", "wanted"),
    [
        (["a/b"], "/x", [errno.ENOENT], "[Errno 2] No such file or directory: 'a/b'"),
        (["tool"], "/x:/y", [errno.ENOENT, errno.ENOTDIR], "[Errno 20] no 'tool' in PATH=/x:/y"),
        (["tool"], "/x:/y", [errno.EACCES, errno.ENOENT], "[Errno 13] Permission denied: '/x/tool'"),
        (["tool"], "/x:/y", [errno.EACCES, errno.ENOEXEC], "[Errno 8] Exec format error: '/y/tool'"),
    ],
)
def test_of_all_that_failed_the_one_that_says_most_is_told(
    argv: list[str], path: str, numbers: list[int], wanted: str
) -> None:
    process = Process(argv, {"PATH": path}, "/")
    assert str(worst(list(zip(numbers, places(process), strict=True)), process)) == wanted
