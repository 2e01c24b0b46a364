"""The candidate's task on a bucket in memory: it takes, renews, notices, lets go, and ends what outlives the lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tidegate_events.clock import ManualClock
from tidegate_scheduler.candidate import Candidate, LeaseLostError
from tidegate_scheduler.lease import Write
from tidegate_scheduler.lease_bucket import MemoryLeaseBucket

SECONDS = 0.4
UNHURRIED_SECONDS = 2.0
"""For what must not lapse by itself, though the machine be busy."""
WAIT_SECONDS = 20


class Field:
    """A bucket and those who stand for the lead on it."""

    def __init__(self) -> None:
        self.bucket = MemoryLeaseBucket()
        self.tasks: list[asyncio.Task[None]] = []

    def candidate(self, instance: str, seconds: float = SECONDS) -> tuple[Candidate, asyncio.Task[None]]:
        made = Candidate(self.bucket, ManualClock(), instance=instance, lease_seconds=seconds)
        task = asyncio.create_task(made.run(lambda: 0))
        self.tasks.append(task)
        return made, task

    async def leads(self, candidate: Candidate) -> int:
        """Wait until the candidate has a term; return its epoch."""
        async with asyncio.timeout(WAIT_SECONDS):
            while (term := candidate.term) is None:
                await candidate.changed(0.05)
        return term.epoch

    async def sees(self, candidate: Candidate, leader: Candidate) -> None:
        """Wait until the candidate has seen that the other one leads."""
        async with asyncio.timeout(WAIT_SECONDS):
            while (other := candidate.other) is None or other != leader.term:
                await candidate.changed(0.05)

    async def end(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def field() -> AsyncIterator[Field]:
    made = Field()
    yield made
    for task in made.tasks:
        await made.end(task)


async def test_one_leads_and_keeps_it_and_the_other_sees_who(field: Field) -> None:
    first, _ = field.candidate("s1", seconds=UNHURRIED_SECONDS)
    epoch = await field.leads(first)
    second, _ = field.candidate("s2")
    await asyncio.sleep(1.2 * UNHURRIED_SECONDS)
    assert first.holds(epoch)
    assert not first.holds(epoch + 1)
    assert second.term is None
    assert second.other is not None
    assert (second.other.instance, second.other.epoch) == ("s1", epoch)


async def test_a_candidate_that_died_is_followed_and_one_that_let_go_at_once(field: Field) -> None:
    first, task = field.candidate("s1")
    epoch = await field.leads(first)
    await field.end(task)
    second, second_task = field.candidate("s2", seconds=30)
    assert await field.leads(second) == epoch + 1
    third, _ = field.candidate("s3")
    await field.sees(third, second)
    await field.end(second_task)
    await second.release()
    assert await field.leads(third) == epoch + 2, "thirty seconds were not waited for"


async def test_who_resigns_lets_the_other_lead(field: Field) -> None:
    first, _ = field.candidate("s1", seconds=30)
    epoch = await field.leads(first)
    second, _ = field.candidate("s2", seconds=30)
    await field.sees(second, first)
    first.resign()
    assert first.term is None
    assert await field.leads(second) == epoch + 1
    await field.sees(first, second)
    assert first.term is None


class SlowBucket(MemoryLeaseBucket):
    """Writes at once, and answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.may_answer = asyncio.Event(), asyncio.Event()

    async def write(self, write: Write) -> int | None:
        revision = await super().write(write)
        self.written.set()
        await self.may_answer.wait()
        return revision


async def test_a_lease_that_comes_after_resigning_is_no_term(field: Field) -> None:
    field.bucket = bucket = SlowBucket()
    only, _ = field.candidate("s1", seconds=UNHURRIED_SECONDS)
    async with asyncio.timeout(WAIT_SECONDS):
        await bucket.written.wait()
    only.resign()
    bucket.may_answer.set()
    assert await field.leads(only) == 2, "the first was asked for before it resigned, and is let go of"
    assert bucket.entry is not None
    assert bucket.entry.revision == 3, "taken, released, taken"


async def test_who_resigns_alone_leads_again_in_a_new_epoch(field: Field) -> None:
    only, _ = field.candidate("s1")
    epoch = await field.leads(only)
    only.resign()
    assert await field.leads(only) > epoch


async def test_without_the_bucket_the_term_ends_and_with_it_one_begins(field: Field) -> None:
    first, _ = field.candidate("s1")
    epoch = await field.leads(first)
    field.bucket.available = False
    with pytest.raises(LeaseLostError):
        async with first.bounded(epoch):
            await asyncio.sleep(WAIT_SECONDS)
    assert first.term is None
    field.bucket.available = True
    assert await field.leads(first) > epoch


async def test_renewals_give_the_bounded_body_more_time(field: Field) -> None:
    first, _ = field.candidate("s1", seconds=UNHURRIED_SECONDS)
    epoch = await field.leads(first)
    async with first.bounded(epoch):
        await asyncio.sleep(1.2 * UNHURRIED_SECONDS)
    assert first.holds(epoch)


async def test_a_body_for_a_term_that_is_over_does_not_get_far(field: Field) -> None:
    first, _ = field.candidate("s1")
    epoch = await field.leads(first)
    with pytest.raises(LeaseLostError):
        async with first.bounded(epoch + 1):
            await asyncio.sleep(WAIT_SECONDS)


async def test_a_timeout_of_the_bodys_own_is_no_lost_lease(field: Field) -> None:
    first, _ = field.candidate("s1")
    epoch = await field.leads(first)
    with pytest.raises(TimeoutError, match="mine"):
        async with first.bounded(epoch):
            raise TimeoutError("mine")


async def test_letting_go_without_an_answer_is_not_waited_for_long(field: Field) -> None:
    first, task = field.candidate("s1")
    await field.leads(first)
    await field.end(task)
    field.bucket.available = False
    await first.release()
    assert first.term is None
    assert field.bucket.entry is not None
    assert field.bucket.entry.record is not None
    assert not field.bucket.entry.record.released
