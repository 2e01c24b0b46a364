"""Who is on which node is kept up with the state, in the order of the state's own table, also from a snapshot."""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_scheduler import seats as kept
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.snapshot import decode_snapshot, encode_snapshot
from tidegate_scheduler.state import State

from tests.support.cluster import Cluster, spec
from tests.support.framing import framed


def on_node(state: State, node: str) -> list[str]:
    """Return what a look at the whole table of jobs says."""
    return [job.id for job in state.jobs.values() if any(member.node == node for member in job.members)]


def full() -> Cluster:
    """Return two nodes with jobs and gangs on both, of which some were submitted in one frame."""
    cluster = Cluster()
    for name in ("n1", "n2"):
        cluster.node(name, 8000)
    together = tuple(
        e.JobSubmitted(id=f"s-{name}", at_ns=cluster.now, tenant="t", job=name, spec=spec(100, gang=gang))
        for name, gang in (("z", 1), ("a", 2), ("m", 1), ("b", 2))
    )
    cluster.append("gateway", "g1", *together)
    for name, gang in (("y", 1), ("c", 3)):
        cluster.submit(spec(1500, gang=gang), name)
    cluster.settle()
    return cluster


def test_the_jobs_on_a_node_come_in_the_order_in_which_the_table_holds_them() -> None:
    cluster = full()
    for state in (cluster.state, decode_snapshot(encode_snapshot(cluster.state))):
        for name in ("n1", "n2"):
            assert [job.id for job in state.seats.on(name)] == on_node(state, name)
    assert on_node(cluster.state, "n1")[:4] == ["z", "a", "m", "b"], "or the order of names would do as well"


def test_a_lost_node_leaves_zombies_in_the_same_order_after_a_snapshot() -> None:
    cluster = full()
    restored = decode_snapshot(encode_snapshot(cluster.state))
    lost = e.NodeLost(id="lost", at_ns=cluster.now, node="n1", incarnation=1)
    expected = on_node(cluster.state, "n1")
    for state in (cluster.state, restored):
        evolve(state, framed(state.seq + 1, "scheduler", "s1", 1000, (lost,)))
        assert list(dict.fromkeys(zombie.job for zombie in state.nodes["n1"].zombies)) == expected
    assert restored.digest() == cluster.state.digest()


def test_a_job_that_left_is_on_no_node() -> None:
    cluster = full()
    assert cluster.state.seats.nodes_of("y") != ()
    cluster.exit("y", "completed")
    assert cluster.state.seats.nodes_of("y") == ()
    assert "y" not in [job.id for name in ("n1", "n2") for job in cluster.state.seats.on(name)]


def test_what_changed_is_looked_at_in_time_though_nobody_asks() -> None:
    state = State()
    for number in range(kept.UNSEATED_MAX + 2):
        state.touch(f"job/j{number}")
    submitted = e.JobSubmitted(id="s", at_ns=1, tenant="t", job="j", spec=spec(100))
    evolve(state, framed(1, "gateway", "g1", 0, (submitted,)))
    assert not state.seats.changed


def test_a_zombie_keeps_its_specification_until_it_has_left_every_node() -> None:
    cluster = full()
    for name in ("n1", "n2"):
        lost = e.NodeLost(id=f"lost-{name}", at_ns=cluster.now, node=name, incarnation=1)
        cluster.append("scheduler", "s1", lost)
    assert cluster.state.zombies.nodes_with("z") == ("n1",)
    for job in list(cluster.state.jobs):
        cluster.cancel(job)
    cluster.settle()
    assert not cluster.state.jobs
    assert "a" in cluster.state.specs, "its node may come back with it"
    for name in ("n1", "n2"):
        cluster.node(name, 8000, incarnation=2)
    assert cluster.state.specs == {}
    assert cluster.state.zombies.nodes_with("a") == ()
