"""Records what a save asks of the file system, and builds every state in which a crash could leave the disk.

The model is what POSIX promises and no more: bytes of a file are durable after its fsync, an entry of a directory after
the fsync of that directory. What is not durable yet may have reached the disk or not, in two orderings:

- in order: entries of directories and bytes of files each reached it as a prefix of how they were made;
- any order: any subset of them did, a rename across directories half of it too.

Bytes that are not durable are lost, torn or there.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

SAMPLES_PER_POINT = 220
"""States built for one moment in any order, where there are more than this many."""


class Create(NamedTuple):
    """An entry of a directory appears."""

    directory: str
    name: str
    inode: int


class Remove(NamedTuple):
    """An entry of a directory is gone."""

    directory: str
    name: str


class Write(NamedTuple):
    """Bytes of a file."""

    inode: int
    offset: int
    data: bytes


class Sync(NamedTuple):
    """What was written to a file, or to a directory (by name), is durable."""

    target: int | str


class Mark(NamedTuple):
    """What the program was told: a checkpoint is durable, or it is about to be removed."""

    what: str
    name: str


Operation = Create | Remove | Write | Sync | Mark


@dataclass
class Recording:
    """The operations below one directory, in order. A rename is a Create and then a Remove."""

    top: Path
    operations: list[Operation] = field(default_factory=list)
    _files: dict[int, int] = field(default_factory=dict)
    _made_files: int = 0

    def mark(self, what: str, name: str) -> None:
        """Note what the program was told."""
        self.operations.append(Mark(what, name))

    def _place(self, descriptor: int | None) -> str | None:
        if descriptor is None:
            return None
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        return path.relative_to(self.top).as_posix() if path.is_relative_to(self.top) else None

    def _inode(self, name: str, directory: int) -> int:
        return self._file(os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino)

    def _file(self, number: int) -> int:
        """Return which file has an inode's number now: the system gives the number of a removed one to another."""
        return self._files.get(number, -number)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record what `os` is asked to do meanwhile, by this thread's program."""
        wrapped: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "write": self._write,
            "pwrite": self._pwrite,
            "fsync": self._fsync,
            "rename": self._rename,
            "link": self._link,
            "unlink": self._unlink,
        }
        self._real = {name: getattr(os, name) for name in wrapped}
        try:
            for name, wrapper in wrapped.items():
                setattr(os, name, wrapper)
            yield
        finally:
            for name, real in self._real.items():
                setattr(os, name, real)

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        place = self._place(dir_fd)
        if flags & os.O_EXCL and place is not None:
            number = os.fstat(descriptor).st_ino
            self._made_files += 1
            self._files[number] = self._made_files
            self.operations.append(Create(place, str(path), self._files[number]))
        return descriptor

    def _write(self, descriptor: int, data: Any) -> int:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return int(self._real["write"](descriptor, data))
        offset = os.lseek(descriptor, 0, os.SEEK_CUR)
        written: int = self._real["write"](descriptor, data)
        self.operations.append(Write(self._file(os.fstat(descriptor).st_ino), offset, bytes(data[:written])))
        return written

    def _pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        written: int = self._real["pwrite"](descriptor, data, offset)
        self.operations.append(Write(self._file(os.fstat(descriptor).st_ino), offset, bytes(data[:written])))
        return written

    def _fsync(self, descriptor: int) -> None:
        self._real["fsync"](descriptor)
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        target = self._place(descriptor) if is_directory else self._file(os.fstat(descriptor).st_ino)
        if target is not None:
            self.operations.append(Sync(target))

    def _rename(self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        inode = self._inode(source, src_dir_fd)
        self._real["rename"](source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self._made(dst_dir_fd, target, inode)
        self._gone(src_dir_fd, source)

    def _link(
        self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool = True
    ) -> None:
        self._real["link"](
            source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks
        )
        self._made(dst_dir_fd, target, self._inode(source, src_dir_fd))

    def _unlink(self, name: Any, *, dir_fd: int | None = None) -> None:
        self._real["unlink"](name, dir_fd=dir_fd)
        self._gone(dir_fd, name)

    def _made(self, directory: int, name: str, inode: int) -> None:
        place = self._place(directory)
        if place is not None:
            self.operations.append(Create(place, name, inode))

    def _gone(self, directory: int | None, name: Any) -> None:
        place = self._place(directory)
        if place is not None:
            self.operations.append(Remove(place, name))


class State(NamedTuple):
    """What a crash left: contents by (directory, name). `durable` and `doubtful` are names of checkpoints."""

    entries: dict[tuple[str, str], bytes]
    durable: frozenset[str]
    doubtful: frozenset[str]

    @property
    def key(self) -> tuple[str, frozenset[str], frozenset[str]]:
        """Return what tells states apart."""
        hashing = hashlib.sha256()
        for place in sorted(self.entries):
            hashing.update(repr(place).encode() + hashlib.sha256(self.entries[place]).digest())
        return hashing.hexdigest(), self.durable, self.doubtful

    def build(self, top: Path) -> None:
        """Lay the files out below an empty directory."""
        for directory in {"packs", "manifests", "roots", *(directory for directory, _ in self.entries)}:
            (top / directory).mkdir(parents=True, exist_ok=True)
        for (directory, name), data in self.entries.items():
            (top / directory / name).write_bytes(data)


def states(operations: list[Operation], samples: int, seed: int) -> Iterator[tuple[str, State]]:
    """Yield (ordering, state) for a crash before the first operation, and after each of them."""
    chance = random.Random(seed)
    for end in range(len(operations) + 1):
        moment = _Moment(operations[:end])
        for ordering, choices in (("in order", moment.in_order()), ("any order", moment.any_order(chance, samples))):
            for entries, bytes_chosen in choices:
                yield ordering, moment.state(entries, bytes_chosen)


class _Moment:
    """What is durable at one moment and what is not."""

    def __init__(self, done: list[Operation]) -> None:
        self._done = done
        self._synced: dict[int | str, int] = {
            operation.target: at for at, operation in enumerate(done) if isinstance(operation, Sync)
        }
        self._loose_entries = [
            at
            for at, operation in enumerate(done)
            if isinstance(operation, Create | Remove) and at > self._synced.get(operation.directory, -1)
        ]
        self._loose_writes = [
            at
            for at, operation in enumerate(done)
            if isinstance(operation, Write) and at > self._synced.get(operation.inode, -1)
        ]

    def in_order(self) -> Iterator[tuple[set[int], dict[int, str]]]:
        for count in range(len(self._loose_entries) + 1):
            for written in range(len(self._loose_writes) + 1):
                for fate in ("lost", "torn"):
                    fates = {at: "there" if index < written else fate for index, at in enumerate(self._loose_writes)}
                    yield set(self._loose_entries[:count]), fates

    def any_order(self, chance: random.Random, samples: int) -> Iterator[tuple[set[int], dict[int, str]]]:
        many = 2 ** len(self._loose_entries) * 3 ** len(self._loose_writes)
        if many <= samples:
            for taken in itertools.product((False, True), repeat=len(self._loose_entries)):
                chosen = {at for at, is_there in zip(self._loose_entries, taken, strict=True) if is_there}
                for fates in itertools.product(("lost", "torn", "there"), repeat=len(self._loose_writes)):
                    yield chosen, dict(zip(self._loose_writes, fates, strict=True))
            return
        for _ in range(samples):
            chosen = {at for at in self._loose_entries if chance.random() < 0.5}
            yield chosen, {at: chance.choice(("lost", "torn", "there")) for at in self._loose_writes}

    def state(self, entries: set[int], fates: dict[int, str]) -> State:
        loose = set(self._loose_entries)
        names: dict[tuple[str, str], int] = {}
        contents: dict[int, bytearray] = {}
        durable: set[str] = set()
        doubtful: set[str] = set()
        for at, operation in enumerate(self._done):
            if isinstance(operation, Write):
                _apply(contents.setdefault(operation.inode, bytearray()), operation, fates.get(at, "there"))
            elif isinstance(operation, Mark):
                (durable.add if operation.what == "durable" else durable.discard)(operation.name)
                (doubtful.discard if operation.what == "durable" else doubtful.add)(operation.name)
            elif isinstance(operation, Create | Remove) and (at not in loose or at in entries):
                place = (operation.directory, operation.name)
                if isinstance(operation, Create):
                    names[place] = operation.inode
                else:
                    names.pop(place, None)
        found = {place: bytes(contents.get(inode, b"")) for place, inode in names.items()}
        return State(found, frozenset(durable), frozenset(doubtful))


def _apply(content: bytearray, operation: Write, fate: str) -> None:
    end = operation.offset + len(operation.data)
    if fate == "lost":
        return
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    data = operation.data if fate == "there" else operation.data[: len(operation.data) // 2]
    content[operation.offset : operation.offset + len(data)] = data


class Tally(NamedTuple):
    """How many states were built, and how many different ones of each ordering were checked."""

    built: int
    checked: dict[str, int]


def check_all(
    recording: Recording,
    scratch: Path,
    check: Callable[[Path, State], None],
    *,
    samples: int = SAMPLES_PER_POINT,
    seed: int = 1,
) -> Tally:
    """Build states and give each different one to `check` in a directory of its own; it raises where one is wrong."""
    seen: set[Any] = set()
    built, checked = 0, {"in order": 0, "any order": 0}
    for ordering, state in states(recording.operations, samples, seed):
        built += 1
        key = (ordering, state.key)
        if key in seen:
            continue
        seen.add(key)
        top = scratch / "state"
        state.build(top)
        try:
            check(top, state)
        finally:
            shutil.rmtree(top)
        checked[ordering] += 1
    return Tally(built, checked)
