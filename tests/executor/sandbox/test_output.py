"""Secrets leave no trace whatever the chunks; a log keeps its beginning and its end within its bound."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_executor.cgroups.base import Quota
from tidegate_executor.sandbox.logs import read_log
from tidegate_executor.sandbox.shim.output import LogFile, Redactor
from tidegate_executor.sandbox.shim.replicas import Replica

SECRETS = [b"hunter22", b"hunter22-longer", b"aaaa", b"multi\nline"]
pieces = st.lists(
    st.sampled_from([*SECRETS, b"a", b"hunter", b"2", b"-longer", b"multi\n", b"\n", b"plain"]), max_size=30
)


def feed(redactor: Redactor, data: bytes, cuts: list[int]) -> bytes:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    chunks = [data[start:end] for start, end in itertools.pairwise(edges)]
    return b"".join(redactor.feed(chunk) for chunk in chunks) + redactor.feed(b"", end=True)


@given(pieces, st.lists(st.integers(0, 1000), max_size=20))
def test_no_secret_survives_however_it_is_cut(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    clean = feed(Redactor(SECRETS), data, cuts)
    assert not any(secret in clean for secret in SECRETS)
    assert clean == feed(Redactor(SECRETS), data, [])


@given(st.binary(max_size=200), st.lists(st.integers(0, 1000), max_size=10))
def test_what_holds_no_secret_passes_unchanged(data: bytes, cuts: list[int]) -> None:
    if not any(secret in data for secret in SECRETS):
        assert feed(Redactor(SECRETS), data, cuts) == data


def test_short_values_are_no_secrets() -> None:
    assert feed(Redactor([b"1", b""]), b"1 11 111", []) == b"1 11 111"


def read_all(directory: Path) -> bytes:
    offset, parts = 0, []
    while (chunk := read_log(str(directory), "main", 0, offset, 37)).data:
        parts.append(chunk.data)
        offset = chunk.next_offset
    return b"".join(parts)


def test_a_stream_within_the_bound_is_whole(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path), "main.0", 400)
    data = bytes(range(256)) + b"x" * 144
    log.write(data)
    log.close()
    assert read_all(tmp_path) == data


def test_beginning_and_end_stay_and_the_gap_is_marked(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path), "main.0", 400)
    for number in range(1000):
        log.write(f"{number:09d}\n".encode())
    log.close()
    text = read_all(tmp_path).decode()
    assert text.startswith("000000000\n")
    assert text.endswith("000000999\n")
    dropped = int(text.split("[tidegate: ")[1].split(" bytes")[0])
    kept = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert kept <= 400
    assert dropped + kept == 10_000


def test_a_restarted_replica_continues_its_stream(tmp_path: Path) -> None:
    for part in (b"first ", b"second"):
        log = LogFile(str(tmp_path), "main.0", 4000)
        log.write(part)
        log.close()
    assert read_all(tmp_path) == b"first second"
    assert read_log(str(tmp_path), "main", 0, 6, 100).data == b"second"
    assert read_log(str(tmp_path), "main", 0, 12, 100).next_offset == 12
    assert read_log(str(tmp_path), "main", 0, 99, 100).next_offset == 99
    assert read_log(str(tmp_path), "main", 1, 0, 100).data == b""


def test_a_full_disk_ends_no_replica_and_the_gap_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica("main", 0, None, Quota(1000, 64, 10))
    replica.log = LogFile(str(tmp_path), "main.0", 800)
    replica.write(b"before\n", end=False)
    real_open, real_write = os.open, os.write

    def full(*_arguments: object, **_more: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(os, "open", full)
    for _ in range(10):
        replica.write(b"0123456789", end=False)
    monkeypatch.setattr(os, "write", real_write)
    replica.write(b"x" * 300, end=False)  # fills the first file, and the next one cannot be made
    monkeypatch.setattr(os, "open", real_open)
    replica.write(b"after\n", end=True)
    replica.log.close()
    kept = b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert kept.startswith(b"before\n")
    assert kept.endswith(b"after\n")
    assert b"100 bytes of output were not kept: the disk was full" in kept
    assert b"300 bytes of output were not kept: the disk was full" in kept
