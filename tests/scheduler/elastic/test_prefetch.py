"""Which image should be on which node next: for whom it is hinted, where, and how often."""

from __future__ import annotations

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec
from tidegate_scheduler import snapshot
from tidegate_scheduler.decide import decide
from tidegate_scheduler.policy.elastic.prefetch import LINES_MAX
from tidegate_scheduler.state import HINTS_KEPT

from tests.scheduler.elastic.world import answers, told_anew
from tests.support.cluster import SECOND, Cluster, spec
from tests.support.images import say_images


def join(
    cluster: Cluster, name: str, *images: str, cpu: int = 2000, incarnation: int = 1, fetches: bool = True
) -> None:
    joined = e.NodeJoined(
        id=f"join-{name}-{incarnation}",
        at_ns=cluster.now,
        node=name,
        incarnation=incarnation,
        capacity=Resources(cpu, 8192),
        levels=("trusted",),
        images={image: f"b3:{image}" for image in images},
        fetches_images=fetches,
    )
    cluster.append("node", name, joined)


def run(cluster: Cluster, name: str, job: JobSpec) -> None:
    cluster.submit(job, name)
    cluster.settle()
    cluster.start(name)
    assert cluster.stage(name) == "running"


def hints(decided: list[e.AnyEvent]) -> list[tuple[str, str]]:
    return [(event.node, event.image) for event in decided if isinstance(event, e.ImagePrefetchHinted)]


def a_busy_node(*others: str, limit: int | None = None, cpu: int = 2000) -> Cluster:
    """The only node with the image `sim` is taken; the others have another one."""
    cluster = Cluster()
    join(cluster, "n1", "sim")
    run(cluster, "first", spec(2000, image="sim", time_limit_seconds=limit))
    for name in others:
        join(cluster, name, "base", cpu=cpu)
    cluster.settle()
    return cluster


@pytest.mark.parametrize("image", ["sim", "b3:sim"])
def test_it_is_hinted_on_as_many_nodes_as_the_first_in_line_needs_and_once(image: str) -> None:
    cluster = a_busy_node("n2", "n3")
    cluster.submit(spec(2000, image=image), "second")
    cluster.submit(spec(2000, image=image), "third")
    assert hints(cluster.settle()) == [("n2", image)]
    assert not cluster.advance(100)
    gang = a_busy_node("n2", "n3", "n4")
    gang.submit(spec(2000, image=image, gang=2), "second")
    assert hints(gang.settle()) == [("n2", image), ("n3", image)]


def test_the_agent_may_join_with_the_image_and_the_job_is_placed_there() -> None:
    cluster = a_busy_node("n2")
    cluster.submit(spec(2000, image="sim"), "second")
    cluster.settle()
    join(cluster, "n2", "base", "sim", incarnation=2)
    cluster.settle()
    assert cluster.members("second")[0].node == "n2"
    assert cluster.state.nodes["n2"].hinted == []


def told(cluster: Cluster, name: str, images: dict[str, str], *unavailable: str, incarnation: int = 1) -> None:
    say_images(cluster, name, images, unavailable, incarnation)


@pytest.mark.parametrize("image", ["sim", "b3:sim"])
def test_the_job_is_placed_where_the_image_was_fetched(image: str) -> None:
    cluster = a_busy_node("n2")
    cluster.submit(spec(2000, image=image), "second")
    cluster.settle()
    told(cluster, "n2", {"base": "b3:base", "sim": "b3:sim"}, incarnation=2)
    assert cluster.state.nodes["n2"].hinted == [image], "not of this start of its agent"
    told(cluster, "n2", {"base": "b3:base", "sim": "b3:sim"})
    assert cluster.state.nodes["n2"].hinted == []
    cluster.settle()
    assert cluster.members("second")[0].node == "n2"


def test_another_node_is_told_where_one_cannot_get_it() -> None:
    cluster = a_busy_node("n2", "n3")
    cluster.submit(spec(2000, image="sim"), "second")
    assert hints(cluster.settle()) == [("n2", "sim")]
    told(cluster, "n2", {"base": "b3:base"}, "sim")
    assert hints(cluster.settle()) == [("n3", "sim")]
    told(cluster, "n3", {"base": "b3:base"}, "sim")
    assert not hints(cluster.settle())
    join(cluster, "n3", "base", incarnation=2)
    assert hints(cluster.settle()) == [("n3", "sim")], "it may be able to now"


def test_what_nobody_waits_for_any_more_makes_room_for_new_hints() -> None:
    cluster = Cluster()
    images = [f"i{number:02}" for number in range(HINTS_KEPT + 1)]
    join(cluster, "n1", *images)
    run(cluster, "first", spec(2000, image="i00"))
    join(cluster, "n2", "base")
    for image in images[:HINTS_KEPT]:
        cluster.submit(spec(2000, image=image), image)
    cluster.settle()
    assert len(cluster.state.nodes["n2"].hinted) == HINTS_KEPT
    cluster.submit(spec(2000, image=images[-1]))
    assert not hints(cluster.settle())
    cluster.cancel(cluster.state.nodes["n2"].hinted[0])
    assert hints(cluster.settle()) == [("n2", images[-1])]


@pytest.mark.parametrize(("limit", "hinted"), [(500, False), (2000, True)])
def test_it_is_not_needed_where_room_is_free_soon(limit: int, hinted: bool) -> None:
    cluster = a_busy_node("n2", limit=limit)
    cluster.submit(spec(2000, image="sim"), "second")
    assert bool(hints(cluster.settle())) == hinted


