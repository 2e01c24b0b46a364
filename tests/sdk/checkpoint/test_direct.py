"""Writes and reads around the page cache: room taken ahead, memory that begins at a page, and doing without either."""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from tidegate import SaveFailedError
from tidegate.checkpoint import direct, packing, reader, reserving
from tidegate.checkpoint import snapshot as snapshots
from tidegate.checkpoint.commit import Occasion
from tidegate.checkpoint.direct import Arenas, is_cached, skip_to_page
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.saver import Saver
from tidegate.checkpoint.store import Committed
from tidegate.checkpoint.writing import Kept

from tests.support import stores
from tests.support.libraries import needed
from tests.support.stores import STAMP

numpy = needed("numpy")
torch = needed("torch")

LARGE = 24 << 20


def state(seed: int) -> dict[str, Any]:
    """Return numbers that no compressor makes smaller, of sizes that are no multiple of a block."""
    chance = numpy.random.default_rng(seed)
    return {
        "array": chance.integers(0, 256, LARGE + 5, numpy.uint8),
        "tensor": torch.from_numpy(chance.integers(0, 2**31, (LARGE + 4096 + 12) // 4, numpy.int32)),
        "segment": chance.bytes((9 << 20) + 3),
        "halves": torch.from_numpy(chance.integers(0, 2**15, 3 << 20, numpy.int16)).view(torch.bfloat16)[1:],
    }


def saved(path: Path, values: dict[str, Any]) -> tuple[Committed, Kept]:
    store = stores.opened(path)
    return store.save(Occasion(1, STAMP), snapshots.take({"model": values}, Arenas(1)))


def assert_same(loaded: dict[str, Any], values: dict[str, Any]) -> None:
    assert numpy.array_equal(loaded["array"], values["array"])
    assert loaded["segment"] == values["segment"]
    assert torch.equal(loaded["tensor"], values["tensor"])
    assert torch.equal(loaded["halves"].view(torch.int16), values["halves"].view(torch.int16))


def forget(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_a_pack_is_as_long_as_what_was_written_to_it(tmp_path: Path) -> None:
    committed, _ = saved(tmp_path, state(1))
    (path,) = stores.pack_paths(committed)
    size = path.stat().st_size
    assert 2 * LARGE + (15 << 20) <= size < 2 * LARGE + (17 << 20)
    assert path.stat().st_blocks * 512 <= size + (1 << 20), "the room taken ahead was given back"
    assert_same(Checkpoint(committed).load("model")["model"], state(1))


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_gives_no_room_ahead_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    calls = []

    def refusing(*given: int) -> int:
        calls.append(given)
        reserving.ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(reserving, "_fallocate", lambda: refusing)
    committed, _ = saved(tmp_path, state(2))
    assert len(calls) == 1, "it was asked once, not for each chunk"
    assert_same(Checkpoint(committed).load("model")["model"], state(2))


def test_a_disk_that_fails_while_it_gives_room_fails_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*given: int) -> int:
        reserving.ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(reserving, "_fallocate", lambda: failing)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        saved(tmp_path, state(3))
    assert stores.opened(tmp_path).committed() == []


def test_room_is_taken_in_steps_that_grow_and_never_beyond_what_is_expected(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        room = reserving.Reserved(file.fileno())
        room.cover(4096, 8192)
        assert os.fstat(file.fileno()).st_size == 0, "too little to be worth it"
        room.cover(4 << 20, 1 << 30)
        assert os.fstat(file.fileno()).st_size == 20 << 20
        room.cover(12 << 20, 1 << 30)
        assert os.fstat(file.fileno()).st_size == 20 << 20, "there was room"
        room.cover(24 << 20, 4096)
        assert os.fstat(file.fileno()).st_size == (24 << 20) + 4096
        room.give_back(23 << 20)
        assert os.fstat(file.fileno()).st_size == 23 << 20


def test_what_the_cache_lacks_is_read_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed, _ = saved(tmp_path, state(4))
    (path,) = stores.pack_paths(committed)
    around: list[int] = []
    real = os.preadv

    def counted(descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        count = real(descriptor, buffers, offset, flags)
        if reader.files.fcntl.fcntl(descriptor, reader.files.fcntl.F_GETFL) & direct.DIRECT:
            around.append(count)
        return count

    monkeypatch.setattr(os, "preadv", counted)
    forget(path)
    with path.open("rb") as file:
        if is_cached(file.fileno(), path.stat().st_size):
            pytest.skip("this file system keeps what it was told to forget")
    assert_same(Checkpoint(committed).load("model")["model"], state(4))
    assert sum(around) >= 2 * LARGE
    around.clear()
    path.read_bytes()
    assert_same(Checkpoint(committed).load("model")["model"], state(4))
    assert around == [], "the cache has it"


def test_a_file_system_that_refuses_such_reads_is_read_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed, _ = saved(tmp_path, state(5))
    monkeypatch.setattr(reader, "is_cached", lambda descriptor, size: False)
    real, refused = os.preadv, []

    def refusing(descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if reader.files.fcntl.fcntl(descriptor, reader.files.fcntl.F_GETFL) & direct.DIRECT:
            refused.append(offset)
            raise OSError(errno.EINVAL, "larger blocks only")
        return real(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", refusing)
    assert_same(Checkpoint(committed).load("model")["model"], state(5))
    assert refused or not direct.DIRECT


def test_restored_tensors_share_memory_as_they_did_and_go_where_they_are_asked_to(tmp_path: Path) -> None:
    base = torch.arange(1 << 20, dtype=torch.float32)
    committed, _ = saved(tmp_path, {"whole": base, "view": base[5:].view(-1), "odd": base[::2]})
    loaded = Checkpoint(committed).load("model")["model"]
    assert skip_to_page(loaded["whole"].data_ptr()) == 0
    loaded["whole"][6] = -1.0
    assert loaded["view"][1] == loaded["odd"][3] == -1.0
    moved = Checkpoint(committed).load("model", map_location="cpu")["model"]
    assert torch.equal(moved["odd"], base[::2])
    again, _ = saved(tmp_path / "again", loaded)
    assert torch.equal(Checkpoint(again).load("model")["model"]["view"], loaded["view"])


def test_a_save_that_is_waited_for_copies_as_it_stores_and_lets_go_at_its_end(tmp_path: Path) -> None:
    values = state(6)
    watched = weakref.ref(values["array"])
    saver = Saver(stores.opened(tmp_path), lambda done: None, lambda step, error: None)
    pending = saver.save(1, {"model": values}, STAMP, wait=True)
    assert pending.done
    checkpoint = pending.wait()
    assert_same(checkpoint.load("model")["model"], values)
    values["array"][7] ^= 1
    values["tensor"] += 1
    before = checkpoint.load("model")["model"]
    assert not numpy.array_equal(before["array"], values["array"]), "the checkpoint does not follow"
    again = saver.save(2, {"model": values}, STAMP, wait=True).wait()
    assert_same(again.load("model")["model"], values)
    assert_same(saver.save(3, {"model": state(6)}, STAMP).wait().load("model")["model"], state(6))
    del values
    gc.collect()
    assert watched() is None, "nothing that was given is held"


def test_a_wait_that_is_interrupted_before_all_is_copied_fails_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []
    saver = Saver(stores.opened(tmp_path), lambda done: None, lambda step, error: failed.append(error))
    real, interrupted = packing.Packer._store, threading.Event()

    def slow(packer: Any, part: Any) -> bytes:
        interrupted.wait(30)
        return real(packer, part)

    monkeypatch.setattr(packing.Packer, "_store", slow)
    values = state(7)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            saver.save(1, {"model": values}, STAMP, wait=True)
        values["array"][:] = 0
    finally:
        signal.signal(signal.SIGALRM, old)
        interrupted.set()
    with pytest.raises(SaveFailedError, match="interrupted before everything was copied"):
        saver.wait()
    assert len(failed) == 1
    assert stores.opened(tmp_path).committed() == []
    assert_same(saver.save(2, {"model": state(7)}, STAMP, wait=True).wait().load("model")["model"], state(7))


def test_what_was_given_to_a_save_outlives_who_interrupts_the_wait_for_it_and_lets_it_go() -> None:
    array = numpy.ones(3 << 20, numpy.uint8)
    layers = {"model": {"array": array}}
    known = weakref.ref(array)
    taken = snapshots.take(layers, Arenas(0), borrow=True)
    layers["model"].clear()
    del array
    assert known() is not None, "chunks are still copied from its memory"
    del taken
    assert known() is None


def test_what_was_copied_is_empty_in_a_process_that_was_forked() -> None:
    arena = direct.Arena(8 << 20)
    arena.view[:4] = b"here"
    arena.view[-4:] = b"also"
    child = os.fork()
    if child == 0:
        os._exit(0 if not any(arena.view[:4]) and not any(arena.view[-4:]) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (bytes(arena.view[:4]), bytes(arena.view[-4:])) == (b"here", b"also")


def test_memory_is_there_too_where_the_system_knows_no_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[int] = []

    class Refusing(direct.mmap.mmap):
        def madvise(self, advice: int, *_: int) -> None:
            refused.append(advice)
            raise OSError(errno.EINVAL, "not known here")

    monkeypatch.setattr(direct.mmap, "mmap", Refusing)
    arena = direct.Arena(8 << 20)
    arena.view[:4] = b"here"
    assert len(refused) == 1
    assert arena.address % direct.ALIGNMENT == 0


def test_room_for_what_is_new_is_taken_at_once_unless_much_of_the_disk_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "file").open("wb") as file:
        room = reserving.Reserved(file.fileno())
        room.cover(4 << 20, 96 << 20, 64 << 20)
        assert os.fstat(file.fileno()).st_size == 68 << 20
    with (tmp_path / "other").open("wb") as file:
        room = reserving.Reserved(file.fileno())
        monkeypatch.setattr(room, "_free_bytes", lambda: 100 << 20)
        room.cover(4 << 20, 96 << 20, 64 << 20)
        assert os.fstat(file.fileno()).st_size == 20 << 20, "in steps"


def test_of_a_large_file_samples_say_whether_the_cache_has_most_of_it(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(LARGE))
    size = path.stat().st_size
    with path.open("rb") as file:
        assert is_cached(file.fileno(), size)
        forget(path)
        if is_cached(file.fileno(), size):
            pytest.skip("this file system keeps what it was told to forget")
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
        os.pread(file.fileno(), size // 4, 0)
        assert not is_cached(file.fileno(), size), "a quarter is not most"
        os.pread(file.fileno(), size // 2, size // 4)
        assert is_cached(file.fileno(), size), "three quarters are"
