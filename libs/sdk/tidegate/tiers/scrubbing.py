"""Reads back everything that a tier holds, and replaces what is damaged by what another tier holds whole."""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Set

from tidegate.checkpoint.root import Root
from tidegate.errors import CheckpointError, CorruptCheckpointError
from tidegate.tiers.holding import Holding, OnMoved, compared_pack, packs_of
from tidegate.tiers.moving import send_pack


class Damage(NamedTuple):
    """One object that is not whole; `repaired_from` is the tier that gave a whole one, None where none did."""

    tier: str
    what: str
    why: str
    repaired_from: Optional[str] = None


class Scrubbed(NamedTuple):
    """What was read, and what of it was not whole."""

    roots: int
    packs: int
    damages: List[Damage]


class Scrub:
    """One pass over one job in one tier. Without `others` nothing is repaired."""

    def __init__(
        self, target: Holding, others: Sequence[Holding], staging: int, on_moved: OnMoved = lambda size: None
    ) -> None:
        self._target = target
        self._others = others
        self._staging = staging
        self._on_moved = on_moved
        self._damages: List[Damage] = []
        self._compared: Set[str] = set()

    def run(self, only: Optional[Set[str]] = None) -> Scrubbed:
        """Compare all that the roots (or `only` those of these names) need."""
        known = [self._root(name) for name in self._target.roots() if only is None or name in only]
        found = [root for root in known if root is not None]
        packs: Dict[str, List[str]] = {}
        for root in found:
            for pack_id in self._parts_of(root):
                packs.setdefault(pack_id, []).append(root.name)
        for pack_id, needing in packs.items():
            self._pack(pack_id, needing)
        return Scrubbed(len(known), len(packs), self._damages)

    def _root(self, name: str) -> Optional[Root]:
        try:
            return self._target.root(name)
        except CorruptCheckpointError as error:
            if not self._still_named([name]):
                return None
            taken: List[Root] = []

            def take(other: Holding) -> None:
                root = other.root(name)
                self._target.remove_root(name)
                self._target.create_root(root)
                taken.append(root)

            self._repair(f"root {name}", error, take)
            return taken[0] if taken else None

    def _parts_of(self, root: Root) -> List[str]:
        """Return the packs of a root, its manifests compared; where a manifest is lost, those that the root names."""
        for layer in root.layers:
            for part in self._manifest(layer.manifest):
                self._manifest(part)
        named = sorted({pack_id for layer in root.layers for pack_id in layer.packs})
        try:
            return packs_of(self._target, root.layers)
        except CorruptCheckpointError:
            return named

    def _manifest(self, manifest_id: str) -> Sequence[str]:
        """Compare a manifest, once; return the parts that it names."""
        if manifest_id in self._compared:
            return ()
        self._compared.add(manifest_id)
        try:
            return self._target.manifest(manifest_id).parts
        except CorruptCheckpointError as error:
            parts: List[str] = []

            def take(other: Holding) -> None:
                manifest = other.manifest(manifest_id)
                self._target.put_manifests([manifest])
                parts.extend(manifest.parts)

            self._repair(f"manifest {manifest_id[:12]}", error, take)
            return parts

    def _still_named(self, names: Sequence[str]) -> bool:
        """Say whether one of these roots is there: what policies let go meanwhile is no damage."""
        return not set(names).isdisjoint(self._target.roots())

    def _was_repacked(self, pack_id: str) -> bool:
        """Say whether a pack was set apart meanwhile: what lives of it is in another one, which the next pass reads."""
        return pack_id in self._target.replaced() and pack_id not in self._target.packs()

    def _pack(self, pack_id: str, needing: Sequence[str]) -> None:
        try:
            with compared_pack(self._target, pack_id, self._staging, self._on_moved):
                return
        except CorruptCheckpointError as error:
            if not self._still_named(needing) or self._was_repacked(pack_id):
                return
            self._repair(
                f"pack {pack_id[:12]}",
                error,
                lambda other: send_pack(pack_id, [other], self._target, self._staging, self._on_moved),
            )

    def _repair(self, what: str, error: CheckpointError, take: Callable[[Holding], object]) -> None:
        for other in self._others:
            try:
                take(other)
            except CorruptCheckpointError:
                continue
            self._damages.append(Damage(self._target.name, what, str(error), other.name))
            return
        self._damages.append(Damage(self._target.name, what, str(error)))
