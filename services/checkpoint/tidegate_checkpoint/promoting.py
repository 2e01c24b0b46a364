"""Brings verified checkpoints from the node into the shared tiers. Runs in a thread.

A checkpoint that the policy would not keep there is not sent. One that a tier refused is tried again with the next
pass, TRIES_MAX times in this process's life: one whose bytes are damaged on the node will not get better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import structlog
from tidegate.checkpoint.root import Root
from tidegate.errors import CheckpointError, CorruptCheckpointError
from tidegate.tiers import moving
from tidegate.tiers.holding import Holding
from tidegate.tiers.job import JobTier
from tidegate.tiers.objects import TierUnavailableError
from tidegate.tiers.retaining import Policies, kept, pins
from tidegate.tiers.tiers import Tiers

from tidegate_checkpoint.catalogue import Entry
from tidegate_checkpoint.meters import Meters
from tidegate_checkpoint.verify import InterruptedByStopError, Stopping

TRIES_MAX = 20

log = structlog.get_logger()


class Promoter:
    """Remembers what is settled: promoted to a tier, not wanted there, or gone from the node before it was."""

    def __init__(self, tiers: Tiers, policies: Policies, meters: Meters, stopping: Stopping) -> None:
        self._tiers = tiers
        self._policies = policies
        self._meters = meters
        self._stopping = stopping
        self._settled: set[tuple[str, str]] = set()
        self._tries: Counter[tuple[str, str]] = Counter()

    def waiting(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the verified checkpoints that some shared tier still lacks, of `entries`."""
        names = [name for name, _ in self._tiers.shared]
        return [
            entry
            for entry in entries
            if entry.status == "verified" and any((name, entry.id) not in self._settled for name in names)
        ]

    def promote(self, entries: Sequence[Entry], now_ns: int) -> None:
        """Bring the waiting checkpoints of one job, the newest first, into each shared tier that wants them."""
        saved = entries[0].saved
        with self._tiers.holdings(saved.tenant, saved.job) as held, self._tiers.staging() as staging:
            for tier in self._tiers.of_job(saved.tenant, saved.job):
                sources = [each for each in held if each.name != tier.name]
                pending = [entry for entry in entries if (tier.name, entry.id) not in self._settled]
                self._promote_into(tier, sources, self._wanted(tier, sources, pending, now_ns), staging)

    def _wanted(
        self, tier: JobTier, sources: Sequence[Holding], pending: Sequence[Entry], now_ns: int
    ) -> list[tuple[Entry, Root]]:
        """Return those of `pending` that a tier lacks and its policy keeps; the others are settled."""
        there = [root for name in tier.roots() if (root := _root_or_none([tier], name)) is not None]
        found = []
        for entry in pending:
            root = _root_or_none(sources, entry.saved.checkpoint.directory)
            if root is None or root in there:
                self._settled.add((tier.name, entry.id))
            else:
                found.append((entry, root))
        policy = self._policies.of(tier.tenant, tier.job)
        staying = kept([*there, *(root for _, root in found)], set(pins(tier)), policy, now_ns)
        self._settled |= {(tier.name, entry.id) for entry, root in found if root.name not in staying}
        return [(entry, root) for entry, root in found if root.name in staying]

    def _promote_into(
        self, tier: JobTier, sources: Sequence[Holding], wanted: Sequence[tuple[Entry, Root]], staging: int
    ) -> None:
        for entry, root in wanted:
            key = (tier.name, entry.id)
            try:
                moved = moving.move(root.name, sources, tier, staging, self._on_moved)
            except CheckpointError as error:
                self._meters.promotions_failed.labels(tier.name).inc()
                self._tries[key] += 1
                log.warning("promotion_failed", job=entry.job, checkpoint=entry.id, tier=tier.name, why=str(error))
                if isinstance(error, CorruptCheckpointError) and self._tries[key] >= TRIES_MAX:
                    self._settled.add(key)
                if isinstance(error, TierUnavailableError):
                    return
                continue
            self._settled.add(key)
            self._meters.promoted.labels(tier.name).inc()
            self._meters.promoted_packs.labels(tier.name).inc(moved.sent)
            log.info("checkpoint_promoted", job=entry.job, checkpoint=entry.id, tier=tier.name, packs=moved.sent)

    def _on_moved(self, size_bytes: int) -> None:
        self._meters.moved_bytes.inc(size_bytes)
        if self._stopping():
            raise InterruptedByStopError


def _root_or_none(sources: Sequence[Holding], name: str) -> Root | None:
    for source in sources:
        try:
            return source.root(name)
        except CorruptCheckpointError:
            continue
    return None
