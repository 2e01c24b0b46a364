"""Process 1's hand-made executable: well formed on both machines, and on this one it does what it says."""

from __future__ import annotations

import os
import select
import signal
import struct
import subprocess
from pathlib import Path

import pytest
from tidegate_executor.sandbox.shim.hold import MACHINES, executable


@pytest.mark.parametrize("machine", list(MACHINES))
def test_the_header_describes_the_file(machine: str) -> None:
    image = executable(machine)
    assert image[:4] == b"\x7fELF"
    kind, number, _, entry, header_at = struct.unpack_from("<HHIQQ", image, 16)
    assert (kind, number, header_at) == (2, MACHINES[machine][0], 64)
    load, flags, offset, address, _, size, memory, _ = struct.unpack_from("<IIQQQQQQ", image, 64)
    assert (load, flags, offset, size, memory) == (1, 5, 0, len(image), len(image))
    assert address <= entry < address + size
    assert len(image) < 250


def test_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        executable("riscv64")


@pytest.mark.skipif(os.uname().machine not in MACHINES, reason="no executable for this machine")
def test_it_says_so_ignores_children_hides_itself_and_waits(tmp_path: Path) -> None:
    path = tmp_path / "hold"
    path.write_bytes(executable(os.uname().machine))
    path.chmod(0o755)
    with subprocess.Popen([str(path)], stdout=subprocess.PIPE) as running:
        try:
            assert running.stdout is not None
            assert select.select([running.stdout], [], [], 10)[0]
            assert os.read(running.stdout.fileno(), 2) == b"\1"
            status = dict(line.split(":", 1) for line in Path(f"/proc/{running.pid}/status").read_text().splitlines())
            assert int(status["SigIgn"], 16) & (1 << (signal.SIGCHLD - 1))
            assert running.poll() is None
        finally:
            running.kill()
