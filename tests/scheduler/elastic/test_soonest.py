"""Room is kept for a blocked gang where it comes free first of all nodes, however many are emptier until then."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tidegate_events import events as e
from tidegate_scheduler.policy.elastic import keeping
from tidegate_scheduler.policy.elastic import reserve as reserving
from tidegate_scheduler.policy.elastic.reserve import Reservation, reserve
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.soonest import Candidates
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.state import Job

from tests.scheduler.elastic.lab import HOUR, elastic, looked_up, nodes_of, run
from tests.scheduler.elastic.test_walks import Walk
from tests.support.cluster import SECOND, Cluster, spec


def start_seconds(cluster: Cluster, job: str) -> int:
    return (cluster.job(job).reserved_start_ns - cluster.now) // SECOND


def part_filled(switches: int, *, limit: int) -> Cluster:
    """Below each switch one node is filled in part, and so among the emptiest, and three are full; all have a limit."""
    cluster = elastic(Parameters(decisions_per_pass_max=1000))
    for switch in range(switches):
        cluster.node(f"s{switch:02}n0", 8000, gpus=8, switch=f"s{switch:02}")
        run(cluster, f"part{switch}", spec(5000, gpus=5, time_limit_seconds=limit // 2))
    for switch in range(switches):
        for number in range(1, 4):
            cluster.node(f"s{switch:02}n{number}", 8000, gpus=8, switch=f"s{switch:02}")
            run(cluster, f"full{switch}-{number}", spec(8000, gpus=8, time_limit_seconds=limit + (switch == 0)))
    return cluster


def test_an_intensive_gang_has_room_kept_below_one_switch_though_the_emptiest_nodes_are_below_many() -> None:
    cluster = part_filled(30, limit=HOUR)
    cluster.submit(spec(8000, gpus=8, gang=4, communication="intensive"), "gang")
    cluster.settle()
    assert sorted(cluster.job("gang").reserved_nodes) == [f"s01n{number}" for number in range(4)], "s00 ends later"
    assert start_seconds(cluster, "gang") == HOUR


def test_such_a_gang_does_not_starve_while_jobs_as_long_as_those_that_run_come_and_go() -> None:
    cluster, draw, limit = part_filled(22, limit=HOUR), random.Random(3), HOUR
    cluster.submit(spec(8000, gpus=8, gang=4, communication="intensive"), "gang")
    cluster.settle()
    due, came = cluster.job("gang").reserved_start_ns, 0
    while cluster.stage("gang") == "pending":
        assert cluster.now <= due, "it starts when those who were there end by their limit, or before"
        cluster.now += 300 * SECOND
        for _ in range(2):
            cluster.submit(spec(8000, gpus=8, time_limit_seconds=limit), f"later{came}")
            came += 1
        cluster.settle()
        running = sorted(job.id for job in cluster.state.jobs.values() if job.stage == "running")
        for name in draw.sample(running, 2):
            cluster.exit(name, "completed")
        for job in sorted(cluster.state.jobs.values(), key=lambda job: job.id):
            if job.stage == "stopping":
                cluster.exit(job.id, "stopped")
            elif job.stage == "placed" and job.id != "gang":
                cluster.start(job.id)
    assert len({name[:3] for name in nodes_of(cluster, "gang")}) == 1


@pytest.mark.parametrize("endless", [5, 20, 40])
def test_nodes_that_nobody_leaves_keep_a_loose_gang_from_none_that_come_free(endless: int) -> None:
    cluster = elastic()
    for number in range(endless):
        cluster.node(f"a{number:02}", 8000, gpus=8)
        run(cluster, f"ever{number}", spec(5000, gpus=1, priority=3))
    for number in range(2):
        cluster.node(f"z{number}", 8000, gpus=8)
        run(cluster, f"ends{number}", spec(8000, gpus=8, priority=3, time_limit_seconds=100 * (number + 1)))
    cluster.submit(spec(3000, gpus=8, gang=2), "gang")
    cluster.settle()
    assert sorted(cluster.job("gang").reserved_nodes) == ["z0", "z1"]
    assert start_seconds(cluster, "gang") == 200


def test_a_strict_gang_has_room_kept_on_the_model_that_comes_free_though_the_emptiest_are_of_many() -> None:
    cluster = elastic()
    for number in range(20):
        cluster.node(f"a{number:02}", 8000, gpus=8, cpu_model=f"m{number:02}")
        run(cluster, f"part{number}", spec(5000, gpus=1, priority=3, time_limit_seconds=5000))
    for number in range(2):
        cluster.node(f"z{number}", 8000, gpus=8, cpu_model="z")
        run(cluster, f"ends{number}", spec(8000, gpus=8, priority=3, time_limit_seconds=100 * (number + 1)))
    cluster.submit(spec(3000, gpus=8, gang=2, determinism="strict"), "gang")
    cluster.settle()
    assert sorted(cluster.job("gang").reserved_nodes) == ["z0", "z1"]
    assert start_seconds(cluster, "gang") == 200


def test_a_device_that_several_share_is_free_when_the_last_of_them_ends() -> None:
    cluster = elastic()
    for number in range(20):
        cluster.node(f"n{number:02}", 8000, gpus=1)
        for turn, limit in enumerate((1000 - number, 10)):
            run(cluster, f"part{number}-{turn}", spec(100, gpu_millis=500, time_limit_seconds=limit))
    shared = {number: nodes_of(cluster, f"part{number}-0") for number in range(20)}
    assert all(nodes_of(cluster, f"part{number}-1") == shared[number] for number in range(20))
    cluster.submit(spec(100, gpus=1), "whole")
    cluster.settle()
    assert cluster.job("whole").reserved_nodes == tuple(shared[19])
    assert start_seconds(cluster, "whole") == 1000 - 19


class _WiderWalk(Walk):
    """A walk over more nodes, which differ, with gangs that may not go anywhere."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        for number in range(4, 4 + self.draw.choice([4, 7])):
            name = f"n{number}"
            self.incarnations[name] = 1
            rack, switch = self.draw.choice(["", "r1", "r2"]), self.draw.choice(["", "s1", "s2"])
            model, gpus = self.draw.choice(["x", "y"]), self.draw.choice([0, 2, 4])
            self.cluster.node(name, 2000, gpus=gpus, rack=rack, switch=switch, cpu_model=model)

    def submit(self) -> None:
        """Let a job come that needs devices, or parts of one, or none."""
        draw, more = self.draw, {"gpus": self.draw.choice([0, 0, 1, 2])}
        if not more["gpus"]:
            more["gpu_millis"] = draw.choice([0, 0, 200, 500, 700])
        gang = draw.choice([1, 1, 2, 3])
        bounds = draw.choice([{}, {"communication": "intensive"}, {"determinism": "strict"}]) if gang > 1 else {}
        job = spec(
            draw.choice([500, 1000, 1500, 2000]),
            gang=gang,
            priority=draw.randint(0, 3),
            grace=draw.choice([1, 30, 200]),
            tenant=draw.choice("tab"),
            time_limit_seconds=draw.choice([None, 50, 200, 600, 600, 1500, 1500]),
            **more,
            **bounds,
        )
        self.cluster.submit(job)

    def change_limit(self) -> None:
        """Let an operator set a limit."""
        if jobs := self._those(lambda job: job.stage == "running"):
            limit = self.draw.choice([100, 1000, 5000])
            self.cluster.ask(e.JobLimitChanged, self.draw.choice(jobs), time_limit_seconds=limit)


