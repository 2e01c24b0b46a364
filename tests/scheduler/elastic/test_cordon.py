"""A node that keeps failing jobs is cordoned: by how many failures of how many jobs in which time; never too many."""

from __future__ import annotations

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events.spec import JobSpec
from tidegate_scheduler import snapshot
from tidegate_scheduler.decide import decide
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.state import Job, NodeFailure

from tests.support.cluster import SECOND, Cluster, spec

HALF = Parameters(cordon_permille=500)


def a_cluster(nodes: int = 2, parameters: Parameters = HALF) -> Cluster:
    cluster = Cluster(parameters)
    for number in range(1, nodes + 1):
        cluster.node(f"n{number}", 4000)
    return cluster


def fail_on(cluster: Cluster, node: str, job: str, outcome: str = "failed") -> list[e.AnyEvent]:
    """A job that runs on the node, and fails there."""
    run_on(cluster, node, job)
    return cluster.exit(job, outcome)


def run_on(cluster: Cluster, node: str, job: str) -> Job:
    """Let the job be placed on the node, which no other is then free to take."""
    if job not in cluster.state.jobs:
        cluster.submit(spec(1000, attempts=50), job)
    cluster.advance(100)
    blocked = cluster.job(job)
    if blocked.members[0].node != node:
        pytest.fail(f"{job} is on {blocked.members[0].node}, not on {node}")
    cluster.start(job)
    return blocked


def cordons(decided: list[e.AnyEvent]) -> list[e.NodeCordoned]:
    return [event for event in decided if isinstance(event, e.NodeCordoned)]


def test_a_node_on_which_five_attempts_of_three_jobs_failed_is_cordoned_and_gets_nothing_more() -> None:
    cluster = a_cluster()
    for job in ("a", "b", "a", "b"):
        assert not cordons(fail_on(cluster, "n1", job))
    decided = fail_on(cluster, "n1", "c")
    (cordoned,) = cordons(decided)
    assert (cordoned.node, cordoned.incarnation) == ("n1", 1)
    assert cordoned.reasons[0].code == "KeepsFailingJobs"
    assert cordoned.reasons[0].numbers == {"failures": 5, "jobs": 3, "window_seconds": 600}
    cluster.advance(100)
    assert {job: cluster.members(job)[0].node for job in ("a", "c")} == {"a": "n1", "c": "n2"}, (
        "what runs there goes on"
    )


def test_nothing_is_placed_there_in_the_pass_that_cordons_it() -> None:
    cluster = a_cluster()
    for job in ("a", "b", "a", "b"):
        fail_on(cluster, "n1", job)
    run_on(cluster, "n1", "c")
    cluster.submit(spec(1000), "next")
    decided = cluster.exit("c", "failed")
    kinds = [type(event) for event in decided]
    assert kinds.index(e.NodeCordoned) < kinds.index(e.JobPlaced)
    assert cluster.members("next")[0].node == "n2"


def test_failures_of_two_jobs_only_are_no_reason() -> None:
    cluster = a_cluster()
    for job in ("a", "b") * 5:
        assert not cordons(fail_on(cluster, "n1", job))


def test_failures_longer_ago_than_the_window_do_not_count() -> None:
    cluster = a_cluster(parameters=msgspec.structs.replace(HALF, cordon_window_seconds=250))
    for job in ("a", "b", "c", "d", "a", "b", "c", "d"):
        assert not cordons(fail_on(cluster, "n1", job)), "they are 100 s apart, so no more than three are in a window"


def test_it_is_off_where_no_number_of_failures_is_too_many() -> None:
    cluster = a_cluster(parameters=msgspec.structs.replace(HALF, cordon_failures=0))
    for job in ("a", "b", "c") * 4:
        assert not cordons(fail_on(cluster, "n1", job))


def test_never_more_than_its_part_of_the_nodes_that_are_up() -> None:
    """At least one of three or more: a small cluster is not left with a node that fails whatever it gets."""
    cluster = a_cluster(parameters=Parameters())
    for job in ("a", "b", "c") * 3:
        assert not cordons(fail_on(cluster, "n1", job)), "a tenth of two nodes is none"
    cluster.node("n3", 4000)
    assert [event.node for event in cordons(cluster.settle())] == ["n1"], "one of three"
    for job in ("d", "e", "f") * 3:
        assert not cordons(fail_on(cluster, "n2", job)), "one is cordoned already"
    for number in range(4, 20):
        cluster.node(f"n{number}", 4000)
        assert not cordons(cluster.settle())
    cluster.node("n20", 4000)
    assert [event.node for event in cordons(cluster.settle())] == ["n2"], "a tenth of twenty are two"


@pytest.mark.parametrize("permille", [0, 100])
def test_a_part_of_none_is_none_in_a_small_cluster_too(permille: int) -> None:
    cluster = a_cluster(3, Parameters(cordon_permille=permille))
    decided = [event for job in ("a", "b", "c") * 2 for event in cordons(fail_on(cluster, "n1", job))]
    assert bool(decided) == bool(permille)


