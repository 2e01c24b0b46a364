"""The service on a journal in memory: every checkpoint gets its verdict once, also when it ends in the middle."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from tidegate_checkpoint import pen, verifying
from tidegate_checkpoint.hot import HotTier
from tidegate_checkpoint.settings import Settings
from tidegate_checkpoint.shell import CheckpointService
from tidegate_checkpoint.verify import Broken, Verified
from tidegate_events.bus import BusSettings
from tidegate_events.clock import SystemClock
from tidegate_events.consumer import ReaderPorts
from tidegate_events.deadletter import DeadLetters
from tidegate_events.events import CheckpointFailed, CheckpointSaved, CheckpointVerified, Event
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Appended, Conflict, Journal, JournalFullError, JournalUnavailableError
from tidegate_events.journal.memory import MemoryJournal
from tidegate_events.positions import Positions
from tidegate_events.register.memory import MemoryRegister
from tidegate_events.subjects import fact

from tests.checkpoint.saving import Job, frames, verified

Registers = tuple[MemoryRegister, MemoryRegister]
SECONDS_MAX = 30
WRITERS = frames()
OWN = fact("checkpoint", "c1")


async def report(journal: Journal, *events: Event) -> None:
    await journal.append(fact("node", "n1"), Frame(next(WRITERS), tuple(events)))  # type: ignore[arg-type]


@asynccontextmanager
async def running(
    job: Job, journal: Journal, registers: Registers | None = None, *, verifications: int = 2
) -> AsyncIterator[CheckpointService]:
    settings = Settings(bus=BusSettings(), hot_dir=job.hot_dir, instance="c1", verifications=verifications)
    if registers is None:
        registers = (MemoryRegister(), MemoryRegister())
    ports = ReaderPorts(journal, Positions(registers[0]), DeadLetters(registers[1]), SystemClock())
    service = CheckpointService(settings, None, ports)
    task = asyncio.create_task(service.run())
    try:
        yield service
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def said(journal: Journal) -> list[CheckpointVerified | CheckpointFailed]:
    found = []
    async for recorded in journal.read(0, await journal.end()):
        for event in recorded.frame.events:
            if isinstance(event, CheckpointVerified | CheckpointFailed):
                assert recorded.subject == OWN
                assert recorded.frame.writer.service == "checkpoint"
                found.append(event)
    return found


async def until(journal: Journal, count: int) -> list[CheckpointVerified | CheckpointFailed]:
    async with asyncio.timeout(SECONDS_MAX), aclosing(journal.follow(0)) as recorded_frames:
        async for _ in recorded_frames:
            if len(found := await said(journal)) >= count:
                return found
    raise AssertionError("a journal is followed for ever")


def flip_record(job: Job, saved: CheckpointSaved, layer: str) -> None:
    """Change one byte of the chunk that a layer consists of."""
    path, offset = job.record(saved, layer)
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


async def test_each_saved_checkpoint_gets_its_verdict(job: Job) -> None:
    journal = MemoryJournal()
    good = job.save(1)
    bad = job.save(2, optimizer={"raw": os.urandom(5000)})
    flip_record(job, bad, "optimizer")
    await report(journal, good, bad)
    async with running(job, journal):
        await until(journal, 2)
        late = job.save(3)
        await report(journal, late)
        verdicts_found = {event.checkpoint_id: event for event in await until(journal, 3)}
    whole = verdicts_found[good.checkpoint.id]
    assert isinstance(whole, CheckpointVerified)
    assert whole.size_bytes == sum(layer.size_bytes for layer in good.checkpoint.layers)
    assert (whole.cause, whole.traceparent, whole.job, whole.attempt) == ("1.0", good.traceparent, "j-1", 1)
    broken = verdicts_found[bad.checkpoint.id]
    assert isinstance(broken, CheckpointFailed)
    assert (broken.stage, broken.reason.code, broken.step, broken.cause) == ("verify", "WrongHash", 2, "1.1")
    assert "layer optimizer" in broken.reason.detail
    assert isinstance(verdicts_found[late.checkpoint.id], CheckpointVerified)


async def test_a_removed_one_is_a_loss_only_where_it_was_the_newest(job: Job) -> None:
    journal = MemoryJournal()
    retained, removed, newest = job.save(1), job.save(2), job.save(3)
    job.remove(removed)
    job.remove(newest)
    # The newest is read back last (one at a time, in order), so the older one is judged while it still counts.
    await report(journal, retained, removed, newest)
    async with running(job, journal, verifications=1):
        found = await until(journal, 3)
    codes = [event.reason.code for event in found if isinstance(event, CheckpointFailed)]
    assert codes == ["RemovedByRetention", "Missing"]


async def test_what_was_said_before_a_restart_is_not_said_again(job: Job) -> None:
    journal = MemoryJournal()
    saved = [job.save(step) for step in range(1, 21)]
    await report(journal, *saved)
    registers = (MemoryRegister(), MemoryRegister())
    for enough in (3, 9, 20):
        async with running(job, journal, registers):
            await until(journal, enough)
    counted = Counter(event.checkpoint_id for event in await said(journal))
    assert counted == {each.checkpoint.id: 1 for each in saved}
    epochs = {recorded.frame.writer.epoch async for recorded in journal.read(1, await journal.end())}
    assert len(epochs) == 3


async def test_a_frame_of_the_process_before_that_arrives_late_is_not_doubled(job: Job) -> None:
    """The old process was killed with its append on the way; it lands when the new one has read the files already."""

    class Late(MemoryJournal):
        on_the_way: Frame | None = None

        async def append(self, subject: str, frame: Frame, *, expected_last: int | None = None) -> Appended | Conflict:
            late, self.on_the_way = (self.on_the_way, None) if subject == OWN else (None, self.on_the_way)
            if late is not None:
                await super().append(OWN, late)
            return await super().append(subject, frame, expected_last=expected_last)

    journal = Late()
    saved, other = job.save(1), job.save(2)
    await report(journal, saved)
    event = CheckpointVerified(
        id="x", at_ns=1, tenant="lab", job="j-1", attempt=1, checkpoint_id=saved.checkpoint.id, size_bytes=1
    )
    journal.on_the_way = Frame(Writer("checkpoint", "c1", 1, 1), (event,))
    async with running(job, journal):
        await until(journal, 1)
        await report(journal, other)
        found = await until(journal, 2)
    assert [each.checkpoint_id for each in found] == [saved.checkpoint.id, other.checkpoint.id]


async def test_two_processes_of_one_name_say_everything_once(job: Job) -> None:
    journal = MemoryJournal()
    saved = [job.save(step) for step in range(1, 16)]
    await report(journal, *saved)
    registers = (MemoryRegister(), MemoryRegister())
    async with running(job, journal, registers), running(job, journal, registers):
        await until(journal, len(saved))
        # Both have now nothing left to do: one more checkpoint passes through both.
        extra = job.save(99)
        await report(journal, extra)
        await until(journal, len(saved) + 1)
        await asyncio.sleep(0.05)
    counted = Counter(event.checkpoint_id for event in await said(journal))
    assert counted == {each.checkpoint.id: 1 for each in (*saved, extra)}


async def test_an_outage_of_the_journal_is_waited_out(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    class Away(MemoryJournal):
        refusals: list[Exception]

        async def append(self, subject: str, frame: Frame, *, expected_last: int | None = None) -> Appended | Conflict:
            if subject == OWN and self.refusals:
                error = self.refusals.pop()
                if isinstance(error, JournalUnavailableError):
                    # Written, but nobody could tell the service so.
                    await super().append(subject, frame, expected_last=expected_last)
                raise error
            return await super().append(subject, frame, expected_last=expected_last)

    monkeypatch.setattr(pen, "UNAVAILABLE_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(pen, "FULL_WAIT_SECONDS", 0.01)
    journal = Away()
    journal.refusals = [JournalUnavailableError("no answer"), JournalFullError("full"), JournalFullError("full")]
    saved = [job.save(step) for step in (1, 2, 3)]
    await report(journal, *saved)
    async with running(job, journal, verifications=1):
        found = await until(journal, 3)
        await asyncio.sleep(0.05)
    assert journal.refusals == []
    assert [each.checkpoint_id for each in found] == [each.checkpoint.id for each in saved]
    assert len(await said(journal)) == 3


async def test_a_tier_that_is_away_delays_the_verdict(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "TIER_RETRY_SECONDS", 0.02)
    journal = MemoryJournal()
    saved = job.save(1)
    unmounted = job.hot_dir.with_name("unmounted")
    job.hot_dir.rename(unmounted)
    await report(journal, saved)
    async with running(job, journal):
        await asyncio.sleep(0.1)
        assert await said(journal) == []
        unmounted.rename(job.hot_dir)
        (verdict,) = await until(journal, 1)
    assert isinstance(verdict, CheckpointVerified)


async def test_one_job_does_not_hold_up_the_others(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every checkpoint of the first job stuck, the second job's is read all the same."""
    journal = MemoryJournal()
    hoarder = [job.save(step) for step in range(1, 6)]
    other = Job(job.hot_dir, id="j-2")
    released = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(_tier: object, saved: CheckpointSaved, _stopping: object) -> Verified:
        if saved.job == "j-1":
            asyncio.run_coroutine_threadsafe(released.wait(), loop).result(SECONDS_MAX)
        return Verified(1)

    monkeypatch.setattr(verifying, "verify", slow)
    await report(journal, *hoarder)
    async with running(job, journal):
        last = other.save(1)
        await report(journal, last)
        (first,) = await until(journal, 1)
        assert first.checkpoint_id == last.checkpoint.id
        released.set()
        await until(journal, 6)


