"""The cache of converted layers, each known by its content's digest and the converter's version, shared by images.

A layer is whole or not there: it gets its name when it lies on disk. All block; the mounts are this process's own.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Set
from pathlib import Path

from blake3 import blake3

from tidegate_executor import trees
from tidegate_executor.oci import mounting, streams, unpacking
from tidegate_executor.oci.blobs import Blobs
from tidegate_executor.oci.manifest import LayerPart
from tidegate_executor.oci.mounting import Form
from tidegate_executor.sandbox.state import remove_tree
from tidegate_executor.spool.segments import sync_directory, write_durably

CONVERTER_VERSION = 1
"""Of what is made of a layer: another one, and every layer is converted anew."""

TEMPORARY = ".tmp-"
TREE = ".tree"
FILE = ".erofs"


class LayerCache:
    """One directory with `<digest>-v<version>` of each layer, and where they are mounted."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._layers = directory / "layers"
        self._mounts = directory / "mounts"
        self._hashes = directory / "hashes"
        self._staged = itertools.count()
        self._mounted: dict[str, Path] = {}
        self._checked: dict[str, tuple[int, ...]] = {}
        self.form: Form = "tree"

    def open(self) -> None:
        """Find out how layers are kept here, and remove what an interrupted conversion left."""
        for directory in (self._directory, self._layers, self._mounts, self._hashes):
            directory.mkdir(exist_ok=True, mode=0o711)
        for left in self._layers.glob(f"{TEMPORARY}*"):
            remove_tree(left)
        for target in self._mounts.iterdir():
            if target.is_mount():  # by one who was killed, and was allowed no namespace of its own
                mounting.unmount(target)
        self.form = mounting.probe(self._directory)

    def has(self, diff_id: str) -> bool:
        """Say whether the layer is converted in the form that is used now."""
        return self._place(diff_id).exists()

    def convert(self, blobs: Blobs, layer: LayerPart, room_bytes: int, given_up: Callable[[], bool]) -> int:
        """Have the layer; return the bytes that it takes.

        Raises ImageRefusedError for the layer's fault, ConversionError or OSError for the node's.
        """
        place = self._place(layer.diff_id)
        if place.exists():
            return size_bytes(place)
        staging = self._layers / f"{TEMPORARY}{os.getpid()}-{next(self._staged)}"
        staging.mkdir(mode=0o755)
        try:
            tree = staging / "tree"
            tree.mkdir(mode=0o755)
            with streams.content(blobs, layer, room_bytes) as stream:
                unpacking.unpack(stream, tree, given_up)
            made = tree
            if self.form != "tree":
                made = staging / "layer.erofs"
                mounting.make(tree, made, given_up)
            else:
                os.sync()  # once for a tree of any size; a file is synced by itself
            write_durably(self._hash_file(place), content_hash(made).encode())
            made.rename(place)
            sync_directory(self._layers)
        finally:
            remove_tree(staging)
        return size_bytes(place)

    def check(self, diff_id: str) -> str:
        """Return what is wrong with the layer; nothing where it is as it was made. It is read again when it changed."""
        place = self._place(diff_id)
        seen = _seen(place)
        if self._checked.get(diff_id) == seen:
            return ""
        if content_hash(place) != self._hash_file(place).read_text():
            return f"layer {diff_id} is not what was converted: {place} was changed"
        self._checked[diff_id] = seen
        return ""

    def use(self, diff_id: str) -> Path:
        """Return the directory where the layer's content is seen. Raises ConversionError."""
        place = self._place(diff_id)
        if self.form == "tree":
            return place
        if diff_id not in self._mounted:
            target = self._mounts / place.stem
            target.mkdir(exist_ok=True, mode=0o755)
            mounting.mount(place, target, self.form)
            self._mounted[diff_id] = target
        return self._mounted[diff_id]

    def keep_only(self, wanted: Set[str]) -> int:
        """Remove the layers of no image any more; return the bytes that were freed. Sandboxes keep what they use."""
        names = {self._place(diff_id).name for diff_id in wanted}
        freed_bytes = 0
        for diff_id in set(self._mounted) - wanted:
            self._let_go(diff_id)
        for place in list(self._layers.iterdir()):
            if place.name not in names and not place.name.startswith(TEMPORARY):
                freed_bytes += size_bytes(place)
                removed = self._layers / f"{TEMPORARY}{place.name}"
                self._hash_file(place).unlink(missing_ok=True)
                place.rename(removed)
                remove_tree(removed) if removed.is_dir() else removed.unlink()
        return freed_bytes

    def close(self) -> None:
        """Undo the mounts of this process."""
        for diff_id in list(self._mounted):
            self._let_go(diff_id)

    def size_bytes(self, diff_id: str) -> int:
        """Return what the layer takes on disk."""
        return size_bytes(self._place(diff_id))

    def _let_go(self, diff_id: str) -> None:
        target = self._mounted.pop(diff_id)
        mounting.unmount(target)
        target.rmdir()

    def _hash_file(self, place: Path) -> Path:
        return self._hashes / place.name

    def _place(self, diff_id: str) -> Path:
        kind = TREE if self.form == "tree" else FILE
        return self._layers / f"{diff_id.removeprefix('sha256:')}-v{CONVERTER_VERSION}{kind}"


def content_hash(place: Path) -> str:
    """Return the hash of a layer's file, or of its unpacked tree."""
    if place.is_dir():
        return trees.digest([(str(place), "/")], trees.HashCache(place.with_suffix(".none")), {})
    hasher = blake3()
    with place.open("rb") as reading:
        while block := reading.read(trees.BLOCK_BYTES):
            hasher.update(block)
    return f"b3:{hasher.hexdigest()}"


def _seen(place: Path) -> tuple[int, ...]:
    """What changes when a file does. Of a tree that says nothing about what is in it: it is read each time."""
    status = place.stat()
    stamp = time.monotonic_ns() if place.is_dir() else 0
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, stamp)


def size_bytes(place: Path) -> int:
    """Return the bytes of a file, or of all files of a tree."""
    if not place.is_dir():
        return place.stat().st_size
    return sum(os.lstat(os.path.join(parent, name)).st_size for parent, _, names in os.walk(place) for name in names)


def free_bytes(directory: Path) -> int:
    """Return what is free on the disk."""
    return shutil.disk_usage(directory).free