@pytest.mark.parametrize(
    ("waits", "stays"),
    [
        (None, False),
        (spec(4000), False),
        (spec(4000, gpus=1), True),
        (spec(2500, gang=3), True),
        (spec(2500, gang=2), False),
        (spec(100, gang=6, communication="intensive"), False),
        (spec(1500, gang=4, communication="intensive"), True),
    ],
)
def test_never_the_last_one_that_could_hold_a_job_which_waits(waits: JobSpec | None, stays: bool) -> None:
    """n1 has the only GPU and is below a switch with n2; n3 has another. The job that waits has to wait for all."""
    cluster = Cluster(Parameters(reservations_max=0))
    for name, switch, gpus in (("n1", "s1", 1), ("n2", "s1", 0), ("n3", "s2", 0)):
        cluster.node(name, 4000, gpus=gpus, switch=switch)
    for name in ("n1", "n2", "n3"):
        cluster.submit(spec(200, attempts=50, priority=9), f"on-{name}")
    cluster.settle()
    node = cluster.state.nodes["n1"]
    node.failures = [NodeFailure(f"j{number % 3}", number, cluster.now) for number in range(5)]
    if waits is not None:
        cluster.submit(waits, "waits")
    for name in ("n1", "n2", "n3"):
        cluster.submit(spec(3600, priority=9), f"fills-{name}")
    cluster.state.touch("node/n1")
    decided = cluster.settle()
    assert bool(cordons(decided)) == (not stays)
    cluster.cancel("waits")
    assert cordons(cluster.settle()) or not stays, "nobody needs it any more"


def test_a_job_that_pauses_after_its_failure_waits_too() -> None:
    cluster = Cluster(HALF)
    cluster.node("n1", 4000, gpus=4)
    cluster.node("n2", 4000)
    jobs = ("a", "b", "a", "b", "c")
    for number, job in enumerate(jobs):
        if job not in cluster.state.jobs:
            cluster.submit(spec(1000, gpus=1, attempts=50), job)
        cluster.advance(100)
        cluster.start(job)
        assert not cordons(cluster.exit(job, "failed")), f"{number}: none of them could ever run again"
    for job in set(jobs):
        cluster.ask(e.HoldRequested, job)
    assert cordons(cluster.settle()), "those who are held do not wait for a node"


def test_a_node_that_was_spared_is_not_cordoned_for_what_is_long_ago() -> None:
    cluster = a_cluster(parameters=Parameters())
    for job in ("a", "b", "c") * 2:
        fail_on(cluster, "n1", job)
    cluster.advance(10_000)
    cluster.node("n3", 4000)
    assert not cordons(cluster.settle())


def test_what_goes_down_with_its_node_is_one_failure_each_time() -> None:
    cluster = a_cluster(1, Parameters(cordon_permille=1000))
    cluster.node("roomy", 20_000)
    for incarnation in range(2, 7):
        for job in ("a", "b", "c"):
            if job not in cluster.state.jobs:
                cluster.submit(spec(1000), job)
        cluster.advance(70)
        for job in ("a", "b", "c"):
            cluster.start(job)
        cluster.node("n1", 4000, incarnation=incarnation)
        assert bool(cordons(cluster.settle())) == (incarnation == 6), "the fifth time within ten minutes is too often"


def test_an_operator_resumes_it_and_its_failures_are_forgotten() -> None:
    cluster = a_cluster()
    for job in ("a", "b", "a", "b", "c"):
        fail_on(cluster, "n1", job)
    assert cluster.state.nodes["n1"].cordoned
    resumed = e.NodeResumeRequested(id="resume", at_ns=cluster.now, actor="ada", node="n1")
    cluster.append("gateway", "g1", resumed)
    assert not cordons(cluster.settle())
    fail_on(cluster, "n1", "d")


def test_an_index_that_was_kept_up_judges_as_a_new_one_does_also_after_looking_ahead_and_other_parameters() -> None:
    cluster = a_cluster(parameters=Parameters())
    for job in ("a", "b", "a", "b", "c"):
        fail_on(cluster, "n1", job)
    decide(cluster.state, cluster.now + 10_000 * SECOND)
    values = msgspec.structs.asdict(msgspec.structs.replace(HALF, cordon_failures=4))
    changed = e.PolicyChanged(id="other", at_ns=cluster.now, policy=2, parameters=values)
    cluster.append("scheduler", cluster.leader, changed)
    fresh = snapshot.decode_snapshot(snapshot.encode_snapshot(cluster.state))
    kept = decide(cluster.state, cluster.now).events
    assert cordons(list(kept))
    assert kept[1:] == decide(fresh, cluster.now).events[1:]
