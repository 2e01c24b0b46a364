"""What a checkpoint costs beside torch.save, safetensors and torch DCP, everything in one run, as one JSON line.

Every save is timed until it is durable: the others are followed by an fsync of their file and directory. Ratios are
taken within a round, between neighbours in time, and their median is printed; what each way took is shown on the
standard error. Reads are cold: the pages of both files are dropped from the cache before.

- save_ratio_*: time of torch.save over ours, for a first save of fp32 weights, bf16 weights and a mixed RL state.
- resave_bytes_pct: bytes written when 5% of the tensors changed; delta_bytes_pct: after an AdamW step at lr 1e-6, bf16.
- stall_over_memcpy: what the training loop waits for, over a memcpy of as many bytes into the same kind of buffer.
- restore_ratio, partial_restore_ratio: time of torch.load over a verified restore, of all and of 20% of the tensors.
- limit_fraction: rate of a first save of fp32 weights over that of plain O_DIRECT writes of as many bytes.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from tidegate.checkpoint import root as roots
from tidegate.checkpoint import snapshot as snapshots
from tidegate.checkpoint.commit import Occasion
from tidegate.checkpoint.direct import DIRECT, Arena, Arenas
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.store import CheckpointStore, Committed
from tidegate.checkpoint.writing import Kept

STAMP = roots.Stamp("bench", 1, 0, "learner", 0, 1, 7)
TENSORS = 20
BLOCK_BYTES = 4 << 20
WARM_UP_STEPS = 4
SETTLE_SECONDS = 1.0
"""After files were removed: a disk that is told which blocks are free (discard) is busy with that for a while."""
State = dict[str, torch.Tensor]


class Ours:
    """Saves to a store of its own each time, with memory that is used again as a job's process does."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._arenas = Arenas(2)
        self._number = 0

    def store(self) -> CheckpointStore:
        """Return an empty store."""
        self._number += 1
        store = CheckpointStore(self._directory / f"store-{self._number}", STAMP)
        store.open()
        return store

    def save(self, store: CheckpointStore, state: State, kept: Kept | None = None) -> tuple[Committed, Kept]:
        """Save durably, as `job.save(wait=True)` does."""
        return store.save(Occasion(1, STAMP), snapshots.take({"model": state}, self._arenas, borrow=True), kept)

    def copy(self, state: State) -> snapshots.Snapshot:
        """Do what the training loop waits for."""
        return snapshots.take({"model": state}, self._arenas)

    def done(self, *kept: Kept) -> None:
        """Give memory back."""
        for each in kept:
            self._arenas.give_back(each.snapshot.arena)


def seconds(work: Callable[[], object]) -> float:
    """Return how long `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def sync(path: Path) -> None:
    """Make a file or a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def forget(directory: Path) -> None:
    """Drop what the page cache has of the files below a directory."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def stored_bytes(directory: Path) -> int:
    """Return the size of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def size_of(state: State) -> int:
    """Return the bytes of a state's tensors."""
    return sum(tensor.nbytes for tensor in state.values())


def weights(size_bytes: int, dtype: torch.dtype) -> State:
    """Return weights as training leaves them: normal numbers of a small scale."""
    each = size_bytes // TENSORS // dtype.itemsize
    return {f"layers.{index}.weight": (torch.randn(each) * 0.02).to(dtype) for index in range(TENSORS)}


