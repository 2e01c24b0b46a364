"""What there is once some have left, tried one by one, is what it is when all of it is worked out anew."""

from __future__ import annotations

from random import Random

import pytest
from tidegate_events import events as e
from tidegate_events.resources import GpuDevice, Resources
from tidegate_scheduler.policy.elastic.departed import Cleared, Departed
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.queue import NONE, plus
from tidegate_scheduler.policy.elastic.shapes import Shape
from tidegate_scheduler.policy.elastic.victims import Together, Victims
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.state import Job

from tests.scheduler.elastic.lab import calls, elastic, looked_up
from tests.support.cluster import Cluster, spec

MIXED = (GpuDevice(0, "uuid-0", "small", 40_000), GpuDevice(1, "uuid-1", "large", 80_000))
NEEDS = [
    Resources(1500, 600),
    Resources(500, 512, 1),
    Resources(500, 512, 1, 60_000),
    Resources(500, 512, gpu_millis=300),
    Resources(0, 3000),
]


def full(*, seed: int) -> Cluster:
    """Nodes of whole devices, of parts of them and of devices that differ, on which gangs and single jobs run."""
    random, cluster = Random(seed), elastic()
    cluster.node("plain", 8000, gpus=4)
    cluster.node("parts", 8000, gpus=2)
    cluster.node("mixed", 8000, devices=MIXED)
    for number in range(40):
        gpus, share = random.choice([(0, 0), (1, 0), (0, 250), (0, 500)])
        job = spec(random.randrange(200, 1500), gpus=gpus, gpu_millis=share, gang=random.choice([1, 1, 2]))
        cluster.submit(job, f"j{number:02}")
    cluster.settle()
    return cluster


def there(cluster: Cluster) -> list[Job]:
    return [job for job in cluster.state.jobs.values() if job.stage == "placed"]


def index_made_anew(cluster: Cluster) -> Index:
    index = Index(cluster.state)
    index.refresh(cluster.state.header.now_ns)
    return index


def anew(shape: Shape, index: Index, gone: list[Job]) -> list[int]:
    """Return how many members each row holds once these have left, worked out in one go."""
    with Departed(index, gone) as departed:
        return [int(count) for count in index.fit(shape).members(departed.room, which="later")]


@pytest.mark.parametrize("need", NEEDS)
@pytest.mark.parametrize("gang", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_a_row_is_cleared_one_by_one_as_it_is_in_one_go(need: Resources, gang: int, seed: int) -> None:
    cluster = full(seed=seed)
    index, random = looked_up(cluster), Random(seed)
    shape = Shape("trusted", "host", need, gang)
    fit, other = index.fit(shape), index_made_anew(cluster)
    before, first = index.table.later.copy(), anew(shape, other, [])
    for row in range(len(index.table)):
        on_row, gone = [cluster.job(name) for name in index.on_row.get(row, ())], list[Job]()
        with Cleared(index, fit, row) as cleared:
            assert cleared.members == first[row]
            for _ in range(30):
                job = random.choice(on_row)
                if job in gone:
                    gone.remove(job)
                    cleared.stay(job)
                else:
                    gone.append(job)
                    cleared.leave(job)
                assert cleared.members == anew(shape, other, gone)[row]
            cleared.all_stay()
            assert cleared.members == first[row]
    assert (index.table.later == before).all(), "nobody has left"


def test_who_stays_after_all_is_there_again() -> None:
    cluster = full(seed=1)
    index, jobs = looked_up(cluster), there(cluster)
    before = index.table.later.copy()
    with Departed(index, jobs[:6]) as departed:
        for job in jobs[:3]:
            departed.stay(job)
        departed.leave(jobs[7])
        kept = departed.room.copy()
    with Departed(index, [*jobs[3:6], jobs[7]]) as departed:
        assert (departed.room == kept).all()
    assert (index.table.later == before).all()


@pytest.mark.parametrize("seed", range(8))
def test_those_leave_together_of_whom_each_tenant_keeps_its_own(seed: int) -> None:
    """Added one by one or by several, they are those of whom the sums say so."""
    random, cluster = Random(seed), elastic()
    cluster.node("n", 64_000, memory=1 << 20)
    for tenant, guaranteed in (("owner", 30_000), ("a", 4000), ("b", 7000)):
        cluster.ask(e.QueueChanged, tenant=tenant, guaranteed=Resources(cpu_millis=guaranteed))
    for number in range(30):
        tenant = random.choice(["a", "b", "none"])
        cluster.submit(spec(random.randrange(500, 2000), tenant=tenant, priority=random.choice([0, 5])), f"j{number}")
    cluster.submit(spec(60_000, tenant="owner", priority=3), "waits")
    cluster.settle()
    index, waits = looked_up(cluster), cluster.job("waits")
    victims = Victims(index, cluster.now, Parameters(), set())
    together, chosen, refused = Together(victims, waits), list[Job](), 0
    for _ in range(40):
        some = random.sample(there(cluster), random.choice([1, 1, 3]))
        more = [job for job in some if job not in chosen]
        may = all_keep_their_own(index, [*chosen, *more], waits)
        assert together.add(some) == may
        chosen += more if may else []
        refused += not may
        assert set(together.jobs) == {job.id for job in chosen}
    assert refused
    assert chosen


def all_keep_their_own(index: Index, jobs: list[Job], waits: Job) -> bool:
    for tenant in {job.tenant for job in jobs if job.priority >= waits.priority}:
        share = index.share(tenant)
        given = NONE
        for job in jobs:
            if job.tenant == tenant:
                given = plus(given, (index.state.floors[job.id].cpu_millis, index.state.floors[job.id].memory_mib, 0))
        least = share.guaranteed or NONE
        if any(used - gives < own for used, gives, own in zip(share.used, given, least, strict=True)):
            return False
    return True


NODES = 3

# ---- what that costs, counted in calls, which no neighbour disturbs ----


def crowded(on_each: int, *, spared: bool) -> Cluster:
    """Full nodes with so many small jobs on each, and large ones that wait, each of which may have others leave."""
    cluster = elastic(Parameters(overrun_permille=100_000))
    for number in range(NODES):
        cluster.node(f"n{number}", 12_800, memory=1 << 20)
    for number in range(NODES * on_each):
        seconds = 100_000 if spared else None
        cluster.submit(spec(12_800 // on_each, memory=64, expected_seconds=seconds), f"j{number:04}")
    cluster.settle()
    for number in range(NODES * on_each):
        cluster.start(f"j{number:04}")
    cluster.advance(99_000)
    for number in range(12):
        cluster.submit(spec(11_000 + number, memory=500 - number, priority=5, grace=3000), f"large{number:02}")
    return cluster


@pytest.mark.parametrize("spared", [False, True])
def test_plans_cost_no_more_than_in_proportion_to_who_is_there(spared: bool) -> None:
    few, many = calls(crowded(16, spared=spared), 6), calls(crowded(64, spared=spared), 6)
    assert many < 4 * few, f"{few} calls where 16 are on each node, {many} where 64 are"
