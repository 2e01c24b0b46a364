"""Whatever a crash leaves on the disk: what was durable is there, and nothing that is there is wrong."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tidegate import CorruptCheckpointError
from tidegate.checkpoint import files, pack, places
from tidegate.checkpoint import snapshot as snapshots
from tidegate.checkpoint.commit import Occasion
from tidegate.checkpoint.crew import Crew
from tidegate.checkpoint.direct import Arenas
from tidegate.checkpoint.directory import DirectorySave
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.store import CheckpointStore, Committed
from tidegate.checkpoint.writing import Kept

from tests.sdk.checkpoint.crash_states import SAMPLES_PER_POINT, Recording, State, check_all
from tests.support import stores
from tests.support.stores import STAMP

STATES_MIN = 10_000

CHANCE = random.Random(11)
FROZEN = CHANCE.randbytes(5000)


def content(step: int) -> dict[str, Any]:
    """Return layers that change in part from step to step: one blob by little, one altogether, one not at all."""
    numbers = bytearray(random.Random(1).randbytes(9000))
    numbers[step] ^= 1
    return {
        "model": {"frozen": FROZEN, "weights": bytes(numbers), "step": step},
        "state": {"rng": random.Random(step).randbytes(3000)},
    }


class Backwards(Crew):
    """Does what may be done side by side in the other order: what is durable together may become so either way."""

    def __init__(self) -> None:
        super().__init__(1)

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return super().map(work, items[::-1])[::-1]


class Program:
    """Saves as a job does: each save builds on the one before, and only the newest two are kept."""

    def __init__(self, top: Path, crew: Crew | None = None) -> None:
        self.store = CheckpointStore(top, STAMP, keep=2, crew=crew or Crew(1))
        self.store.open()
        self._arenas = Arenas(2)
        self._kept: Kept | None = None
        self.expected: dict[str, dict[str, Any] | None] = {}

    def save(self, step: int) -> Committed:
        """Save layers of values."""
        copied = snapshots.take(content(step), self._arenas)
        committed, self._kept = self.store.save(Occasion(step, STAMP), copied, self._kept)
        self.expected[committed.name] = content(step)
        return committed

    def save_tree(self, step: int) -> Committed:
        """Save a layer of files."""
        with DirectorySave(self.store) as saving:
            (saving.path / "model" / "w").write_bytes(FROZEN + bytes([step]))
            done = saving.commit(step, STAMP)
        assert done is not None
        self.expected[done.committed.name] = None
        return done.committed

    def check(self, top: Path, state: State) -> None:
        """Raise where a durable checkpoint is lost or damaged, or one that is there is wrong."""
        store = CheckpointStore(top, STAMP, crew=Crew(1))
        found = {item.name: item for item in store.committed()}
        assert state.durable <= found.keys(), f"lost: {state.durable - found.keys()}"
        for name, item in found.items():
            if name in state.doubtful and name not in state.durable:
                continue  # it is being removed: its parts may be gone, and nobody resumes from it
            Checkpoint(item).verify()
            expected = self.expected[name]
            if expected is not None:
                assert Checkpoint(item).load() == expected, name


def recorded(top: Path, crew: Crew) -> tuple[Program, Recording]:
    """Return a program that saved five times, and what it asked of the file system."""
    program, recording = Program(top, crew), Recording(top)
    with places.opened(top, create=True), recording.listening():
        for step in range(1, 6):
            if step == 3:
                recording.mark("removed", min(program.expected))  # a save of files removes what is old by itself
                committed = program.save_tree(step)
            else:
                committed = program.save(step)
            recording.mark("durable", committed.name)
            for old in sorted(program.expected)[:-2]:
                recording.mark("removed", old)
            program.store.retain()
    return program, recording


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("crew", "part"), [(Crew(1), 1), (Backwards(), 4)], ids=["forwards", "backwards"])
def test_no_crash_loses_or_changes_a_checkpoint(tmp_path: Path, crew: Crew, part: int) -> None:
    program, recording = recorded(tmp_path / "store", crew)
    scratch = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path
    scratch = scratch / f"tidegate-crash-{os.getpid()}"
    try:
        is_whole = bool(os.environ.get("CI"))
        part *= 1 if is_whole else 20
        samples = SAMPLES_PER_POINT // part
        tally = check_all(recording, scratch, program.check, samples=samples)
    finally:
        scratch.rmdir()
    assert sum(tally.checked.values()) >= STATES_MIN // part
    assert min(tally.checked.values()) > 200, "both orderings"


@contextmanager
def failing(at: int, number: int, *, short: bool = False) -> Iterator[list[str]]:
    """Let the `at`-th call that changes the disk fail; yields the names of the calls made."""
    calls: list[str] = []
    names = ("write", "pwrite", "fsync", "rename", "link", "open")
    real = {name: getattr(os, name) for name in names}

    def wrapped(name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return real[name](*args, **options)
            calls.append(name)
            if len(calls) == at:
                if short and name in ("write", "pwrite"):
                    real[name](args[0], memoryview(args[1])[: len(args[1]) // 2], *args[2:])
                raise OSError(number, os.strerror(number))
            return real[name](*args, **options)

        return call

    try:
        for name in names:
            setattr(os, name, wrapped(name))
        yield calls
    finally:
        for name in names:
            setattr(os, name, real[name])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_of_the_disk_at_any_call_fails_the_save_and_nothing_else(tmp_path: Path, number: int) -> None:
    program = Program(tmp_path / "store")
    before = program.save(1)
    step, failed = 1, 0
    for at in range(1, 100):
        step += 1
        try:
            with failing(at, number, short=at % 2 == 0):
                program.save(step)
        except OSError:
            failed += 1
        else:
            break
        store = CheckpointStore(tmp_path / "store", STAMP, crew=Crew(1))
        found = store.find(None)
        assert found is not None
        assert (found.skipped, found.committed.root.id) in ((0, before.root.id), (0, newest(store).root.id))
        assert Checkpoint(found.committed).load() == content(found.committed.root.step)
        assert not list((tmp_path / "store").glob(".tmp*"))
    assert failed > 12, "every call of a save was tried"
    assert Checkpoint(newest(program.store)).load() == content(step)


def newest(store: CheckpointStore) -> Committed:
    return store.committed()[0]


def test_a_flipped_bit_in_every_region_of_a_pack_is_detected_and_named(tmp_path: Path) -> None:
    store = stores.opened(tmp_path)
    raw, zeros = random.Random(3).randbytes(5000), bytes(9000)
    done = stores.save(store.directory, 1, model={"raw": raw, "zeros": zeros})
    (path,) = stores.pack_paths(done)
    original = path.read_bytes()
    path.chmod(0o644)
    regions = set()
    for position in [*range(0, len(original), 61), len(original) - 1]:
        damaged = bytearray(original)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        said = scrubbed(path)
        assert said, f"byte {position} of {len(original)}"
        assert path.name[:12] in said
        regions.add(next(word for word in ("chunk", "gap", "index", "footer") if word in said))
    assert regions == {"chunk", "gap", "index", "footer"}
    path.write_bytes(original)
    assert scrubbed(path) == ""


def scrubbed(path: Path) -> str:
    with files.open_inside(path.parent, path.name) as file:
        try:
            return "; ".join(pack.verify_records(file, pack.read_open_index(file, path.name)))
        except CorruptCheckpointError as error:
            return str(error)


def test_a_damaged_chunk_is_named_with_layer_tensor_pack_and_offset(tmp_path: Path) -> None:
    store = stores.opened(tmp_path)
    done = stores.save(store.directory, 1, model={"deep": {"weights": random.Random(3).randbytes(5000)}})
    (path,) = stores.pack_paths(done)
    path.chmod(0o644)
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    with pytest.raises(CorruptCheckpointError) as caught:
        Checkpoint(done).load()
    for word in ("layer model", "deep.weights", path.name[:12], "offset 0"):
        assert word in str(caught.value)


def test_removing_races_with_saves_and_restores(tmp_path: Path) -> None:
    ended, wrong = threading.Event(), []

    def restoring() -> None:
        store = CheckpointStore(tmp_path / "store", STAMP)
        while not ended.is_set():
            found = store.find(None, assert_right)
            if found is None or found.skipped:
                wrong.append(found)

    def assert_right(item: Committed) -> None:
        if Checkpoint(item).load() != content(item.root.step):
            wrong.append(item)

    program = Program(tmp_path / "store")
    program.save(1)
    threads = [threading.Thread(target=restoring) for _ in range(2)]
    for thread in threads:
        thread.start()
    removed = 0
    for step in range(2, 40):
        program.save(step)
        removed += len(program.store.retain())
    ended.set()
    for thread in threads:
        thread.join()
    removed += len(program.store.retain())
    assert wrong == []
    assert removed == 37, "what could not be removed at once was removed later"
