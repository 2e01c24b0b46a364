"""What the ranks of one node hold of a checkpoint that is joined of several nodes' parts, as it lies on that node.

node-parts/<name>.json   a part: written as a root is, over the ranks of this node only; it names no checkpoint
joined/<name>.json       the root that was made of all parts, in a tier that nodes share: a copy, to be looked at

A part keeps its chunks and manifests from being collected, as a root does. That a part is there says nothing: whoever
joins, joins what was reported and compared.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Protocol, Tuple

from tidegate.checkpoint import commit, files
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.places import Places, below
from tidegate.checkpoint.root import Root
from tidegate.errors import CorruptCheckpointError, SaveFailedError

NODE_PARTS, JOINED = "node-parts", "joined"

_log = logging.getLogger("tidegate.checkpoint")


class NotJoinedError(SaveFailedError):
    """The parts of the nodes did not become a checkpoint; whoever joins them has said so, or did not answer."""


class Gang(Protocol):
    """The way from the first rank of a node to whoever joins the parts of all nodes."""

    def stored(self, save: str, part: Root, ranks: Tuple[int, ...]) -> None:
        """Say that this node's part of a save is durable here."""

    def failed(self, save: str, step: int, rank: int, why: str) -> None:
        """Say that this node has no part in a save, and which rank is why."""

    def outcome(self, save: str, part: Root) -> str:
        """Wait until the parts are joined; return the name of the root, a copy of which lies in this store by then.

        Raises NotJoinedError where they are not, SaveFailedError where nobody could be told of the part.
        """


class Spread(NamedTuple):
    """A gang on several nodes, as one of its processes sees it: the `save` is the same occasion on every node."""

    save: str
    gang: Gang
    seconds_max: float


@contextmanager
def directory(held: Places, kind: str, *, create: bool = False) -> Iterator[Optional[int]]:
    """Yield the open directory of the store's parts or joined roots; None where there is none yet."""
    try:
        descriptor = below(held.base, kind, create)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def put(held: Places, kind: str, root: Root) -> None:
    """Write a part, or the copy of a joined root; durable on return. The very same one is a success."""
    with directory(held, kind, create=True) as descriptor:
        try:
            commit.create(held, root, descriptor)
        except CorruptCheckpointError:  # a damaged one gives way
            assert descriptor is not None
            files.unlink_quietly(descriptor, root.name + roots.SUFFIX)
            commit.create(held, root, descriptor)


def read(held: Places, kind: str, name: str) -> Root:
    """Return a part, or a joined root, by its name. Raises CorruptCheckpointError where it is not there whole."""
    with directory(held, kind) as descriptor:
        if descriptor is None:
            raise CorruptCheckpointError(f"{name} is not there: the store has no {kind}")
        return roots.read(descriptor, name)


def parts(held: Places) -> List[Root]:
    """Return the parts of the store. Raises CorruptCheckpointError where one is damaged: what it needs is unknown."""
    with directory(held, NODE_PARTS) as descriptor:
        return [] if descriptor is None else [roots.read(descriptor, name) for name in _names(descriptor)]


def remove(held: Places, kind: str, name: str) -> None:
    """Remove one; what only a part needed is collected later."""
    with directory(held, kind) as descriptor:
        if descriptor is not None:
            files.unlink_quietly(descriptor, name + roots.SUFFIX)
            os.fsync(descriptor)


def retain(held: Places, is_mine: Callable[[Root], bool], keep: int) -> List[str]:
    """Remove parts beyond the newest `keep` of one's own, and copies of joined roots beyond as many of each component;
    return the names of the parts."""
    removed = []
    for kind in (NODE_PARTS, JOINED):
        with directory(held, kind) as descriptor:
            known = [] if descriptor is None else _readable(descriptor)
        kept: Dict[Tuple[str, int], int] = Counter()
        for root in sorted(known, key=lambda root: root.age_key, reverse=True):
            if kind == JOINED or is_mine(root):
                whose = (root.stamp.component, root.stamp.replica)
                kept[whose] += 1
                if kept[whose] > keep:
                    remove(held, kind, root.name)
                    removed += [root.name] if kind == NODE_PARTS else []
    return removed


def _readable(descriptor: int) -> List[Root]:
    found = []
    for name in _names(descriptor):
        try:
            found.append(roots.read(descriptor, name))
        except CorruptCheckpointError as error:
            _log.warning("%s is left alone: %s", name, error)
    return found


def _names(descriptor: int) -> List[str]:
    names = (name[: -len(roots.SUFFIX)] for name in os.listdir(descriptor) if name.endswith(roots.SUFFIX))
    return sorted(name for name in names if roots.NAME.match(name))
