"""Checkpoints in stores, as a job's SDK writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.checkpoint import root as roots
from tidegate.checkpoint import snapshot as snapshots
from tidegate.checkpoint.commit import Occasion
from tidegate.checkpoint.direct import Arenas
from tidegate.checkpoint.directory import DirectorySave
from tidegate.checkpoint.pack import Index
from tidegate.checkpoint.places import Places
from tidegate.checkpoint.shelf import Shelf
from tidegate.checkpoint.store import CheckpointStore, Committed

STAMP = roots.Stamp("j-1", 1, 0, "learner", 0, 1, 42)
KEEP_ALL = 1_000_000


def opened(directory: Path, stamp: roots.Stamp = STAMP, keep: int = KEEP_ALL) -> CheckpointStore:
    """Return the store in `directory`, made where it is missing."""
    store = CheckpointStore(directory, stamp, keep)
    store.open()
    return store


def save(directory: Path, step: int, stamp: roots.Stamp = STAMP, **layers: Any) -> Committed:
    """Commit layers of values."""
    given = layers or {"model": {"w": [step]}}
    committed, _ = opened(directory, stamp).save(Occasion(step, stamp), snapshots.take(given, Arenas(0)))
    return committed


def save_tree(directory: Path, step: int, files: dict[str, bytes], stamp: roots.Stamp = STAMP) -> Committed:
    """Commit layers of files, by paths that begin with a layer's name."""
    with DirectorySave(opened(directory, stamp)) as saving:
        for name, data in files.items():
            path = saving.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        done = saving.commit(step, stamp)
    assert done is not None
    return done.committed


def root_path(committed: Committed) -> Path:
    """Return the file of a checkpoint's root."""
    return committed.store / "roots" / f"{committed.name}.json"


def manifest_path(committed: Committed, layer: str) -> Path:
    """Return the file of a layer's manifest."""
    entry = committed.root.layer(layer)
    assert entry is not None
    return committed.store / "manifests" / f"{entry.manifest}.json"


def pack_paths(committed: Committed) -> list[Path]:
    """Return the files of the packs that a checkpoint needs."""
    packs = {pack for entry in committed.root.layers for pack in entry.packs}
    return [committed.store / "packs" / f"{pack}.pack" for pack in sorted(packs)]


def parts(committed: Committed) -> list[Path]:
    """Return every file that a checkpoint consists of."""
    manifests = [manifest_path(committed, entry.name) for entry in committed.root.layers]
    return [root_path(committed), *manifests, *pack_paths(committed)]


def index_of(held: Places) -> Index:
    """Return the index over all packs of an open store."""
    return Shelf().refresh(held)