def mixed(size_bytes: int) -> State:
    """Return an RL state: bf16 policy, the same as reference, fp32 master, moments with 30% zero rows, EMA."""
    each = size_bytes // 20 // 4 // 256 * 256
    state: State = {}
    for index in range(4):
        master = torch.randn(each // 256, 256) * 0.02
        moments = torch.randn(2, each // 256, 256) * 1e-4
        moments[:, : int(each / 256 * 0.3)] = 0
        policy = master.to(torch.bfloat16)
        state.update({f"policy.{index}": policy, f"reference.{index}": policy.clone(), f"master.{index}": master})
        state.update({f"ema.{index}": master.clone(), f"first.{index}": moments[0].clone()})
        state[f"second.{index}"] = moments[1].square()
    return state


class Training:
    """fp32 masters under AdamW at lr 1e-6, some steps on: the first ones move every weight by the full rate."""

    def __init__(self, masters: State) -> None:
        self._masters = {name: torch.nn.Parameter(master) for name, master in masters.items()}
        self._optimizer = torch.optim.AdamW(self._masters.values(), lr=1e-6, foreach=False)
        for _ in range(WARM_UP_STEPS):
            self.step()

    def step(self) -> State:
        """Make a step; return the weights in bf16."""
        for master in self._masters.values():
            master.grad = torch.randn_like(master)
        self._optimizer.step()
        return self.weights()

    def weights(self) -> State:
        """Return the weights in bf16."""
        return {name: master.detach().to(torch.bfloat16) for name, master in self._masters.items()}


def torch_save(state: State, directory: Path) -> None:
    """Save with torch.save, durably."""
    torch.save(state, directory / "torch.pt")
    sync(directory / "torch.pt")
    sync(directory)


def safetensors_save(state: State, directory: Path) -> None:
    """Save with safetensors, durably."""
    save_file(state, directory / "it.safetensors")
    sync(directory / "it.safetensors")
    sync(directory)


def dcp_save(state: State, directory: Path) -> None:
    """Save with torch DCP, which syncs its files itself."""
    dcp.save(state, storage_writer=dcp.FileSystemWriter(directory / "dcp", sync_files=True), no_dist=True)
    sync(directory)


def plain_write(size_bytes: int, directory: Path) -> None:
    """Write as many bytes around the page cache, durably."""
    arena = Arena(BLOCK_BYTES)
    ctypes.memset(arena.address, 0x5A, BLOCK_BYTES)
    descriptor = os.open(directory / "plain", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | DIRECT)
    for offset in range(0, size_bytes // BLOCK_BYTES * BLOCK_BYTES, BLOCK_BYTES):
        os.pwrite(descriptor, arena.view, offset)
    os.fsync(descriptor)
    os.close(descriptor)
    sync(directory)


class Run:
    """Collects what each way took, and ratios by their key."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self.directory = directory
        self.size_bytes = size_bytes
        self.ours = Ours(directory)
        self.took: dict[str, list[float]] = {}
        self.found: dict[str, list[float]] = {}

    def timed(self, name: str, work: Callable[[], object]) -> float:
        """Return and remember how long `work` takes."""
        took = seconds(work)
        self.took.setdefault(name, []).append(took)
        return took

    def say(self, key: str, value: float) -> None:
        """Remember one round's result."""
        self.found.setdefault(key, []).append(value)

    def clear(self) -> None:
        """Remove every file of the round."""
        for path in self.directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        sync(self.directory)
        time.sleep(SETTLE_SECONDS)

    def saves(self, kind: str, state: State) -> None:
        """Time first saves of one state, every way."""
        torch_seconds = self.timed(f"torch.save {kind}", lambda: torch_save(state, self.directory))
        kept: list[Kept] = []
        store = self.ours.store()
        our_seconds = self.timed(f"ours {kind}", lambda: kept.append(self.ours.save(store, state)[1]))
        limit = self.timed(f"O_DIRECT {kind}", lambda: plain_write(size_of(state), self.directory))
        if kind == "fp32":
            self.say("limit_fraction", limit / our_seconds)
        self.ours.done(*kept)
        self.say(f"save_ratio_{kind}", torch_seconds / our_seconds)
        self.timed(f"safetensors {kind}", lambda: safetensors_save(state, self.directory))
        self.timed(f"dcp {kind}", lambda: dcp_save(state, self.directory))
        self.clear()

    def changes(self, state: State, training: Training) -> None:
        """Measure what second saves write."""
        store = self.ours.store()
        _, kept = self.ours.save(store, state)
        before = stored_bytes(store.directory)
        changed = next(iter(state))
        state[changed] = torch.randn_like(state[changed])
        _, now = self.ours.save(store, state, kept)
        self.say("resave_bytes_pct", 100 * (stored_bytes(store.directory) - before) / size_of(state))
        self.ours.done(kept, now)
        store = self.ours.store()
        _, kept = self.ours.save(store, training.weights())
        before = stored_bytes(store.directory)
        stepped = training.step()
        deltas: list[Kept] = []
        self.timed("ours, RL step", lambda: deltas.append(self.ours.save(store, stepped, kept)[1]))
        self.say("delta_bytes_pct", 100 * (stored_bytes(store.directory) - before) / size_of(stepped))
        self.ours.done(kept, *deltas)
        self.clear()

    def stall(self, state: State) -> None:
        """Compare what the training loop waits for with one memcpy."""
        flat = torch.empty(size_of(state), dtype=torch.uint8).fill_(1)
        arena = Arena(flat.nbytes)
        ctypes.memmove(arena.address, flat.data_ptr(), flat.nbytes)
        warm = self.ours.copy(state)
        self.ours._arenas.give_back(warm.arena)
        copies: list[snapshots.Snapshot] = []
        memcpy = self.timed("memcpy", lambda: ctypes.memmove(arena.address, flat.data_ptr(), flat.nbytes))
        stall = self.timed("stall", lambda: copies.append(self.ours.copy(state)))
        self.ours._arenas.give_back(copies[0].arena)
        self.say("stall_over_memcpy", stall / memcpy)

    def restores(self, state: State) -> None:
        """Compare restores with torch.load, cold."""
        torch_save(state, self.directory)
        store = self.ours.store()
        committed, kept = self.ours.save(store, state)
        self.ours.done(kept)
        checkpoint = Checkpoint(committed)
        few = [f"layers.{index}.weight" for index in range(TENSORS // 5)]
        forget(self.directory)
        theirs = self.timed("torch.load", lambda: torch.load(self.directory / "torch.pt", weights_only=True))
        forget(self.directory)
        self.say("restore_ratio", theirs / self.timed("restore", lambda: _same(checkpoint.load("model"), state)))
        forget(self.directory)
        part = self.timed("restore of 20%", lambda: checkpoint.load("model", tensors=few))
        self.say("partial_restore_ratio", theirs / part)
        self.clear()


def _same(loaded: dict[str, Any], state: State) -> None:
    assert loaded["model"].keys() == state.keys()


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=500, help="size of each state")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: the temporary directory")
    asked = parser.parse_args()
    torch.manual_seed(7)
    with tempfile.TemporaryDirectory(dir=asked.directory, prefix="tidegate-bench-") as directory:
        run = Run(Path(directory), asked.mb * 1_000_000)
        fp32, bf16, rl = (
            weights(run.size_bytes, torch.float32),
            weights(run.size_bytes, torch.bfloat16),
            mixed(run.size_bytes),
        )
        training = Training(weights(run.size_bytes, torch.float32))
        for _ in range(asked.rounds):
            run.saves("fp32", fp32)
            run.saves("bf16", bf16)
            run.saves("rl", rl)
            run.changes(dict(fp32), training)
            run.stall(fp32)
            run.restores(fp32)
    for name, took in run.took.items():
        print(f"{name:24} {statistics.median(took):7.3f} s", file=sys.stderr)
    print(json.dumps({key: round(statistics.median(values), 3) for key, values in sorted(run.found.items())}))


if __name__ == "__main__":
    main()
