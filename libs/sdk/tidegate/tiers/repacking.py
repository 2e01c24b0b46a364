"""Writes what lives in packs that are mostly dead into new packs, so that the room of the rest can be given back.

A root goes on naming the old pack: it says where chunks were when it was written. Whoever reads takes that pack while
it is there, and else finds each chunk in those that are (holding.packs_of). `repacked/<id>.json` says that a pack was
written again: the collection takes it for needed only where the others lack a chunk, and sets it apart else, as it
does with all that nothing needs. Nothing is repacked while something is brought to the job's tier.

On a node the same is done to the store that a job saves into. There the store's lock takes the place of leases and
quarantine: the new packs are written beside those who save and restore, and an old one goes when nobody does, after
another look at what is needed by then.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import ContextManager, Dict, List, NamedTuple, Optional, Protocol, Sequence, Set, Tuple

from tidegate.checkpoint import commit, files, hashes, nodepart, pack, places, retention
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.pack import Entry, Index, Pack, aligned
from tidegate.checkpoint.places import Places
from tidegate.checkpoint.root import LayerEntry, Root
from tidegate.errors import CorruptCheckpointError
from tidegate.tiers.holding import Holding, HotHolding, manifests_of

DEAD_PERCENT_MIN = 60
"""A pack is written again when so much of it is dead: then what is read and written frees more than it costs."""
DEAD_BYTES_MIN = 8 << 20
BYTES_MAX = 4 * pack.PACK_BYTES_MAX
"""What one pass rewrites at most; the next goes on."""

Key = Tuple[str, bytes]


class Repacked(NamedTuple):
    """What a pass did: packs that nothing needs any more, the new ones, and the bytes that can be freed."""

    replaced: List[str]
    made: List[str]
    freed_bytes: int


class Repackable(Holding, Protocol):
    """A holding whose packs can be written again."""

    def is_busy(self) -> bool:
        """Say whether something is being brought there."""

    def known(self) -> List[Root]:
        """Return all roots, and what else keeps chunks as a root does."""

    def record(self, pack_id: str, offset: int, length: int) -> bytes:
        """Return bytes of a pack. Raises CorruptCheckpointError where they are not there."""

    def note_repacked(self, pack_id: str) -> None:
        """Say that every chunk of a pack that lives is in another one too."""


class _HotStore(HotHolding):
    """A node's store, with what repacking needs."""

    def __init__(self, held: Places) -> None:
        super().__init__(held)
        self._places = held

    def is_busy(self) -> bool:
        """Say that it is not: the store's lock tells, when packs are removed."""
        return False

    def known(self) -> List[Root]:
        """Return all roots, and the parts of checkpoints of several nodes."""
        return [*(self.root(name) for name in self.roots()), *nodepart.parts(self._places)]

    def record(self, pack_id: str, offset: int, length: int) -> bytes:
        """Return bytes of a pack."""
        try:
            with files.open_inside(self._places.packs, pack_id + pack.SUFFIX) as file:
                file.seek(offset)
                return b"".join(files.blocks(file, length))
        except OSError as error:
            raise CorruptCheckpointError(f"pack {pack_id[:12]} cannot be read: {error.strerror or error}") from error

    def leased(self, layers: Sequence[LayerEntry], packs: Sequence[str]) -> ContextManager[None]:
        """Keep nothing: if its job removes the new pack before the old one is gone, nothing is lost."""
        return nullcontext()

    def note_repacked(self, pack_id: str) -> None:
        """Say nothing: the old pack goes at once, or stays."""


def repack_hot(held: Places) -> Optional[Repacked]:
    """Rewrite the packs of a node's store of which little is used, and remove the old ones.

    Returns None where somebody saves or restores: the old packs stay then, and the next pass goes on. Raises as
    `repack`.
    """
    with places.alone(held) as is_alone:
        if not is_alone:
            return None  # before anything is written that could not take the place of the old ones
    done = repack(_HotStore(held), held.staging)
    if done is None or not done.replaced:
        return done
    with places.alone(held) as is_alone:
        if not is_alone:
            return None
        removed = [pack_id for pack_id in done.replaced if _removed(held, pack_id)]
        retention.collect(held)
    return done._replace(replaced=removed) if removed else None


def _removed(held: Places, pack_id: str) -> bool:
    """Remove a pack if all that is needed now is in the others; say whether that was so. With the lock held alone."""
    store, rest = _HotStore(held), Index()
    for other in store.index().packs.values():
        if other.id != pack_id:
            rest.add(other)
    try:
        commit.packs_of(rest, [each for root in store.known() for each in manifests_of(store, root.layers)])
    except CorruptCheckpointError:
        return False  # since it was written again a save came to need more of it, or the new pack is gone
    files.unlink_quietly(held.packs, pack_id + pack.SUFFIX)
    return True


