"""Who is in a job's way is named, with how much: room that is kept, and gangs that find no place together."""

from __future__ import annotations

from typing import Any

from tidegate_events import events as e
from tidegate_scheduler.explain import count_waiting, explain, queue
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.policy.registry import outlook

from tests.scheduler.elastic.lab import all_events, elastic, of, run
from tests.support.cluster import SECOND, Cluster, spec

CLOSE: dict[str, Any] = {"communication": "intensive"}


def reasons(cluster: Cluster, job: str) -> list[e.Reason]:
    return list(outlook(cluster.state, cluster.now).reasons(cluster.job(job), cluster.waiting))


def kept_for_a_gang() -> Cluster:
    """The room of both nodes is kept for a gang, and free in 1000 s."""
    cluster = elastic(Parameters(reservations_max=1))
    for node in ("n1", "n2"):
        cluster.node(node, 2000)
    run(cluster, "runs", spec(2000, priority=3, time_limit_seconds=1000))
    cluster.submit(spec(2000, gang=2, priority=3), "gang")
    cluster.settle()
    return cluster


def test_whose_room_it_is_and_how_much_and_from_when() -> None:
    cluster = kept_for_a_gang()
    cluster.submit(spec(500), "small")
    cluster.settle()
    (told, *_) = reasons(cluster, "small")
    assert (told.code, told.detail) == ("Priority", "the room is kept for gang")
    kept = {"jobs": 1, "priority": 3, "cpu_millis_kept": 4000, "memory_mib_kept": 1024}
    assert told.numbers.items() >= kept.items()
    assert told.numbers["start_ns"] == cluster.now + 1000 * SECOND


def test_a_reservation_behind_another_names_it_in_the_pass_that_makes_both() -> None:
    """Then the room is kept by that pass alone, and the state does not tell of it yet."""
    cluster = elastic()
    cluster.node("n1", 2000)
    run(cluster, "runs", spec(1500, time_limit_seconds=1000))
    cluster.submit(spec(2000, priority=2), "first")
    cluster.submit(spec(500), "second")
    cluster.settle()
    kept = {event.job: event for event in of(all_events(cluster), e.RoomReserved)}
    assert set(kept) == {"first", "second"}
    (reason,) = kept["second"].reasons
    assert (reason.code, reason.detail) == ("Priority", "the room is kept for first")
    assert (reason.numbers["jobs"], reason.numbers["cpu_millis_kept"]) == (1, 2000)


def test_a_gang_that_finds_no_place_together_says_how_many_do_and_where() -> None:
    cluster = elastic(Parameters(reservations_max=0))
    for node, switch, cpu in (("n1", "s1", 1500), ("n2", "s1", 1000), ("n3", "s2", 1500), ("n4", "s2", 2000)):
        cluster.node(node, 2000, switch=switch)
        run(cluster, f"on-{node}", spec(cpu))
    cluster.submit(spec(500, gang=5, **CLOSE), "close")
    cluster.submit(spec(500, gang=7), "loose")
    cluster.settle()
    close, loose = reasons(cluster, "close")[0], reasons(cluster, "loose")[0]
    assert (close.code, close.detail) == ("GangTopology", "most of its members would fit together at s1")
    assert close.numbers.items() >= {"members_needed": 5, "members_fit": 4, "members_fit_together": 3}.items()
    assert loose.code == "Resources"
    assert loose.numbers.items() >= {"members_needed": 7, "members_fit": 4}.items()


def test_of_jobs_that_are_alike_only_those_count_as_reserved_that_the_pass_kept_room_for() -> None:
    """Also when the room is kept no more since, and no pass has looked at the line again."""
    cluster = elastic(Parameters(reservations_max=1))
    cluster.node("n1", 2000)
    run(cluster, "runs", spec(2000))
    for name in ("first", "second", "third"):
        cluster.submit(spec(2000), name)
    cluster.settle()
    job = cluster.job("first")
    about: dict[str, Any] = {"id": "r", "at_ns": cluster.now, "tenant": "t", "job": "first", "traceparent": ""}
    released = e.RoomReserved(**about, revision=job.revision, reasons=(), nodes=())
    cluster.append("scheduler", cluster.leader, released)
    assert not job.reserved_nodes
    line = queue(cluster.state, cluster.waiting)
    assert [(each.job, each.reasons[0].code) for each in line.queue] == [
        ("first", "Reserved"), ("second", "Resources"), ("third", "Resources"),
    ]  # fmt: skip
    counted = {each.reason: each.jobs for each in count_waiting(cluster.state, cluster.waiting)}
    assert counted == {"Reserved": 1, "Resources": 2}
    assert [explain(cluster.state, cluster.waiting, each.job) for each in line.queue] == list(line.queue)
