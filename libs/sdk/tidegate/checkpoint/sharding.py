"""Saves what several ranks hold together as one checkpoint: a manifest for each rank, and one root over all.

Ranks of one node meet in their store, and the first one makes the root. Of a gang on several nodes the first rank of
each makes a part (nodepart.py), and whoever can read all parts makes the root, with the same `join`.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from tidegate.checkpoint import gathering, hashes, layer, nodepart, shard
from tidegate.checkpoint import manifest as manifests
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.commit import Occasion, drafted, packs_of, publish_layers, store, write_manifests
from tidegate.checkpoint.gathering import Gathering, Meeting, VetoedError
from tidegate.checkpoint.grace import Budget
from tidegate.checkpoint.manifest import SHARDED, Manifest, canonical
from tidegate.checkpoint.nodepart import NotJoinedError, Spread
from tidegate.checkpoint.pack import Index
from tidegate.checkpoint.packing import Base, Packer
from tidegate.checkpoint.places import Places
from tidegate.checkpoint.snapshot import Snapshot
from tidegate.checkpoint.writing import Kept, Key, kept_of, store_layers
from tidegate.errors import SaveFailedError, UsageError


def key(step: int, stamp: roots.Stamp, number: int) -> str:
    """Return what names the occasion on every rank: the `number`-th such save of the attempt."""
    group = hashes.sha256(f"{stamp.component}/{stamp.replica}".encode())[:8]
    return f"{step:012d}-{stamp.attempt}-{group}-{number}"


def key_on_node(step: int, stamp: roots.Stamp, number: int, node_rank: int) -> str:
    """Return what names the occasion on the ranks of one node of several, also where nodes share one directory."""
    group = hashes.sha256(f"{stamp.component}/{stamp.replica}@{node_rank}".encode())[:8]
    return f"{step:012d}-{stamp.attempt}-{group}-{number}"


class Stored(NamedTuple):
    """A rank's part: what it says about it to the others, and what its next save may build on."""

    said: Dict[str, Any]
    bases: Dict[Key, Base]


class Joined(NamedTuple):
    """Layers of several ranks as a root names them, the manifests over all ranks, and what some had no time for."""

    entries: List[roots.LayerEntry]
    manifests: List[Manifest]
    lost: Tuple[str, ...]


def store_part(
    packer: Packer, snapshot: Snapshot, kept: Optional[Kept] = None, budget: Optional[Budget] = None, rank: int = 0
) -> Stored:
    """Store what this rank holds, durably; what it says may be that it failed. Raises nothing but that the process
    ends."""
    try:
        drafts, bases = store_layers(packer, snapshot, kept, budget)
        ids = store(packer, [draft.manifest for draft in drafts])
    except Exception as error:  # noqa: BLE001 - said to the other ranks, and raised here after that
        failed = f"{type(error).__name__}: {error}"[: gathering.REASON_CHARS_MAX]
        return Stored({"rank": rank, "failed": failed}, {})
    layers = {draft.name: manifest_id for draft, manifest_id in zip(drafts, ids)}  # noqa: B905
    lost = [each.name for each in snapshot.layers if each.name not in layers]
    return Stored({"rank": rank, "layers": layers, "lost": lost}, bases)


def save(
    packer: Packer,
    occasion: Occasion,
    snapshot: Snapshot,
    meeting: Meeting,
    *,
    kept: Optional[Kept] = None,
    budget: Optional[Budget] = None,
    spread: Optional[Spread] = None,
) -> Tuple[roots.Root, Kept]:
    """Store this rank's part and wait for the others, with the store's shared lock held.

    Those who meet are all ranks, or with `spread` those of this node: then the first of them has its part joined with
    those of the other nodes. Returns the root, the same on every rank, and what this rank's next save may build on.
    Raises SaveFailedError on every rank when one failed or did not come. With a `budget` the root has the layers for
    which every rank had the time.
    """
    part = store_part(packer, snapshot, kept, budget, occasion.stamp.rank)
    with gathering.announced(packer.places, meeting, part.said) as gathered:
        if meeting.rank:
            name = gathered.follow()
        elif spread is None:
            name = gathered.lead(lambda parts: _make_root(packer, occasion, parts).name)
        else:
            name = _led(gathered, packer, occasion, spread)
    if spread is None:
        root = roots.read(packer.places.roots, name)
    else:
        root = nodepart.read(packer.places, nodepart.JOINED, name)
    return root, kept_of(snapshot, part.bases, root)


def _led(gathered: Gathering, packer: Packer, occasion: Occasion, spread: Spread) -> str:
    """Have this node's part joined with the others, or have it said that it has none; return the root's name."""

    return gathered.lead(
        lambda parts: _joined_elsewhere(packer, occasion, parts, spread), _tells_the_gang(occasion, spread)
    )


def _tells_the_gang(occasion: Occasion, spread: Spread) -> Callable[[Exception], None]:
    def on_failed(error: Exception) -> None:
        if not isinstance(error, NotJoinedError):
            rank = error.rank if isinstance(error, VetoedError) else occasion.stamp.rank
            spread.gang.failed(spread.save, occasion.step, rank, str(error)[: gathering.REASON_CHARS_MAX])

    return on_failed


def refuse(places: Places, occasion: Occasion, meeting: Meeting, why: str, spread: Optional[Spread] = None) -> None:
    """Say to the other ranks that this one has nothing to store; on return they know, or did not come to hear it.

    Raises SaveFailedError, which they raise too.
    """
    said = {"rank": occasion.stamp.rank, "failed": why[: gathering.REASON_CHARS_MAX]}
    with gathering.announced(places, meeting, said) as gathered:
        if meeting.rank:
            gathered.follow()
        elif spread is None:
            gathered.lead(_makes_none)
        else:
            gathered.lead(_makes_none, _tells_the_gang(occasion, spread))


