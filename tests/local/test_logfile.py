"""Log files lose no line, whoever writes and however often they are rotated."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tidegate_local import logfile
from tidegate_local.logfile import LogFile

LINES = 400


def rotated(directory: Path) -> list[Path]:
    """Return the rotated files, oldest first."""
    return sorted(directory.glob("s.log.*"), key=lambda file: -int(file.suffix[1:]))


async def test_rotation_keeps_every_line_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "LOG_BYTES_MAX", 4000)
    monkeypatch.setattr(logfile, "LOG_FILES_KEPT", 10)
    monkeypatch.setattr(logfile, "READ_BYTES", 100)
    loop = asyncio.get_running_loop()
    log = LogFile(tmp_path / "s.log")
    log.follow(loop)
    for number in range(LINES):
        os.write(log.write_end, b"line %03d of the log that is read back\n" % number)
        await asyncio.sleep(0)
    log.close(loop)

    files = rotated(tmp_path)
    assert len(files) >= 3
    written = b"".join(file.read_bytes() for file in [*files, tmp_path / "s.log"]).decode().splitlines()
    assert written == [f"line {number:03d} of the log that is read back" for number in range(LINES)]
    assert all(file.stat().st_size <= 4000 for file in files)


async def test_old_files_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "LOG_BYTES_MAX", 1000)
    loop = asyncio.get_running_loop()
    log = LogFile(tmp_path / "s.log")
    for _ in range(50):
        os.write(log.write_end, b"x" * 999)
        log.follow(loop)
        await asyncio.sleep(0.001)
    log.close(loop)
    assert len(rotated(tmp_path)) + 1 == logfile.LOG_FILES_KEPT


async def test_a_log_goes_on_where_it_ended(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    for text in (b"first\n", b"second\n"):
        log = LogFile(tmp_path / "s.log")
        os.write(log.write_end, text)
        log.close(loop)
    assert (tmp_path / "s.log").read_text() == "first\nsecond\n"
