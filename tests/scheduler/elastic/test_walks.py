"""Random walks through crowded little clusters, in which much room is kept: every one of them comes to rest by itself.

Each seed that is named once was a walk without end: two passes kept and released the same room by turns.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.decide import decide
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.room_changes import ROOM_CHANGES_MAX, ROOM_RESTS_NS
from tidegate_scheduler.state import Job

from tests.scheduler.elastic.lab import all_events, elastic, of, run
from tests.scheduler.elastic.world import assert_few_changes
from tests.support.cluster import Cluster, spec

STEPS = 40


class Walk:
    """One walk: what happens next is drawn from its seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        parameters = Parameters(
            ageing_seconds=300, reservations_max=3, preemption_cooldown_seconds=20, preemptions_max=3
        )
        self.cluster = elastic(parameters)
        self.incarnations = dict.fromkeys(["n1", "n2", "n3"][: self.draw.choice([2, 2, 3])], 1)
        for name in self.incarnations:
            self.cluster.node(name, self.draw.choice([2000, 3000, 4000]))

    def step(self) -> None:
        """Let something happen, and passes come to rest."""
        steps = [self.submit, self.wait, self.start, self.exit, self.cancel, self.set_queue, self.node_goes_or_comes]
        (step,) = self.draw.choices(steps, [45, 15, 15, 10, 8, 3, 4])
        step()
        assert_few_changes(self.cluster.settle())

    def submit(self) -> None:
        cpu, priority = self.draw.choice([500, 1000, 1500, 2000, 2500, 3000]), self.draw.randint(0, 3)
        gang, grace = self.draw.choice([1, 1, 1, 2, 3]), self.draw.choice([1, 10, 30, 90, 200, 1000])
        limit, tenant = self.draw.choice([None, 50, 200, 600, 1500]), self.draw.choice("tab")
        job = spec(cpu, gang=gang, priority=priority, grace=grace, tenant=tenant, time_limit_seconds=limit)
        self.cluster.submit(job)

    def wait(self) -> None:
        self.cluster.advance(self.draw.choice([1, 5, 11, 61, 100, 300]))

    def start(self) -> None:
        def may(job: Job) -> bool:
            return job.stage == "placed" and any(member.status == "ordered" for member in job.members)

        if jobs := self._those(may):
            self.cluster.start(self.draw.choice(jobs))

    def exit(self) -> None:
        stages = ("running", "stopping", "preempting", "placed")
        if jobs := self._those(lambda job: job.stage in stages and any(each.active for each in job.members)):
            job, ended = self.draw.choice(jobs), self.draw.choice(["completed", "failed"])
            outcomes = {"running": ended, "placed": "failed", "stopping": "stopped", "preempting": "suspended"}
            self.cluster.exit(job, outcomes[self.cluster.stage(job)])

    def cancel(self) -> None:
        if jobs := self._those(lambda job: True):
            self.cluster.cancel(self.draw.choice(jobs))

    def set_queue(self) -> None:
        tenant, millis = self.draw.choice("tab"), self.draw.choice([None, 1000, 3000])
        stopped, weight = self.draw.random() < 0.2, self.draw.randint(1, 3)
        guaranteed = Resources(millis) if millis else None
        self.cluster.ask(
            e.QueueChanged, tenant=tenant, weight=weight, guaranteed=guaranteed, ceiling=None, stopped=stopped
        )

    def node_goes_or_comes(self) -> None:
        name = self.draw.choice(sorted(self.incarnations))
        node = self.cluster.state.nodes[name]
        if node.status == "up" and self.draw.random() < 0.5:
            self.cluster.silence(name)
            return
        held = [
            e.HeldSandbox(job=job.id, attempt=job.attempt, rank=member.rank)
            for job in self.cluster.state.jobs.values()
            for member in job.members
            if member.active and member.node == name and member.status == "started"
        ]
        self.incarnations[name] += 1
        self.cluster.node(name, node.capacity.cpu_millis, incarnation=self.incarnations[name], held=held)

    def _those(self, are: Callable[[Job], bool]) -> list[str]:
        return sorted(job.id for job in self.cluster.state.jobs.values() if are(job))


@pytest.mark.parametrize("seed", [*range(60), 20144, 20588, 30734, 41211])
def test_a_walk_comes_to_rest_after_every_step(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()


def kept_by_turns() -> Cluster:
    """Room for a job was kept on one node and the other by turns, as often as that may be in a row."""
    cluster = elastic()
    for name in ("n1", "n2"):
        cluster.node(name, 1000)
    for name in ("a", "b"):
        run(cluster, name, spec(1000, time_limit_seconds=600))
    cluster.submit(spec(1000), "waits")
    cluster.settle()
    while cluster.job("waits").room_changes < ROOM_CHANGES_MAX:
        job = cluster.job("waits")
        (other,) = {"n1", "n2"} - set(job.reserved_nodes)
        turned = e.RoomReserved(
            id=f"t{job.revision}",
            at_ns=cluster.now,
            tenant=job.tenant,
            job=job.id,
            traceparent="",
            revision=job.revision,
            reasons=(),
            nodes=(other,),
        )
        cluster.append("scheduler", cluster.leader, turned)
    return cluster


def test_room_that_changed_often_in_a_row_rests_for_a_while() -> None:
    cluster = kept_by_turns()
    kept = cluster.job("waits").reserved_nodes
    cluster.node("n3", 500)
    assert of(cluster.settle(), e.RoomReserved) == []
    assert cluster.job("waits").reserved_nodes == kept
    assert decide(cluster.state, cluster.now).wake_at_ns == cluster.now + ROOM_RESTS_NS


def test_whoever_rests_is_placed_all_the_same_where_it_fits() -> None:
    cluster = kept_by_turns()
    cluster.node("n3", 1000)
    assert [event.job for event in of(cluster.settle(), e.JobPlaced)] == ["waits"]


def test_room_that_rests_is_given_up_with_its_nodes_and_kept_elsewhere_after_that() -> None:
    cluster = kept_by_turns()
    (kept,) = cluster.job("waits").reserved_nodes
    cluster.ask(e.NodeDrainRequested, node=kept, deadline_ns=cluster.now + 10**12)
    (released,) = of(cluster.settle(), e.RoomReserved)
    assert (released.nodes, cluster.job("waits").reserved_nodes) == ((), ())
    cluster.advance(ROOM_RESTS_NS // 10**9)
    assert set(cluster.job("waits").reserved_nodes) == {"n1", "n2"} - {kept}
    assert cluster.job("waits").room_changes == 1
    assert len(of(all_events(cluster), e.RoomReserved)) == ROOM_CHANGES_MAX + 2
