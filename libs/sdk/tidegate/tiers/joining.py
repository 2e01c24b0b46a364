"""Joins the parts that several nodes stored of one checkpoint: each is brought to a tier, then one root names them all.

The root follows from the parts alone, and its name is created only where it is free: whoever joins the same parts
twice, or after somebody who was killed, makes the same root. A part is kept in the tier by a lease, until it is named.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from tidegate.checkpoint import commit, sharding
from tidegate.checkpoint import manifest as manifests
from tidegate.checkpoint.commit import Occasion
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.root import LayerEntry, Root, Stamp
from tidegate.errors import CheckpointError, CorruptCheckpointError, SaveFailedError, UsageError
from tidegate.tiers import moving
from tidegate.tiers.holding import Holding, OnMoved
from tidegate.tiers.job import JobTier

PART_SECONDS = 24 * 3600
"""How long a part stays that nobody joins and nobody gives up: far beyond the time in which one or the other is due."""
RANKS_MAX = 100_000


class Part(NamedTuple):
    """One node's part: `name` and `id` as they were reported, and the ranks whose layers it holds, in their order."""

    name: str
    id: str
    ranks: Tuple[int, ...]


class _PartTier(JobTier):
    """A tier in which what was moved is kept as a part, instead of being named by a root."""

    def __init__(self, tier: JobTier) -> None:
        super().__init__(tier.name, tier.objects, tier.tenant, tier.job)
        self._given: Sequence[Manifest] = ()

    def put_manifests(self, given: Sequence[Manifest]) -> None:
        """Write manifests, and remember which they are."""
        self._given = given
        super().put_manifests(given)

    def create_root(self, root: Root) -> None:
        """Keep the part, and the packs in which its chunks are here: the part may name others."""
        manifest_ids = [manifests.encode(each)[0] for each in self._given]
        self.keep_part(root, manifest_ids, commit.packs_of(self.index(), self._given), PART_SECONDS)


def promote(part: Root, source: Holding, tier: JobTier, staging: int, on_moved: OnMoved = lambda size: None) -> None:
    """Bring a node's part into a tier, every byte compared; on return it is durable there. As moving.move."""
    moving.move_layers(part, part.layers, [source], _PartTier(tier), staging, on_moved)


def join(tier: JobTier, parts: Sequence[Part]) -> Root:
    """Create the root over all parts, which lie in the tier; on return it is durable.

    Raises SaveFailedError and UsageError where they do not make up a checkpoint, CorruptCheckpointError where one of
    them is not there whole, TierUnavailableError.
    """
    root, joined = _drafted(tier, parts)
    if (before := _made_before(tier, root)) is not None:
        return before
    with tier.leased(root.layers, sorted({pack_id for layer in root.layers for pack_id in layer.packs})):
        tier.put_manifests(joined.manifests)
        tier.create_root(root)
    return root


def made(tier: JobTier, parts: Sequence[Part]) -> Optional[Root]:
    """Return the root over all parts that `join` made before, None where it made none. Raises as `join` does."""
    root, _ = _drafted(tier, parts)
    return _made_before(tier, root)


def _drafted(tier: JobTier, parts: Sequence[Part]) -> Tuple[Root, sharding.Joined]:
    """Return the root over all parts, and the manifests that it needs."""
    found = [_read(tier, part) for part in parts]
    first = _agreed(found, parts)
    ranks = _by_rank(tier, found, parts, first.stamp.world_size)
    cache: Dict[str, Manifest] = {}

    def read(manifest_id: str) -> Manifest:
        if manifest_id not in cache:
            cache[manifest_id] = tier.manifest(manifest_id)
        return cache[manifest_id]

    joined = sharding.join(ranks, read, tier.index())
    occasion = Occasion(first.step, first.stamp, first.predecessor, joined.lost)
    return commit.drafted(occasion, joined.entries, max(part.created_ns for part in found)), joined


def forget(tier: JobTier, parts: Sequence[Part]) -> None:
    """Keep the parts no longer."""
    for part in parts:
        tier.forget_part(part.name)


def _read(tier: JobTier, part: Part) -> Root:
    found = tier.part(part.name)
    if found.id != part.id:
        raise CorruptCheckpointError(f"part {part.name} in {tier.name} is another one than was reported")
    return found


def _agreed(found: Sequence[Root], parts: Sequence[Part]) -> Root:
    """Return the part of rank 0, where all are parts of the same save. Raises SaveFailedError where they are not."""
    first = next((root for root, part in zip(found, parts) if 0 in part.ranks), None)  # noqa: B905
    if first is None:
        raise SaveFailedError("no part holds what rank 0 saved")
    for root in found:
        if (root.step, _whose(root.stamp)) != (first.step, _whose(first.stamp)):
            raise SaveFailedError(
                f"part {root.name} is of step {root.step}, {_whose(root.stamp)}, that of rank 0 of step {first.step}, "
                f"{_whose(first.stamp)}: they are not of one save"
            )
    return first


def _whose(stamp: Stamp) -> Tuple[str, int, str, int, int]:
    return (stamp.job, stamp.attempt, stamp.component, stamp.replica, stamp.world_size)


def _by_rank(tier: JobTier, found: Sequence[Root], parts: Sequence[Part], world_size: int) -> List[Mapping[str, Any]]:
    """Return what each rank says of its layers, as it said it to the others of its node."""
    said: Dict[int, Dict[str, Any]] = {}
    for root, part in zip(found, parts):  # noqa: B905
        held = {layer.name: _manifests_of(tier, layer, len(part.ranks)) for layer in root.layers}
        for number, rank in enumerate(part.ranks):
            if rank in said or not 0 <= rank < world_size:
                raise SaveFailedError(f"rank {rank} is in two parts, or is none of {world_size}")
            said[rank] = {"layers": {name: ids[number] for name, ids in held.items()}, "lost": root.lost}
    if len(said) != world_size:
        missing = sorted(set(range(min(world_size, RANKS_MAX))) - set(said))[:10]
        raise SaveFailedError(f"of {world_size} ranks, {missing} are in no part")
    return [said[rank] for rank in range(world_size)]


def _manifests_of(tier: JobTier, layer: LayerEntry, count: int) -> Tuple[str, ...]:
    manifest = tier.manifest(layer.manifest)
    if manifest.kind != manifests.SHARDED or len(manifest.parts) != count:
        raise UsageError(f"layer {layer.name} of a part holds {len(manifest.parts)} ranks, {count} were reported")
    return manifest.parts


def _made_before(tier: JobTier, root: Root) -> Optional[Root]:
    """Return the root of these very layers that is there already: chunks may be in other packs since it was made."""
    start = f"{root.step:012d}-{root.stamp.attempt}-"
    for name in tier.roots():
        if not name.startswith(start):
            continue
        try:
            other = tier.root(name)
        except CheckpointError:
            continue
        if other.created_ns == root.created_ns and _layers(other) == _layers(root):
            return other
    return None


def _layers(root: Root) -> List[Tuple[str, str]]:
    return [(layer.name, layer.manifest) for layer in root.layers]
