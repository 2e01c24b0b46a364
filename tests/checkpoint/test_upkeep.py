"""The service keeps the tiers: what verified is promoted, what no policy keeps leaves, damage is found and repaired."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tidegate.checkpoint import places
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.store import CheckpointStore
from tidegate.tiers import moving, repacking, scrubbed
from tidegate.tiers.holding import HotHolding, missing_of
from tidegate.tiers.job import JobTier
from tidegate.tiers.retaining import Policies, Policy
from tidegate.tiers.tiers import Tiers
from tidegate_checkpoint import settings as configuration
from tidegate_checkpoint import upkeep
from tidegate_checkpoint.settings import Settings
from tidegate_checkpoint.shell import CheckpointService
from tidegate_events.bus import BusSettings
from tidegate_events.clock import SystemClock
from tidegate_events.consumer import ReaderPorts
from tidegate_events.deadletter import DeadLetters
from tidegate_events.events import Event
from tidegate_events.frame import Frame
from tidegate_events.journal.memory import MemoryJournal
from tidegate_events.positions import Positions
from tidegate_events.register.memory import MemoryRegister
from tidegate_events.subjects import fact

from tests.checkpoint.saving import Job, frames
from tests.support import stores

WRITERS = frames()
SECONDS_MAX = 60


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "LOOK_SECONDS", 0.05)


def settings_of(job: Job, **more: Any) -> Settings:
    home = job.hot_dir.parent
    given = {"warm": str(home / "warm"), "cold": str(home / "cold"), "scrub_seconds": 0, "gc_seconds": 3600} | more
    return Settings(bus=BusSettings(), hot_dir=job.hot_dir, **given)


@asynccontextmanager
async def running(settings: Settings, journal: MemoryJournal) -> AsyncIterator[CheckpointService]:
    ports = ReaderPorts(journal, Positions(MemoryRegister()), DeadLetters(MemoryRegister()), SystemClock())
    service = CheckpointService(settings, None, ports)
    task = asyncio.create_task(service.run())
    try:
        yield service
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def report(journal: MemoryJournal, *events: Event) -> None:
    await journal.append(fact("node", "n1"), Frame(next(WRITERS), tuple(events)))  # type: ignore[arg-type]


async def until(found: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not await asyncio.to_thread(found):  # noqa: ASYNC110 - what is waited for are files
            await asyncio.sleep(0.05)


def shared(settings: Settings, job: Job) -> list[JobTier]:
    return Tiers(settings.tiers).of_job(job.tenant, job.id)


def value(service: CheckpointService, name: str, **labels: str) -> float:
    return service.meters.registry.get_sample_value(f"tidegate_tier_{name}", labels) or 0.0


async def test_what_verified_is_promoted_and_restored_elsewhere(job: Job, tmp_path: Path) -> None:
    journal, settings = MemoryJournal(), settings_of(job)
    first, second = job.save(1), job.save(2)
    await report(journal, first)
    warm, cold = shared(settings, job)
    async with running(settings, journal) as service:
        await until(lambda: cold.roots() == [first.checkpoint.directory])
        await report(journal, second)
        await until(lambda: len(cold.roots()) == 2)
        assert value(service, "promoted_total", tier="warm") == 2
    job.wipe()
    elsewhere = Tiers(settings.tiers._replace(hot=tmp_path / "n2"))
    with elsewhere.hot_store(job.tenant, job.id) as held:
        moving.move(second.checkpoint.directory, [warm, cold], HotHolding(held), held.staging)
    found = CheckpointStore(tmp_path / "n2" / job.tenant / job.id, stores.STAMP).find(second.checkpoint.id)
    assert found is not None
    assert found.committed.root.id == second.checkpoint.id


async def test_what_is_broken_or_another_nodes_is_not_promoted(job: Job) -> None:
    journal, settings = MemoryJournal(), settings_of(job, node="n1")
    broken, good = job.save(1, model={"raw": b"z" * 9000}), job.save(2)
    path, offset = job.record(broken, "model")
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    others = job.save(3)
    await report(journal, broken, good, _on_node(others, "n2"))
    (warm, _) = shared(settings, job)
    async with running(settings, journal) as service:
        await until(lambda: good.checkpoint.directory in warm.roots())
        await until(lambda: value(service, "waiting") == 0)
    assert warm.roots() == [good.checkpoint.directory]


def _on_node(saved: Any, node: str) -> Any:
    import msgspec  # noqa: PLC0415

    return msgspec.structs.replace(saved, node=node)


async def test_policies_and_collection_leave_what_is_kept(job: Job) -> None:
    journal = MemoryJournal()
    settings = settings_of(job, gc_seconds=0, gc_pause_seconds=0, retention=Policies(Policy(keep_last=2)))
    saved = [job.save(step, model={"raw": bytes([step]) * 9000}) for step in range(1, 6)]
    await report(journal, *saved)
    warm, cold = shared(settings, job)
    newest = [each.checkpoint.directory for each in saved[-2:]]
    async with running(settings, journal) as service:
        await until(lambda: warm.roots() == newest and cold.roots() == newest)
        await until(lambda: len(warm.packs()) == 2 and not warm.objects.names(warm.path("quarantine")))
        await until(lambda: value(service, "waiting") == 0)
    for tier in (warm, cold):
        with Tiers(settings.tiers).hot_store("lab", f"again-{tier.name}") as held:
            for name in newest:
                moving.move(name, [tier], HotHolding(held), held.staging)


async def test_a_scrub_finds_damage_and_repairs_it(job: Job) -> None:
    journal, settings = MemoryJournal(), settings_of(job, scrub_seconds=1)
    saved = job.save(1)
    await report(journal, saved)
    (warm, cold) = shared(settings, job)
    async with running(settings, journal) as service:
        await until(lambda: cold.roots() == [saved.checkpoint.directory])
        (pack,) = warm.packs()
        name = warm.path("packs", f"{pack}.pack")
        whole = warm.objects.read(name, 1 << 30)
        warm.objects.put(name, b"\1" + whole[1:])
        await until(lambda: value(service, "damages_total", tier="warm", repaired="yes") >= 1)
        assert warm.objects.read(name, 1 << 30) == whole
        await until(lambda: value(service, "scrubbed_packs_total", tier="cold") >= 1)


async def test_packs_that_are_mostly_dead_are_written_again_and_counted(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repacking, "DEAD_BYTES_MIN", 10_000)
    looked: list[str] = []
    real = repacking.repack
    monkeypatch.setattr(repacking, "repack", lambda tier, staging: looked.append(tier.name) or real(tier, staging))
    monkeypatch.setattr(upkeep, "LOOK_SECONDS", 0.2)
    frozen = os.urandom(40_000)
    journal = MemoryJournal()
    settings = settings_of(job, gc_seconds=0, gc_pause_seconds=0, retention=Policies(Policy(keep_last=1)), cold=None)
    first = job.save(1, model={"frozen": frozen, "w": os.urandom(200_000)})
    await report(journal, first)
    (warm,) = shared(settings, job)
    async with running(settings, journal) as service:
        await until(lambda: warm.roots() == [first.checkpoint.directory])
        old = warm.packs()
        second = job.save(2, model={"frozen": frozen, "w": os.urandom(200_000)})
        await report(journal, second)
        await until(lambda: value(service, "repacked_packs_total", tier="warm") == 1)
        await until(lambda: warm.packs().isdisjoint(old))
        assert value(service, "repacked_freed_bytes_total", tier="warm") > 150_000
        passes = value(service, "collections_total", tier="warm")
        settled = len(looked)
        await until(lambda: value(service, "collections_total", tier="warm") >= passes + 4)
        assert len(looked) <= settled + 1, "where no checkpoint came or went nothing is looked for"
    assert missing_of(warm, warm.root(second.checkpoint.directory)) == []


async def test_the_nodes_own_store_is_repacked_too(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacking, "DEAD_BYTES_MIN", 10_000)
    monkeypatch.setattr(upkeep, "LOOK_SECONDS", 0.2)
    frozen = os.urandom(40_000)
    journal, settings = MemoryJournal(), settings_of(job, gc_seconds=0, warm=None, cold=None)
    saved = [job.save(step, model={"frozen": frozen, "w": os.urandom(200_000)}) for step in (1, 2)]
    job.remove(saved[0])
    store = CheckpointStore(job.directory, stores.STAMP)
    with store.in_use() as (held, _), places.in_use(held):
        async with running(settings, journal) as service:
            await asyncio.sleep(0.5)
            assert value(service, "repacked_packs_total", tier="hot") == 0, "somebody uses the store"
    async with running(settings, journal) as service:
        await until(lambda: value(service, "repacked_packs_total", tier="hot") == 1)
        assert value(service, "repacked_freed_bytes_total", tier="hot") > 150_000
    found = store.find(saved[1].checkpoint.id)
    assert found is not None
    assert found.skipped == 0
    Checkpoint(found.committed).verify()


async def test_a_restart_does_not_read_everything_back_again(job: Job) -> None:
    journal, settings = MemoryJournal(), settings_of(job, scrub_seconds=3600)
    await report(journal, saved := job.save(1))
    async with running(settings, journal):
        await until(lambda: shared(settings, job)[1].roots() == [saved.checkpoint.directory])
    tiers = Tiers(settings.tiers)
    places = [(name, job.tenant, job.id) for name in tiers.names()]
    async with running(settings, journal):
        await until(lambda: all(scrubbed.last(tiers, *place) for place in places))
    records = [scrubbed.last(tiers, *place) for place in places]
    assert [record and (record.roots, record.packs, record.damages) for record in records] == [(1, 1, 0)] * 3
    journal_seconds = SystemClock().now_ns() // 10**9
    async with running(settings, journal) as service:
        sampled = service.meters.registry.get_sample_value
        await until(lambda: sampled("tidegate_tier_unread_seconds", {"tier": "cold"}) is not None)
        assert [value(service, "scrubs_total", tier=name) for name in tiers.names()] == [0, 0, 0]
    for place in places:  # as if it were long ago
        record = scrubbed.last(tiers, *place)
        assert record is not None
        scrubbed.note(tiers, *place, record._replace(ended_seconds=journal_seconds - 7200))
    async with running(settings, journal) as service:
        await until(lambda: all(value(service, "scrubs_total", tier=name) == 1 for name in tiers.names()))


async def test_a_record_that_is_none_or_of_the_future_is_read_back_again(job: Job) -> None:
    settings = settings_of(job)
    tiers = Tiers(settings.tiers)
    (warm, _) = shared(settings, job)
    place = ("warm", job.tenant, job.id)
    assert scrubbed.last(tiers, *place) is None
    for written in (b"", b"[]", b"{}", b'{"ended_seconds": "x"}', b"\xff", b"1" * 5000):
        warm.objects.put(warm.path(scrubbed.RECORD), written)
        assert scrubbed.last(tiers, *place) is None
    record = scrubbed.Record(10_000, 1, 1, 0, 0)
    scrubbed.note(tiers, *place, record)
    assert scrubbed.last(tiers, *place) == record
    assert (record.age_seconds(10_050), record.age_seconds(9_000), record.age_seconds(100)) == (50, 0, None)
    scrubbed.note(tiers, "hot", job.tenant, job.id, record)
    assert scrubbed.forget_gone(tiers) == [job.id]
    assert scrubbed.last(tiers, "hot", job.tenant, job.id) is None


async def test_a_tier_that_is_away_keeps_nothing_waiting_but_promotion(job: Job, tmp_path: Path) -> None:
    journal, settings = MemoryJournal(), settings_of(job, cold=None)
    await report(journal, first := job.save(1))
    (tmp_path / "warm").mkdir(exist_ok=True)
    (tmp_path / "warm" / "lab").write_text("no directory")
    async with running(settings, journal) as service:
        await until(lambda: value(service, "upkeep_failed_total", task="promotion") >= 1)
        (tmp_path / "warm" / "lab").unlink()
        await until(lambda: shared(settings, job)[0].roots() == [first.checkpoint.directory])


async def test_room_is_made_on_the_node(job: Job) -> None:
    journal, settings = MemoryJournal(), settings_of(job, gc_seconds=0, hot_capacity_bytes=1000)
    saved = [job.save(step) for step in (1, 2)]
    await report(journal, *saved)
    async with running(settings, journal):
        await until(lambda: not job.path(saved[0]).exists())
    assert job.path(saved[1]).exists()  # its job runs


def test_settings_name_the_tiers_and_refuse_what_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_HOT_DIR", "/h")
    monkeypatch.setenv("TIDEGATE_WARM", "s3://b")
    monkeypatch.setenv("TIDEGATE_RETENTION", json.dumps({"default": {"keep_last": 9}}))
    read = configuration.from_environment()
    assert (read.warm, read.cold, read.retention.default.keep_last) == ("s3://b", None, 9)
    for variable in ("TIDEGATE_RETENTION", "TIDEGATE_GC_SECONDS", "TIDEGATE_TIER_MIB_PER_SECOND"):
        monkeypatch.setenv(variable, "soon")
        with pytest.raises(ValueError, match=r"accepted|JSON"):
            configuration.from_environment()
        monkeypatch.delenv(variable)
