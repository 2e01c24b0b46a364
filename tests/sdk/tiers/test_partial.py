"""A process that was killed while it sent a pack is followed by one that sends the rest."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tidegate.checkpoint import files
from tidegate.tiers import collecting, partial
from tidegate.tiers.objects import Objects, TierUnavailableError, opened

from tests.sdk.tiers.moved import JOB, TENANT, Node

MIB = 1 << 20
NAME = f"{TENANT}/{JOB}/packs/{'a' * 64}.pack"
BLOCK_BYTES = files.BLOCK_BYTES

WRITER = """
import sys, time
from pathlib import Path
from tidegate.tiers.objects import opened
objects = opened(sys.argv[1])
written = 0
def take(size):
    global written
    written += size
    print(written, flush=True)
    time.sleep(0.02)
objects.bandwidth.take = take
with open(sys.argv[2], "rb", buffering=0) as file:
    objects.upload(sys.argv[3], file)
print("done", flush=True)
"""


def upload(objects: Objects, data: bytes) -> int:
    """Send it; return how many bytes were written for that."""
    taken: list[int] = []
    objects.bandwidth.take = taken.append  # type: ignore[method-assign]
    objects.upload(NAME, io.BytesIO(data))
    return sum(taken)


def begun(objects: Objects, data: bytes) -> Path:
    path = partial.path_of(Path(objects.address), NAME)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return opened(str(tmp_path / "warm"))


def test_a_killed_upload_goes_on_where_it_stood(objects: Objects, tmp_path: Path) -> None:
    data = os.urandom(64 * MIB)
    source = tmp_path / "source"
    source.write_bytes(data)
    arguments = [sys.executable, "-c", WRITER, objects.address, str(source), NAME]
    written = 0
    for kill_at in (20 * MIB, 16 * MIB):
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) >= kill_at:
                    process.send_signal(signal.SIGKILL)
                    break
            process.stdout.read()
        assert process.wait() == -signal.SIGKILL
        written += kill_at
        assert objects.size_of(NAME) is None, "it has its name only when it is whole"
        assert objects.names(f"{TENANT}/{JOB}/packs") == []
        there = partial.path_of(Path(objects.address), NAME).stat().st_size
        assert there >= written - 2 * BLOCK_BYTES
    rest = upload(objects, data)
    assert rest == len(data) - there // BLOCK_BYTES * BLOCK_BYTES
    assert objects.read(NAME, len(data)) == data
    assert not list(partial.path_of(Path(objects.address), NAME).parent.iterdir())


@pytest.mark.parametrize(
    ("there", "written"),
    [
        (lambda data: b"", 3),
        (lambda data: data[: 2 * BLOCK_BYTES], 1),
        (lambda data: data[: 2 * BLOCK_BYTES + 5], 1),
        (lambda data: data[:100] + b"x" + data[101:], 3),
        (lambda data: data[:BLOCK_BYTES] + b"y" * 2 * BLOCK_BYTES, 2),
        (lambda data: data, 0),
        (lambda data: data + b"more", 0),
        (lambda data: os.urandom(5 * BLOCK_BYTES), 3),
    ],
)
def test_only_what_is_as_it_should_be_counts(objects: Objects, there: object, written: int) -> None:
    data = os.urandom(3 * BLOCK_BYTES)
    begun(objects, there(data))  # type: ignore[operator]
    assert upload(objects, data) == written * BLOCK_BYTES
    assert objects.read(NAME, len(data)) == data


def test_two_who_send_the_same_do_not_disturb_each_other(objects: Objects) -> None:
    data = os.urandom(8 * BLOCK_BYTES)
    results: list[bytes] = []

    def send() -> None:
        objects.upload(NAME, io.BytesIO(data))
        results.append(objects.read(NAME, len(data)))

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [data] * 6
    assert not list(partial.path_of(Path(objects.address), NAME).parent.iterdir())


def test_the_object_is_never_written_to_once_it_has_its_name(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who opened the partial object just before it got its name holds the object itself: it opens anew."""
    data, other = os.urandom(BLOCK_BYTES), os.urandom(BLOCK_BYTES)
    begun(objects, data)
    real = partial.fcntl.flock

    def named_meanwhile(descriptor: int, how: int) -> None:
        monkeypatch.setattr(partial.fcntl, "flock", real)
        assert partial.write(Path(objects.address), NAME, io.BytesIO(data), lambda size: None)
        real(descriptor, how)

    monkeypatch.setattr(partial.fcntl, "flock", named_meanwhile)
    second = NAME.replace("a", "b", 1)
    assert second != NAME
    monkeypatch.setattr(partial, "path_of", lambda directory, name: directory / TENANT / JOB / "partial" / "one")
    (Path(objects.address) / TENANT / JOB / "partial" / "one").write_bytes(data)
    held = Path(objects.address) / second
    assert partial.write(Path(objects.address), second, io.BytesIO(other), lambda size: None)
    assert objects.read(NAME, len(data)) == data
    assert held.read_bytes() == other


def test_a_full_disk_keeps_nothing_and_is_named(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: memoryview) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(partial.files, "write_all", full)
    with pytest.raises(TierUnavailableError, match="No space left"):
        objects.upload(NAME, io.BytesIO(os.urandom(BLOCK_BYTES)))
    assert not list(partial.path_of(Path(objects.address), NAME).parent.iterdir())
    assert objects.size_of(NAME) is None


def test_bytes_are_durable_before_they_have_their_name(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append("sync") or real_sync(descriptor))
    monkeypatch.setattr(os, "replace", lambda old, new: calls.append("name") or real_replace(old, new))
    objects.upload(NAME, io.BytesIO(b"x" * 100))
    assert calls[:2] == ["sync", "name"]
    assert "sync" in calls[2:], "and the directory after that, before anybody is told"


def test_what_nobody_goes_on_with_is_collected(node: Node) -> None:
    node.promote(node.save(1))
    path = begun(node.warm.objects, b"z" * 1000)
    now = int(time.time())
    collecting.collect(node.warm, now)
    assert path.exists()
    os.utime(path, (now - collecting.PARTIAL_SECONDS - 5,) * 2)
    collecting.collect(node.warm, now)
    assert not path.exists()
    assert node.warm.packs()
