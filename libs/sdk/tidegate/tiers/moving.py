"""Moves checkpoints between tiers: packs, then manifests, then the root, each compared before it counts.

What is there already is not sent again, so a move that was interrupted goes on where it stood.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Callable, List, NamedTuple, Sequence, TypeVar

from tidegate.checkpoint import commit
from tidegate.checkpoint import manifest as manifests
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.root import LayerEntry, Root
from tidegate.errors import CheckpointError, CorruptCheckpointError
from tidegate.tiers.holding import Holding, OnMoved, compared_pack, packs_of, refused

Taken = TypeVar("Taken")
NEEDED_TRIES_MAX = 3
"""How often is looked anew in which packs chunks are, when one of those named is gone."""


class Moved(NamedTuple):
    """What a move did: the packs that were sent, those that were there, and from which tiers they came."""

    root: Root
    sent: int
    kept: int
    sources: List[str]


def move(
    name: str, sources: Sequence[Holding], target: Holding, staging: int, on_moved: OnMoved = lambda size: None
) -> Moved:
    """Bring the checkpoint whose root is called `name` into `target`, from the nearest of `sources` that is whole.

    What one source lacks, holds damaged or does not give now comes from the next. `staging` is a directory for what is
    being compared. Raises CorruptCheckpointError where no source has something whole, TierUnavailableError where none
    answers: nothing names what was moved by then.
    """
    root = _first(f"root {name}", sources, lambda source: source.root(name))
    return move_layers(root, root.layers, sources, target, staging, on_moved)


def move_layers(  # noqa: PLR0917
    root: Root,
    layers: Sequence[LayerEntry],
    sources: Sequence[Holding],
    target: Holding,
    staging: int,
    on_moved: OnMoved = lambda size: None,
) -> Moved:
    """Bring some layers of a checkpoint, and its root, into `target`; as `move` does with all of them."""
    given = _manifests(layers, sources)
    needed = _needed(layers, sources)
    for _ in range(NEEDED_TRIES_MAX - 1):
        try:
            return _moved(root, given, needed, sources, target, staging, on_moved)
        except CorruptCheckpointError:
            before, needed = needed, _needed(layers, sources)
            if needed == before:
                raise
            # What a source held in one pack is in another one by now: see repacking.py.
    return _moved(root, given, needed, sources, target, staging, on_moved)


def _needed(layers: Sequence[LayerEntry], sources: Sequence[Holding]) -> List[str]:
    return _first("what the layers consist of", sources, lambda source: packs_of(source, layers))


def _moved(  # noqa: PLR0917
    root: Root,
    given: Sequence[Manifest],
    needed: Sequence[str],
    sources: Sequence[Holding],
    target: Holding,
    staging: int,
    on_moved: OnMoved,
) -> Moved:
    origins: List[str] = []

    def send_lacking() -> None:
        for pack_id in _lacking(target, given, needed):
            origins.append(send_pack(pack_id, sources, target, staging, on_moved))

    with target.leased(root.layers, needed):
        send_lacking()
        if target.replaced():
            send_lacking()  # the packs with chunks that lived nowhere when they were written again
        sent = len(origins)
        target.put_manifests(given)
        target.create_root(root)
        # Whoever collects may have looked before the lease was there, and taken away what this move relied upon.
        send_lacking()
        target.put_manifests(given)
    return Moved(root, sent, len(needed) - sent, sorted(set(origins)))


def _lacking(target: Holding, given: Sequence[Manifest], needed: Sequence[str]) -> List[str]:
    """Return the packs that have to be sent next: those that were written again only where the others do not do."""
    there = target.packs()
    wanted = [pack_id for pack_id in needed if pack_id not in there]
    if set(wanted) & target.replaced():
        try:
            commit.packs_of(target.index(), given)
        except CorruptCheckpointError:
            return [pack_id for pack_id in wanted if pack_id not in target.replaced()] or wanted
        return []
    return wanted


def send_pack(pack_id: str, sources: Sequence[Holding], target: Holding, staging: int, on_moved: OnMoved) -> str:
    """Bring one pack into `target`, over whatever has its name there; return the tier that gave it."""
    tried: List[CheckpointError] = []
    for source in sources:
        with ExitStack() as stack:
            try:
                temporary = stack.enter_context(compared_pack(source, pack_id, staging, on_moved))
            except CheckpointError as error:
                tried.append(error)
                continue
            target.put_pack(pack_id, temporary)
            return source.name
    raise refused(f"pack {pack_id[:12]}", tried)


def _manifests(layers: Sequence[LayerEntry], sources: Sequence[Holding]) -> List[Manifest]:
    """Return the manifests of layers, each from the first source that has it whole."""

    def taken(manifest_id: str) -> Manifest:
        return _first(f"manifest {manifest_id[:12]}", sources, lambda source: source.manifest(manifest_id))

    found = []
    for layer in layers:
        manifest = taken(layer.manifest)
        if manifest.kind != layer.kind:
            raise CorruptCheckpointError(f"layer {layer.name} is of kind {manifest.kind}, not {layer.kind}")
        # The manifests of shards come before the one that names them.
        found += [taken(part) for part in manifest.parts]
        found.append(manifest)
    return list({manifests.encode(each)[0]: each for each in found}.values())


def _first(what: str, sources: Sequence[Holding], take: Callable[[Holding], Taken]) -> Taken:
    tried: List[CheckpointError] = []
    for source in sources:
        try:
            return take(source)
        except CheckpointError as error:
            tried.append(error)
    raise refused(what, tried)