def repack(tier: Repackable, staging: int) -> Optional[Repacked]:
    """Rewrite the packs of a job's tier of which its roots use little; `staging` is where the new ones are made.

    Returns None where something is being brought to the tier: nothing was looked at then. Raises
    CorruptCheckpointError where a manifest or a chunk is missing or damaged, TierUnavailableError; by neither is
    anything lost.
    """
    if tier.is_busy():
        return None
    needed = [each for root in tier.known() for each in manifests_of(tier, root.layers)]
    index = tier.index()
    chosen = _chosen(index, _live(index, needed))
    made: List[Pack] = []
    with ExitStack() as leases:
        for hash_name in sorted({index.packs[pack_id].hash_name for pack_id in chosen}):
            group = {pack_id: chosen[pack_id] for pack_id in chosen if index.packs[pack_id].hash_name == hash_name}
            made += _written(tier, hash_name, group, staging, leases)
        for pack_id in chosen:
            tier.note_repacked(pack_id)
    freed = sum(index.packs[pack_id].size_bytes for pack_id in chosen) - sum(new.size_bytes for new in made)
    return Repacked(sorted(chosen), [new.id for new in made], freed)


def _chosen(index: Index, live: Dict[str, Set[Key]]) -> Dict[str, List[Entry]]:
    """Return the packs that are mostly dead, and the entries of each that live; BYTES_MAX of those at most."""
    chosen: Dict[str, List[Entry]] = {}
    moved_bytes = 0
    for held in index.packs.values():
        entries = [entry for entry in held.entries if (held.hash_name, entry.id) in live.get(held.id, ())]
        living = sum(aligned(entry.stored_bytes) for entry in entries)
        dead = held.size_bytes - living
        if not entries or dead < DEAD_BYTES_MIN or dead * 100 < held.size_bytes * DEAD_PERCENT_MIN:
            continue
        if moved_bytes + living > BYTES_MAX:
            break
        moved_bytes += living
        chosen[held.id] = entries
    return chosen


def _live(index: Index, needed: Sequence[Manifest]) -> Dict[str, Set[Key]]:
    """Return the chunks that are read, bases too, by the pack they are read from."""
    found: Dict[str, Set[Key]] = {}
    seen: Set[Key] = set()
    for manifest in needed:
        for blob in manifest.blobs:
            for chunk in blob.chunks:
                if (manifest.hash_name, chunk) not in seen:
                    for located in index.chain(manifest.hash_name, chunk):
                        seen.add((manifest.hash_name, located.entry.id))
                        found.setdefault(located.pack.id, set()).add((manifest.hash_name, located.entry.id))
    return found


def _written(
    tier: Repackable, hash_name: str, chosen: Dict[str, List[Entry]], staging: int, leases: ExitStack
) -> List[Pack]:
    """Send new packs with these entries of old ones, by the old ones' ids; return the new ones."""
    pending = [(pack_id, entry) for pack_id, entries in chosen.items() for entry in entries]
    made: List[Pack] = []
    while pending:
        with files.Temporary(staging) as temporary:
            entries: List[Entry] = []
            end = 0
            while pending and end + aligned(pending[0][1].stored_bytes) <= pack.PACK_BYTES_MAX:
                pack_id, entry = pending.pop(0)
                padded = bytes(_stored(tier, hash_name, pack_id, entry)).ljust(aligned(entry.stored_bytes), b"\0")
                files.write_all(temporary.descriptor, memoryview(padded))
                entries.append(entry._replace(offset=end))
                end += len(padded)
            new_id, tail = pack.encode_index(hash_name, entries, end)
            files.write_all(temporary.descriptor, memoryview(tail))
            leases.enter_context(tier.leased((), [new_id]))  # until it is said what it stands for
            tier.put_pack(new_id, temporary)
            made.append(Pack(new_id, hash_name, tuple(entries), end + len(tail)))
    return made


def _stored(tier: Repackable, hash_name: str, pack_id: str, entry: Entry) -> bytes:
    """Return a chunk's stored bytes, compared with their hash."""
    data = tier.record(pack_id, entry.offset, entry.stored_bytes)
    if hashes.named(hash_name)(data) != entry.stored_hash:
        raise CorruptCheckpointError(
            f"pack {pack_id[:12]} in {tier.name}: chunk {entry.id.hex()[:12]} at offset {entry.offset} is damaged"
        )
    return data