def test_a_node_without_room_or_that_would_not_take_the_job_is_not_told() -> None:
    cluster = a_busy_node("n2", cpu=1000)
    cluster.submit(spec(2000, image="sim"), "second")
    assert not hints(cluster.settle())


def test_it_is_hinted_where_no_open_node_has_it() -> None:
    cluster = a_busy_node("n2")
    cluster.exit("first", "completed")
    drained = e.NodeDrainRequested(id="d", at_ns=cluster.now, actor="ada", node="n1", deadline_ns=cluster.now + SECOND)
    cluster.append("gateway", "g1", drained)
    cluster.submit(spec(2000, image="sim"), "second")
    assert hints(cluster.settle()) == [("n2", "sim")]


def test_no_more_than_a_node_remembers() -> None:
    cluster = Cluster()
    images = [f"i{number:02}" for number in range(12)]
    join(cluster, "n1", *images)
    run(cluster, "first", spec(2000, image="i00"))
    join(cluster, "n2", "base")
    for image in images:
        cluster.submit(spec(2000, image=image))
    assert len(hints(cluster.settle())) == 8, "and it comes to rest"


def a_full_node(*images: str) -> Cluster:
    """The only node with the images is taken; another, that has none of them, has room."""
    cluster = Cluster()
    join(cluster, "n1", *images)
    run(cluster, "first", spec(2000, image=images[0], priority=1))
    join(cluster, "n2", "base")
    return cluster


def test_what_is_hinted_in_the_same_pass_counts_too() -> None:
    images = [f"i{number:02}" for number in range(12)]
    cluster = a_full_node(*images)
    for image in images[:6]:
        cluster.submit(spec(2000, image=image))
    cluster.settle()
    first = list(cluster.state.nodes["n2"].hinted)
    assert len(first) == 6
    for image in images[6:]:
        cluster.submit(spec(2000, image=image))
    given = hints(decide(cluster.state, cluster.now).events)
    assert len(given) == HINTS_KEPT - 6, "fewer than a pass may give"
    cluster.settle()
    assert cluster.state.nodes["n2"].hinted == [*first, *(image for _, image in given)]


def test_a_node_that_takes_no_more_hints_is_not_one_on_which_the_image_will_be() -> None:
    images = [f"i{number:02}" for number in range(HINTS_KEPT)]
    cluster = a_full_node(*images, "sim")
    for image in images:
        cluster.submit(spec(2000, image=image))
    cluster.settle()
    assert sorted(cluster.state.nodes["n2"].hinted) == images
    cluster.submit(spec(2000, image="sim", priority=1))
    assert not hints(cluster.settle())
    join(cluster, "n3", "base")
    assert ("n3", "sim") in hints(cluster.settle())


def test_a_node_that_cannot_get_as_many_as_are_remembered_is_left_alone_until_it_joins_again() -> None:
    images = [f"i{number:02}" for number in range(HINTS_KEPT + 2)]
    cluster = a_full_node(*images)
    for image in images:
        cluster.submit(spec(2000, image=image))
    decided, failed = hints(cluster.settle()), list[str]()
    for _ in range(3 * len(images)):
        if not (hinted := cluster.state.nodes["n2"].hinted):
            break
        failed = [*failed, hinted[0]][-HINTS_KEPT:]
        told(cluster, "n2", {"base": "b3:base"}, *failed)
        decided += hints(cluster.settle())
    assert len(decided) <= len(images) == len(failed) + 2, "each at most once, and it comes to rest"
    assert not hints(cluster.advance(3600))
    join(cluster, "n2", "base", incarnation=2)
    assert hints(cluster.settle())


def test_a_node_that_fetches_nothing_is_hinted_nothing() -> None:
    cluster = a_busy_node()
    join(cluster, "n2", "base", fetches=False)
    join(cluster, "n3", "base")
    cluster.submit(spec(2000, image="sim"), "second")
    assert hints(cluster.settle()) == [("n3", "sim")]


def test_what_a_node_was_before_decides_nothing() -> None:
    """The index remembers kinds of nodes that none is any more: they are not among the lines that a pass looks at."""
    images = [f"i{number}" for number in range(LINES_MAX)]
    cluster = Cluster()
    join(cluster, "n1", *images, "sim")
    join(cluster, "n2", "base")
    join(cluster, "n3", "base", *images, cpu=1000)
    run(cluster, "first", spec(2000, image="sim"))
    run(cluster, "other", spec(2000, image="base"))
    told(cluster, "n2", {image: f"b3:{image}" for image in images})
    for image in images:
        cluster.submit(spec(2000, image=image))
    cluster.settle()
    cluster.submit(spec(500, image="sim"))
    while (kept := answers(cluster.state, cluster.now)) and (decided := decide(cluster.state, cluster.now).events):
        assert kept == answers(told_anew(cluster.frames), cluster.now)
        cluster.append("scheduler", cluster.leader, *decided)
    assert kept == answers(told_anew(cluster.frames), cluster.now)
    assert cluster.state.nodes["n3"].hinted == ["sim"]


def test_a_new_index_decides_the_same() -> None:
    cluster = a_busy_node("n2", "n3")
    cluster.submit(spec(2000, image="sim"), "second")
    for _ in range(4):
        fresh = snapshot.decode_snapshot(snapshot.encode_snapshot(cluster.state))
        kept = decide(cluster.state, cluster.now).events
        assert kept == decide(fresh, cluster.now).events
        if kept:
            cluster.append("scheduler", cluster.leader, *kept)
    assert cluster.state.nodes["n2"].hinted == ["sim"]
