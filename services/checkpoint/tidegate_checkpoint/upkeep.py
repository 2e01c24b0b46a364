"""The background work on the tiers: promotion at once, then retention, collection, scrub and room in the hot tier.

Each task goes its own way, in threads: none waits for another. A tier that fails ends the pass of one task, is counted,
and is tried again with the next pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from tidegate.errors import CheckpointError
from tidegate.tiers import collecting, eviction, repacking, retaining, scrubbed
from tidegate.tiers.holding import HotHolding
from tidegate.tiers.job import JobTier
from tidegate.tiers.scrubbing import Scrub, Scrubbed
from tidegate.tiers.tiers import HOT, Tiers
from tidegate_events.clock import Clock

from tidegate_checkpoint.fold import Fold
from tidegate_checkpoint.meters import Meters
from tidegate_checkpoint.promoting import Promoter
from tidegate_checkpoint.settings import Settings
from tidegate_checkpoint.verify import InterruptedByStopError, Stopping

LOOK_SECONDS = 1.0
"""How often is looked for what is to be promoted."""
SCRUB_LOOK_SECONDS = 60.0
"""How often is looked for what is to be scrubbed."""
NEVER_SECONDS = 2**40
"""For how long a job was not read back that never was."""

log = structlog.get_logger()


class Upkeep:
    """Does what is due on the tiers."""

    def __init__(self, settings: Settings, tiers: Tiers, fold: Fold, clock: Clock, stopping: Stopping) -> None:
        self._settings = settings
        self._fold = fold
        self._clock = clock
        self._stopping = stopping
        self._tiers = tiers
        self.meters = Meters()
        self._promoter = Promoter(self._tiers, settings.retention, self.meters, stopping)
        self._promoted: dict[str, int] = {}
        self._scrubbed: dict[tuple[str, str, str], scrubbed.Record] = {}
        self._repacked: dict[tuple[str, str, str], frozenset[str]] = {}
        self._began_seconds = self._now_seconds()

    async def run(self) -> None:
        """Work until cancelled."""
        if self._settings.metrics_port:
            self.meters.serve(self._settings.metrics_port)
        gc_seconds = max(LOOK_SECONDS, self._settings.gc_seconds)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat("promotion", LOOK_SECONDS, self._promote_waiting))
            tasks.create_task(self._repeat("room", gc_seconds, self._make_room))
            tasks.create_task(self._repeat("collection", gc_seconds, lambda: self._collect_all))
            if scrub_seconds := self._settings.scrub_seconds:
                tasks.create_task(
                    self._repeat("scrub", min(SCRUB_LOOK_SECONDS, scrub_seconds), lambda: self._scrub_due)
                )

    async def _repeat(self, name: str, every_seconds: float, work: Callable[[], Callable[[], None]]) -> None:
        """Do a task for ever. What `work` returns runs in a thread; `work` itself may look at the catalogue."""
        while True:
            try:
                await asyncio.to_thread(work())
            except InterruptedByStopError:
                return
            except (CheckpointError, OSError) as error:
                self.meters.upkeep_failed.labels(name).inc()
                log.warning("upkeep_failed", task=name, why=str(error))
            await asyncio.sleep(every_seconds)

    def _running(self) -> set[str]:
        return {job for job, record in self._fold.catalogue.records() if not record.ended}

    def _promote_waiting(self) -> Callable[[], None]:
        """Return the work on what waits now: the catalogue is read here, where nothing changes it meanwhile."""
        groups = []
        for job, record in self._fold.catalogue.records():
            if self._promoted.get(job) == record.changes:
                continue
            own = [entry for entry in record.newest_first() if self._settings.node in ("", entry.saved.node)]
            if waiting := self._promoter.waiting(own):
                groups.append(waiting)
            elif all(entry.status != "saved" for entry in own):
                self._promoted[job] = record.changes
        self.meters.waiting.set(sum(len(group) for group in groups))

        def work() -> None:
            for group in groups:
                self._promoter.promote(group, self._clock.now_ns())

        return work

    def _make_room(self) -> Callable[[], None]:
        running = self._running()

        def work() -> None:
            self.meters.hot_used.set(eviction.used_bytes(self._tiers.hot))
            if self._settings.hot_capacity_bytes:
                limits = eviction.watermarks(self._settings.hot_capacity_bytes)
                for job, name in eviction.make_room(self._tiers, limits, running):
                    self.meters.evicted.inc()
                    log.info("checkpoint_evicted", job=job, root=name)

        return work

    def _collect_all(self) -> None:
        for tenant, job in self._tiers.jobs():
            for tier in self._tiers.of_job(tenant, job):
                if self._stopping():
                    raise InterruptedByStopError
                try:
                    self._collect(tier)
                except CheckpointError as error:
                    self.meters.upkeep_failed.labels("collection").inc()
                    log.warning("collection_failed", job=job, tier=tier.name, why=str(error))
        for tenant, job in self._tiers.all_jobs():
            if self._stopping():
                raise InterruptedByStopError
            self._repack_hot(tenant, job)

    def _repack_hot(self, tenant: str, job: str) -> None:
        """Do to the node's own store of a job what is done to its tiers; the job collects it by itself."""
        with self._tiers.holdings(tenant, job) as found:
            hot = next((each for each in found if each.name == HOT), None)
            if hot is None:
                return
            roots = frozenset(hot.roots()) | frozenset(hot.packs())
        key = (HOT, tenant, job)
        if self._repacked.get(key) == roots:
            return
        try:
            with self._tiers.hot_store(tenant, job) as store:
                done = repacking.repack_hot(store)
        except (CheckpointError, OSError) as error:  # as above; or its job is just changing it
            self.meters.upkeep_failed.labels("repacking").inc()
            log.warning("repacking_failed", job=job, tier=HOT, why=str(error))
            return
        self._note_repacked(key, roots, done)

    def _collect(self, tier: JobTier) -> None:
        now_ns = self._clock.now_ns()
        retired = retaining.retain(tier, self._settings.retention.of(tier.tenant, tier.job), now_ns)
        self._repack(tier)
        done = collecting.collect(tier, now_ns // 10**9, self._settings.gc_pause_seconds)
        self.meters.collections.labels(tier.name).inc()
        self.meters.retired.labels(tier.name).inc(len(retired))
        self.meters.quarantined.labels(tier.name).inc(len(done.quarantined))
        self.meters.returned.labels(tier.name).inc(len(done.returned))
        self.meters.deleted_bytes.labels(tier.name).inc(done.deleted_bytes)
        if retired or done.quarantined or done.returned or done.deleted:
            log.info(
                "tier_collected",
                job=tier.job,
                tier=tier.name,
                retired=retired,
                quarantined=len(done.quarantined),
                returned=len(done.returned),
                deleted=len(done.deleted),
            )

    def _repack(self, tier: JobTier) -> None:
        """Rewrite packs that are mostly dead; only where checkpoints came or went can one have become that."""
        key, roots = (tier.name, tier.tenant, tier.job), frozenset(tier.roots())
        if self._repacked.get(key) == roots:
            return
        try:
            with self._tiers.staging() as staging:
                done = repacking.repack(tier, staging)
        except CheckpointError as error:  # what is damaged is the scrub's to repair; the rest is collected meanwhile
            self.meters.upkeep_failed.labels("repacking").inc()
            log.warning("repacking_failed", job=tier.job, tier=tier.name, why=str(error))
            return
        self._note_repacked(key, roots, done)

    def _note_repacked(self, key: tuple[str, str, str], roots: frozenset[str], done: repacking.Repacked | None) -> None:
        if done is None:
            return
        self._repacked[key] = roots
        if done.replaced:
            self.meters.repacked.labels(key[0]).inc(len(done.replaced))
            self.meters.repacked_bytes.labels(key[0]).inc(done.freed_bytes)
            log.info("packs_repacked", job=key[2], tier=key[0], packs=len(done.replaced), frees=done.freed_bytes)

    def _scrub_due(self) -> None:
        """Scrub each job in each tier that was not read for long enough, the longest first."""
        scrubbed.forget_gone(self._tiers)
        pairs = [(name, *job) for job in self._tiers.all_jobs() for name in self._tiers.names()]
        self._scrubbed = {pair: self._scrubbed[pair] for pair in pairs if pair in self._scrubbed}
        try:
            for pair in sorted(pairs, key=self._unread_seconds, reverse=True):
                self._scrub_if_due(pair)
        finally:
            for name in self._tiers.names():
                unread = [self._unread_seconds(pair) for pair in pairs if pair[0] == name]
                since_start = self._now_seconds() - self._began_seconds
                known = [since_start if seconds == NEVER_SECONDS else seconds for seconds in unread]
                self.meters.unread_seconds.labels(name).set(max(known, default=0))

    def _unread_seconds(self, pair: tuple[str, str, str]) -> int:
        """Return how long a job was not read back in a tier, as far as this process knows."""
        record = self._scrubbed.get(pair)
        age = record.age_seconds(self._now_seconds()) if record else None
        return NEVER_SECONDS if age is None else age

    def _now_seconds(self) -> int:
        return self._clock.now_ns() // 10**9

    def _scrub_if_due(self, pair: tuple[str, str, str]) -> None:
        if self._unread_seconds(pair) < self._settings.scrub_seconds:
            return
        try:
            # Another service may have done it in a shared tier, or this one before it was started again.
            if record := scrubbed.last(self._tiers, *pair):
                self._scrubbed[pair] = record
                if self._unread_seconds(pair) < self._settings.scrub_seconds:
                    return
            done = self._scrub(*pair)
            self._report(pair, done)
            self._scrubbed[pair] = scrubbed.record_of(done, self._now_seconds())
            if done.roots:
                scrubbed.note(self._tiers, *pair, self._scrubbed[pair])
        except CheckpointError as error:
            self.meters.upkeep_failed.labels("scrub").inc()
            log.warning("scrub_failed", job=pair[2], tier=pair[0], why=str(error))

    def _scrub(self, name: str, tenant: str, job: str) -> Scrubbed:
        with self._tiers.holdings(tenant, job) as held, self._tiers.staging() as staging:
            others = [each for each in held if each.name != name]
            if name != HOT:
                target = next(tier for tier in self._tiers.of_job(tenant, job) if tier.name == name)
                return Scrub(target, others, staging, self._on_moved).run()
            if len(others) == len(held):
                return Scrubbed(0, 0, [])  # nothing of this job is on this node
            with self._tiers.hot_store(tenant, job) as store:
                return Scrub(HotHolding(store), others, store.staging, self._on_moved).run()

    def _on_moved(self, size_bytes: int) -> None:
        self.meters.moved_bytes.inc(size_bytes)
        if self._stopping():
            raise InterruptedByStopError

    def _report(self, pair: tuple[str, str, str], done: Scrubbed) -> None:
        self.meters.scrubs.labels(pair[0]).inc()
        self.meters.scrubbed_packs.labels(pair[0]).inc(done.packs)
        for damage in done.damages:
            self.meters.damages.labels(damage.tier, "yes" if damage.repaired_from else "no").inc()
            log.error("damage_found", job=pair[2], **damage._asdict())