def _makes_none(parts: List[Dict[str, Any]]) -> str:
    raise SaveFailedError(f"one of {len(parts)} ranks had nothing to store")


def _make_root(packer: Packer, occasion: Occasion, parts: List[Dict[str, Any]]) -> roots.Root:
    packer.refresh()
    joined = join(parts, lambda part: manifests.read(packer.places.manifests, part), packer.index)
    write_manifests(packer.places, joined.manifests)
    return publish_layers(packer.places, occasion._replace(lost=joined.lost), joined.entries)


def _joined_elsewhere(packer: Packer, occasion: Occasion, parts: List[Dict[str, Any]], spread: Spread) -> str:
    """Make the part of this node durable and have it joined; return the name of the root over all nodes."""
    packer.refresh()
    names, lost = _in_common(parts)
    over = [Manifest(SHARDED, parts=tuple(str(part["layers"][name]) for part in parts)) for name in names]
    entries = []
    for name, each, manifest_id in zip(names, over, write_manifests(packer.places, over)):  # noqa: B905
        held = [manifests.read(packer.places.manifests, part) for part in each.parts]
        size, packs = sum(manifest.size for manifest in held), packs_of(packer.index, held)
        entries.append(roots.LayerEntry(name=name, kind=SHARDED, manifest=manifest_id, bytes=size, packs=packs))
    part = drafted(occasion._replace(lost=lost), entries)
    nodepart.put(packer.places, nodepart.NODE_PARTS, part)
    with nodepart.directory(packer.places, nodepart.JOINED, create=True):
        pass  # this process's own, so that it may remove what the agent puts there
    spread.gang.stored(spread.save, part, tuple(int(each["rank"]) for each in parts))
    return spread.gang.outcome(spread.save, part)


def join(given: Sequence[Mapping[str, Any]], read: Callable[[str], Manifest], index: Index) -> Joined:
    """Return the layers of all ranks, of which each, in their order, says its own: `{"layers": {name: manifest}}`.

    Raises SaveFailedError and UsageError where they do not make up a checkpoint, CorruptCheckpointError where a
    manifest cannot be read or a chunk is in no pack of the index.
    """
    names, lost = _in_common(given)
    entries, over = [], []
    for name in names:
        whole = Manifest(SHARDED, parts=tuple(str(part["layers"][name]) for part in given))
        parts = [read(part) for part in whole.parts]
        _check_pieces(name, parts)
        over.append(whole)
        entries.append(
            roots.LayerEntry(
                name=name,
                kind=SHARDED,
                manifest=manifests.encode(whole)[0],
                bytes=sum(part.size for part in parts),
                packs=packs_of(index, parts),
                layout=_layout(parts),
            )
        )
    return Joined(_with_requirements(entries), over, lost)


def _in_common(given: Sequence[Mapping[str, Any]]) -> Tuple[List[str], Tuple[str, ...]]:
    """Return the layers that every rank stored, and those for which some had no time."""
    asked = [sorted([*part["layers"], *part.get("lost", ())]) for part in given]
    if any(each != asked[0] for each in asked):
        raise SaveFailedError("the ranks stored different layers: each saves the same ones, empty where it has nothing")
    lost = {name for part in given for name in part.get("lost", ())}
    names = [name for name in asked[0] if name not in lost]
    if not names:
        raise SaveFailedError("no layer was stored by every rank before the deadline")
    return names, tuple(sorted(lost))


def _check_pieces(name: str, parts: List[Manifest]) -> None:
    """Raise UsageError where what the ranks hold does not make up whole tensors: nobody could load them."""
    held: Dict[str, List[Tuple[List[int], List[int]]]] = {}
    shapes: Dict[str, Tuple[int, ...]] = {}
    for part in parts:
        for piece in layer.pieces(part.tree):
            ((_, body),) = piece.of.items()
            if shapes.setdefault(piece.path, piece.shape) != piece.shape:
                said = f"ranks say that the whole is {shapes[piece.path]} and {piece.shape}"
                raise UsageError(f"{name}.{piece.path} was refused: {said}")
            held.setdefault(piece.path, []).append((list(piece.offset), list(body["shape"])))
    known = {piece.path for piece in layer.pieces(parts[0].tree)}
    if lacking := sorted(set(held) - known):
        raise UsageError(f"{name}.{lacking[0]} was refused: rank 0 has no shard of it, not even an empty one")
    for path, pieces in held.items():
        shard.check_whole(f"{name}.{path}", shapes[path], pieces)


def _layout(parts: List[Manifest]) -> str:
    """Return the hash of names, types and whole shapes: the same however many ranks saved it."""
    found: Dict[str, Tuple[Optional[str], List[int]]] = {}
    for part in parts:
        for piece in layer.pieces(part.tree):
            ((_, body),) = piece.of.items()
            found[piece.path] = (body["dtype"], list(piece.shape))
    for leaf in layer.leaves(parts[0].tree):
        ((tag, body),) = leaf.node.items()
        if tag != "y":
            found.setdefault(leaf.path, (body["dtype"], body["shape"]))
    return hashes.sha256(canonical(sorted(found.items())))


def _with_requirements(entries: List[roots.LayerEntry]) -> List[roots.LayerEntry]:
    model = next((entry.layout for entry in entries if entry.name == "model"), None)
    if model is None:
        return entries
    return [
        roots.LayerEntry(**{**vars(entry), "requires": (("model", model),)}) if entry.name == "optimizer" else entry
        for entry in entries
    ]
