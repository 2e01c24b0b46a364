"""Layers that are trees of files, as frameworks write them: taken into chunks, and put back as files."""

from __future__ import annotations

import os
import stat
from typing import Callable, Iterator, List

from tidegate import protocol
from tidegate.checkpoint import files
from tidegate.checkpoint.commit import LayerDraft
from tidegate.checkpoint.direct import Arena
from tidegate.checkpoint.manifest import (
    FILES,
    INLINE_BYTES_MAX,
    PATH_CHARS_MAX,
    PATH_DEPTH_MAX,
    BlobEntry,
    Manifest,
    is_acceptable_path,
)
from tidegate.checkpoint.pack import CHUNK_BYTES
from tidegate.checkpoint.packing import Blob, Packer
from tidegate.checkpoint.reader import Reader, Want
from tidegate.errors import UnknownLayerError, UnsupportedObjectError

FILES_MAX = 100_000
WINDOW_BYTES = 16 * CHUNK_BYTES
"""How much of a file is in memory at a time."""


def take_layers(packer: Packer, directory: int) -> List[LayerDraft]:
    """Store the trees below `directory`, one for each layer's name; empty ones are left out.

    Raises UnknownLayerError, UnsupportedObjectError for what is no layer or no file.
    """
    drafts = []
    for name in sorted(os.listdir(directory)):
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        if name not in protocol.LAYERS or not stat.S_ISDIR(mode):
            raise UnknownLayerError(
                f"{name!r} was refused in a checkpoint: files belong below the directories {', '.join(protocol.LAYERS)}"
            )
        manifest = take_tree(packer, directory, name)
        if manifest.blobs:
            drafts.append(LayerDraft(name, manifest))
    return drafts


def take_tree(packer: Packer, directory: int, name: str) -> Manifest:
    """Store the tree `name` below `directory`; paths in its manifest begin below `name`. No link is followed."""
    arena = Arena(WINDOW_BYTES)
    blobs: List[BlobEntry] = []
    for path in _paths(directory, name, "", 0):
        if len(blobs) == FILES_MAX:
            raise UnsupportedObjectError(f"a layer of more than {FILES_MAX} files was refused")
        blobs.append(take_file(packer, arena, directory, f"{name}/{path}" if path else name, path or name))
    return Manifest(FILES, packer.hash_name, tuple(blobs))


def _paths(directory: int, name: str, below: str, depth: int) -> Iterator[str]:
    """Yield the relative paths of regular files, in order; "" where `name` is a file itself."""
    mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    if stat.S_ISREG(mode):
        yield below
        return
    if not stat.S_ISDIR(mode) or depth > PATH_DEPTH_MAX:
        raise UnsupportedObjectError(
            f"{below or name} was refused: a checkpoint holds regular files and directories, no links, at most "
            f"{PATH_DEPTH_MAX} deep"
        )
    held = os.open(name, files.DIRECTORY_FLAGS, dir_fd=directory)
    try:
        for inner in sorted(os.listdir(held)):
            yield from _paths(held, inner, f"{below}/{inner}" if below else inner, depth + 1)
    finally:
        os.close(held)


def take_file(packer: Packer, arena: Arena, directory: int, relative: str, path: str) -> BlobEntry:
    """Store one file as it is when it is read; `path` is its name in the manifest."""
    if not is_acceptable_path(path):
        raise UnsupportedObjectError(
            f"{path!r} was refused: the name of a file in a checkpoint is printable text of at most {PATH_CHARS_MAX} "
            f"characters, at most {PATH_DEPTH_MAX} deep"
        )
    size = 0
    chunks: List[bytes] = []
    with files.open_inside(directory, relative) as file:
        while True:
            arena.reset()
            count = _fill(file.fileno(), arena.view[:WINDOW_BYTES])
            arena.take(count)
            if size == 0 and count <= INLINE_BYTES_MAX:
                return BlobEntry("f", count, 1, (), bytes(arena.view[:count]), path)
            if count:
                chunks += packer.put([Blob(arena, 0, count, 1)])[0]
            size += count
            if count < WINDOW_BYTES:
                return BlobEntry("f", size, 1, tuple(chunks), None, path)


def _fill(descriptor: int, memory: memoryview) -> int:
    filled = 0
    while filled < len(memory):
        count = os.readv(descriptor, [memory[filled:]])
        if count == 0:
            break
        filled += count
    return filled


def put_tree(
    reader: Reader,
    manifest: Manifest,
    name: str,
    directory: int,
    on_written: Callable[[int], None] = lambda size: None,
) -> None:
    """Write the files of layer `name` below `directory`, each byte verified before it is written, and durable."""
    for blob in manifest.blobs:
        _put_file(reader, manifest.hash_name, f"layer {name}, {blob.path}", blob, directory)
        on_written(blob.size)


def _put_file(reader: Reader, hash_name: str, what: str, blob: BlobEntry, directory: int) -> None:
    *parents, last = blob.path.split("/")
    held = _made(directory, parents)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(last, flags, 0o644, dir_fd=held)
        try:
            if blob.inline is not None:
                files.write_all(descriptor, memoryview(blob.inline))
            for start in range(0, len(blob.chunks), reader.batch):
                sizes = [
                    min(CHUNK_BYTES, blob.size - number * CHUNK_BYTES)
                    for number in range(start, min(start + reader.batch, len(blob.chunks)))
                ]
                targets = [reader.scratch(index)[:size] for index, size in enumerate(sizes)]
                reader.read(
                    [
                        Want(what, hash_name, blob.chunks[start + at], len(target), target)
                        for at, target in enumerate(targets)
                    ]
                )
                for target in targets:
                    files.write_all(descriptor, target)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.fsync(held)
    finally:
        os.close(held)


def _made(directory: int, parents: List[str]) -> int:
    """Return the open directory below `directory`, made where it is missing."""
    held = os.dup(directory)
    try:
        for parent in parents:
            try:
                os.mkdir(parent, 0o755, dir_fd=held)
                os.fsync(held)
            except FileExistsError:
                pass
            below = os.open(parent, files.DIRECTORY_FLAGS, dir_fd=held)
            os.close(held)
            held = below
    except BaseException:
        os.close(held)
        raise
    return held
