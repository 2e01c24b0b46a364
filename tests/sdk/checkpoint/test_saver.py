"""The thread that saves: its failures reach the caller, its memory is used again, and kill -9 leaves nothing half."""

import contextlib
import os
import subprocess
import sys
import threading

import pytest
from tidegate import SaveFailedError
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.saver import Done, Saver
from tidegate.checkpoint.store import CheckpointStore

from tests.support.stores import STAMP, save


class Told:
    def __init__(self) -> None:
        self.saved: list[Done] = []
        self.failed: list[tuple[int, str]] = []

    def on_failed(self, step: int, error: str) -> None:
        self.failed.append((step, error))


def test_a_failed_write_is_raised_once_and_never_a_success(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    saver = Saver(store, told.saved.append, told.on_failed)
    saver.save(1, {"model": [1]}, STAMP).wait()
    real = os.fsync

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    pending = saver.save(2, {"model": [1]}, STAMP)
    with pytest.raises(SaveFailedError, match="step 2 was not written"):
        saver.wait()
    with pytest.raises(SaveFailedError, match="step 2 was not written"):
        pending.wait()
    saver.wait()
    monkeypatch.setattr(os, "fsync", real)
    saver.save(3, {"model": [1]}, STAMP).wait()
    assert [done.committed.root.step for done in told.saved] == [1, 3]
    assert [step for step, _ in told.failed] == [2]
    assert [item.root.step for item in store.committed()] == [3, 1]
    assert not [name for name in os.listdir(store.directory) if name.startswith(".tmp")]


def test_saves_from_several_threads_all_become_durable(store: CheckpointStore) -> None:
    told = Told()
    saver = Saver(CheckpointStore(store.directory, STAMP, keep=100), told.saved.append, told.on_failed)

    def work(first: int) -> None:
        for step in range(first, first + 5):
            saver.save(step, {"model": [step]}, STAMP)

    threads = [threading.Thread(target=work, args=(base,)) for base in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    saver.wait()
    assert len(told.saved) == 15
    for item in store.committed():
        Checkpoint(item).verify()
    assert len(store.committed()) == 15


def test_memory_is_used_again_and_never_by_two_saves(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where saving or telling fails: each save gives back what it took once."""
    told = Told()
    tells = iter([None, OSError("the agent is away"), None, None, None])

    def tell(done: Done) -> None:
        told.saved.append(done)
        if (error := next(tells)) is not None:
            raise error

    saver = Saver(store, tell, told.on_failed)
    arenas = set()
    for step in range(1, 6):
        pending = saver.save(step, {"model": {"w": bytes([step]) * 9000}}, STAMP)
        with contextlib.suppress(SaveFailedError):
            pending.wait()
        assert saver._kept is not None
        arenas.add(saver._kept.snapshot.arena.address)
        assert all(idle is not saver._kept.snapshot.arena for idle in saver._arenas._idle)
    assert len(arenas) == 2
    for item in store.committed():
        assert Checkpoint(item).load()["model"]["w"] == bytes([item.root.step]) * 9000


# Crashes -----------------------------------------------------------------------------------------------------------

CHILD = """
import os, signal, sys
from pathlib import Path
from tidegate.checkpoint import root as roots, snapshot
from tidegate.checkpoint.commit import Occasion
from tidegate.checkpoint.crew import Crew
from tidegate.checkpoint.direct import Arenas
from tidegate.checkpoint.store import CheckpointStore
directory, fatal, before = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "before"
count = 0
def guard(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        global count
        count += 1
        if count == fatal and before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if count == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(os, name, call)
stamp = roots.Stamp("j-1", 1, 0, "learner", 0, 1, 42)
store = CheckpointStore(directory, stamp, keep=1, crew=Crew(1))
store.open()
step = max((item.root.step for item in store.committed()), default=0) + 1
# Nothing that one before it stored: it has every call of a save to go through.
given = {name: {"w": [step] * 1000, "b": bytes([step, fatal, len(name)]) * 2000} for name in ("model", "state")}
copied = snapshot.take(given, Arenas(0))
for name in ("fsync", "rename", "link", "write", "pwrite", "mkdir", "fchmod", "rmdir", "unlink"):
    guard(name)
store.save(Occasion(step, stamp), copied)
store.retain()
out = b"durable %d" % step
fatal = 0
os.write(1, out)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_at_every_system_call_of_a_save_leaves_no_half_checkpoint(store: CheckpointStore, when: str) -> None:
    newest = save(store.directory, 1).root.step
    killed = 0
    for fatal in range(1, 200):
        child = subprocess.run(
            [sys.executable, "-c", CHILD, str(store.directory), str(fatal), when], capture_output=True, check=False
        )
        assert child.returncode in (0, -9), child.stderr.decode()
        fresh = CheckpointStore(store.directory, STAMP)
        for item in fresh.committed():
            assert Checkpoint(item).load("model")["model"]["w"][0:1] in ([item.root.step], [1])
        found = fresh.find(None)
        assert found is not None, "the checkpoint that was durable before is gone"
        assert found.skipped == 0
        assert found.committed.root.step >= newest
        newest = found.committed.root.step
        if child.stdout:
            assert newest == int(child.stdout.split()[1])
        if child.returncode == 0:
            break
        killed += 1
    assert killed > 20, "the loop must have walked through a whole save"
    fresh.open()
    assert not [name for name in os.listdir(store.directory) if name.startswith(".tmp")]


# Jobs that do not use the SDK --------------------------------------------------------------------------------------