class _Both:
    """Finds the room that comes free first, and looks at all nodes as well, one by one."""

    def __init__(self) -> None:
        self.found = Counter[str]()

    def reserve(self, trial: Trial, now_ns: int, job: Job, fit: Fit, barred: frozenset[int]) -> Reservation | None:
        able = [row for row in range(len(fit.table)) if fit.suits()[row] and row not in barred]
        of_all = reserving._first(trial, now_ns, job, fit, Candidates(able))
        first = reserve(trial, now_ns, job, fit, barred)
        if fit.shape.need.gpu_millis and any(each.parts and each.promised for each in fit.table.devices):
            return first  # a part may be free until all of its device is, which is kept for others: that does not last
        assert (first is None) == (of_all is None)
        if first is not None and of_all is not None:
            assert first.start_by_ns == of_all.start_by_ns
            if len(able) > fit.shape.gang_size:  # else all were looked at anyway
                self.found["later" if first.start_by_ns else "unknown"] += 1
        return first

    def ask_for_all(self, cluster: Cluster) -> None:
        """Ask where each of those who wait would have room kept now."""
        index = looked_up(cluster)
        for job in sorted(index.state.jobs.values(), key=lambda job: job.id):
            if (stands := index.standing(job.id)) is not None:
                self.reserve(Trial(index), cluster.now, job, stands[0].fit, frozenset())


@pytest.mark.parametrize("first", range(0, 24, 4))
def test_no_room_that_is_kept_comes_free_later_than_other_room(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both in passes, which try this and that, and between them, on walks through little clusters."""
    monkeypatch.setattr(reserving, "NODES_LOOKED_AT_MAX", 0)
    both = _Both()
    monkeypatch.setattr(keeping, "reserve", both.reserve)
    for seed in range(first, first + 4):
        walk = _WiderWalk(seed)
        for _ in range(30):
            walk.submit()
            walk.step()
            if walk.draw.random() < 0.1:
                walk.change_limit()
                walk.cluster.settle()
            both.ask_for_all(walk.cluster)
    assert both.found["later"] > 50, f"hardly any was asked for: {both.found}"
