"""Removes from a tier what no checkpoint needs: marked, set apart, marked again after a pause, and only then deleted.

What roots and leases name is live. The rest moves to `quarantine/<second>/`, where nobody looks for it but this. After
PAUSE_SECONDS it is marked again: what a root came to need meanwhile moves back, the rest is deleted. A move that relied
on something just before it was set apart finds that out at its end (moving.py), so that neither loses anything.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Sequence, Set, Tuple

from tidegate.checkpoint import commit, pack
from tidegate.checkpoint import manifest as manifests
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.pack import Index
from tidegate.checkpoint.places import MANIFESTS, PACKS
from tidegate.errors import CorruptCheckpointError
from tidegate.tiers.holding import manifests_of, packs_of
from tidegate.tiers.job import LEASES, QUARANTINE, JobTier

PAUSE_SECONDS = 3600
LEASE_BYTES_MAX = 64 << 20
PARTIAL_SECONDS = 24 * 3600
"""How long what a killed process wrote of a pack is kept for the next try."""

_SUFFIXES = {PACKS: pack.SUFFIX, MANIFESTS: manifests.SUFFIX}


class Collected(NamedTuple):
    """What one pass did, by names of objects; `deleted_bytes` is what it freed."""

    quarantined: List[str]
    returned: List[str]
    deleted: List[str]
    deleted_bytes: int


def collect(tier: JobTier, now_seconds: int, pause_seconds: int = PAUSE_SECONDS) -> Collected:
    """Do one pass over a job's objects in a tier.

    Raises CorruptCheckpointError where a root or manifest cannot be read: what it needs is not known, so all stays.
    """
    tier.objects.forget_partial(tier.prefix, now_seconds - PARTIAL_SECONDS)
    live, is_known = _live(tier, now_seconds)
    returned, deleted, deleted_bytes = _settle(tier, live, now_seconds - pause_seconds)
    quarantined: List[str] = []
    for kind, suffix in _SUFFIXES.items() if is_known else ():
        for name in tier.listed(kind, suffix):
            if name not in live[kind]:
                file = f"{kind}/{name}{suffix}"
                if _moved(tier, tier.path(file), tier.path(QUARANTINE, str(now_seconds), file)):
                    quarantined.append(file)
    return Collected(quarantined, returned, deleted, deleted_bytes)


def _moved(tier: JobTier, name: str, to: str) -> bool:
    """Move an object; say whether it was still there: another collector may have been faster."""
    try:
        tier.objects.move(name, to)
    except FileNotFoundError:
        return False
    return True


def _settle(tier: JobTier, live: Dict[str, Set[str]], before_seconds: int) -> Tuple[List[str], List[str], int]:
    """Decide about what was set apart long enough ago; what is live moves back at once."""
    returned, deleted, deleted_bytes = [], [], 0
    start = len(tier.path(QUARANTINE)) + 1
    for stored in tier.objects.names(tier.path(QUARANTINE)):
        second, _, file = stored.name[start:].partition("/")
        kind, _, name = file.partition("/")
        suffix = _SUFFIXES.get(kind, "")
        if not second.isdigit() or not suffix or not name.endswith(suffix):
            continue  # not put there by this
        if name[: -len(suffix)] in live[kind]:
            if tier.objects.size_of(tier.path(file)) != stored.size_bytes:
                if _moved(tier, stored.name, tier.path(file)):
                    returned.append(file)
            elif int(second) <= before_seconds:  # else another collector may just be about to remove the other one
                tier.objects.remove(stored.name)
        elif int(second) <= before_seconds:
            tier.objects.remove(stored.name)
            deleted.append(file)
            deleted_bytes += stored.size_bytes
    return returned, deleted, deleted_bytes


def _live(tier: JobTier, now_seconds: int) -> Tuple[Dict[str, Set[str]], bool]:
    """Return the ids of the manifests and packs that a root or a lease needs, and whether those are all."""
    live: Dict[str, Set[str]] = {PACKS: set(), MANIFESTS: set()}
    is_known = True
    # Before the roots and after them: what a lease kept until a root named it is seen by one or the other.
    _add_leased(tier, now_seconds, live)
    named: Set[str] = set()
    others = _Others(tier) if tier.replaced() else None
    for name in tier.roots():
        try:
            root = tier.root(name)
        except CorruptCheckpointError:
            if name in tier.roots():
                raise
            continue  # somebody removed it since it was listed
        live[MANIFESTS] |= {layer.manifest for layer in root.layers}
        named |= {pack_id for layer in root.layers for pack_id in layer.packs}
        try:
            found = manifests_of(tier, root.layers)
            live[MANIFESTS] |= {manifests.encode(each)[0] for each in found}
            live[PACKS] |= others.packs_of(found) if others else set(packs_of(tier, root.layers))
        except CorruptCheckpointError:
            apart = _set_apart(tier)
            if not apart:
                raise
            # It may need what was set apart: all of that comes back, and the next pass knows more.
            live[PACKS] |= apart | {pack_id for layer in root.layers for pack_id in layer.packs}
            live[MANIFESTS] |= apart
            is_known = False
    _add_leased(tier, now_seconds, live)
    for pack_id in (others.replaced if others else set()) - named:
        tier.forget_repacked(pack_id)
    return live, is_known


def _add_leased(tier: JobTier, now_seconds: int, live: Dict[str, Set[str]]) -> None:
    """Add what leases name; one whose time is over is removed."""
    for stored in tier.objects.names(tier.path(LEASES)):
        lease = _lease(tier, stored.name)
        if lease["expires"] >= now_seconds:
            live[PACKS] |= set(lease["packs"])
            live[MANIFESTS] |= set(lease["manifests"])
        else:
            tier.objects.remove(stored.name)


class _Others:
    """The packs of a tier, some of which were written again into others: which of them are needed."""

    def __init__(self, tier: JobTier) -> None:
        self.replaced = tier.replaced()
        self._all = tier.index()
        self._rest = Index()
        for held in self._all.packs.values():
            if held.id not in self.replaced:
                self._rest.add(held)

    def packs_of(self, given: Sequence[Manifest]) -> Set[str]:
        """Return the packs that manifests need, replaced ones only where the others lack a chunk.

        Raises CorruptCheckpointError where all together lack one.
        """
        try:
            return set(commit.packs_of(self._rest, given))
        except CorruptCheckpointError:
            # Some chunk came to be needed after the pack was written again. Each one counts where it was found first.
            return set(commit.packs_of(self._all, given)) | {
                pack_id for pack_id in self.replaced if pack_id in self._all.packs
            }


def _set_apart(tier: JobTier) -> Set[str]:
    """Return the ids of what is set apart."""
    names = (stored.name.rpartition("/")[2] for stored in tier.objects.names(tier.path(QUARANTINE)))
    return {name.partition(".")[0] for name in names}


def _lease(tier: JobTier, name: str) -> Dict[str, Any]:
    try:
        lease: Dict[str, Any] = json.loads(tier.objects.read(name, LEASE_BYTES_MAX))
        if type(lease["expires"]) is int and type(lease["packs"]) is list and type(lease["manifests"]) is list:
            return lease
    except FileNotFoundError:
        return {"expires": 0, "packs": [], "manifests": []}
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpointError(f"lease {name} is malformed: {error!r}; remove it when nothing moves") from error
    raise CorruptCheckpointError(f"lease {name} is malformed; remove it when nothing moves")
