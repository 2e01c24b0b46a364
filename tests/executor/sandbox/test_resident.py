"""A program that runs on behalf of sandboxes stays in memory: all of it, once, and another one in its place as well."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tidegate_executor.sandbox.resident import keep_resident

SIZE = 5 * os.sysconf("SC_PAGE_SIZE") + 1


def locked_kib(program: Path) -> list[int]:
    """Return how much of each mapping of the file in this process is locked into memory."""
    of_file = re.compile(rf"^[0-9a-f]+-[0-9a-f]+ .* {re.escape(str(program))}( \(deleted\))?$")
    found, inside = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"^[0-9a-f]+-[0-9a-f]+ ", line):
            inside = of_file.match(line) is not None
        elif inside and line.startswith("Locked:"):
            found.append(int(line.split()[1]))
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may lock as much as it likes")
def test_all_pages_of_a_program_are_locked_once_and_those_of_the_next_one_too(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"x" * SIZE)
    assert locked_kib(program) == []
    keep_resident(str(program))
    whole = 6 * os.sysconf("SC_PAGE_SIZE") // 1024
    assert locked_kib(program) == [whole]
    keep_resident(str(program))
    assert locked_kib(program) == [whole]
    other = tmp_path / "other"
    other.write_bytes(b"y" * SIZE)
    other.replace(program)
    keep_resident(str(program))
    assert locked_kib(program) == [whole, whole]


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        keep_resident(str(tmp_path / "nothing"))