async def test_ready_means_caught_up(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = tmp_path / "ready"
    monkeypatch.setenv("TIDEGATE_READY_FILE", str(ready))
    journal = MemoryJournal()
    await report(journal, job.save(1))
    async with running(job, journal):
        await until(journal, 1)
        assert ready.exists()


async def test_a_clock_that_went_back_makes_no_verdict_a_late_duplicate(job: Job) -> None:
    journal = MemoryJournal()
    ahead = SystemClock().now_ns() + 3600 * 10**9
    first, second = job.save(1), job.save(2)
    await report(journal, first)
    await journal.append(OWN, Frame(Writer("checkpoint", "c1", ahead, 1), (verified(first),)))
    async with running(job, journal):
        await report(journal, second)
        async with asyncio.timeout(SECONDS_MAX):
            async with aclosing(journal.follow(2)) as recorded_frames:
                async for recorded in recorded_frames:
                    if recorded.subject == OWN:
                        break
    assert recorded.frame.writer.epoch > ahead


async def test_a_checkpoint_that_cannot_even_be_judged_is_set_aside_and_retried(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a verdict about the checkpoint, but a fault at judging it: it must not stop the others, nor be lost."""
    monkeypatch.setattr(verifying, "TIER_RETRY_SECONDS", 0.001)
    journal, registers = MemoryJournal(), (MemoryRegister(), MemoryRegister())
    odd, good = job.save(1), job.save(2)
    judge, broken = verifying.verify, True

    def faulty(tier: HotTier, saved: CheckpointSaved, stopping: Callable[[], bool]) -> Verified | Broken:
        if broken and saved == odd:
            raise RecursionError("too deep")
        return judge(tier, saved, stopping)

    monkeypatch.setattr(verifying, "verify", faulty)
    await report(journal, odd, good)
    async with running(job, journal, registers):
        (verdict,) = await until(journal, 1)
        assert verdict.checkpoint_id == good.checkpoint.id
    letters = DeadLetters(registers[1])
    (stored,) = [each async for each in letters.newer(0)]
    letter = stored.letter
    assert (letter.consumer, letter.place, letter.kind, letter.job) == ("checkpoint", "1.0", "CheckpointSaved", "j-1")
    assert (letter.error_type, letter.attempts) == ("RecursionError", verifying.TRIES_MAX)
    # It stays set aside over a restart, and is judged when that is asked for.
    broken = False
    async with running(job, journal, registers):
        third = job.save(3)
        await report(journal, third)
        assert [each.checkpoint_id for each in await until(journal, 2)][1:] == [third.checkpoint.id]
        await letters.ask_retry("checkpoint", "1.0", by="op", reason="fixed", now_ns=1)
        assert [each.checkpoint_id for each in await until(journal, 3)][2:] == [odd.checkpoint.id]
