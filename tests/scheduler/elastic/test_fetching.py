"""Jobs whose image no node has that could hold them: they wait for nodes that get images, and start at last."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.dry_run import dry_run
from tidegate_scheduler.history.verdicts import verdicts
from tidegate_scheduler.policy.elastic.pipeline import index_of
from tidegate_scheduler.policy.registry import outlook

from tests.scheduler.elastic.lab import HOUR, elastic, nodes_of, of, run
from tests.support.cluster import Cluster, spec
from tests.support.images import say_images

AFTER = 60
TORCH: dict[str, Any] = {"image": "torch"}


def join(cluster: Cluster, name: str, *images: str, cpu: int = 2000, fetches: bool = True, switch: str = "") -> None:
    joined = e.NodeJoined(
        id=f"join-{name}",
        at_ns=cluster.now,
        node=name,
        incarnation=1,
        capacity=Resources(cpu, 8192),
        levels=("trusted",),
        images={image: f"b3:{image}" for image in images},
        fetches_images=fetches,
        switch=switch,
    )
    cluster.append("node", name, joined)


def told(cluster: Cluster, name: str, *images: str, unavailable: tuple[str, ...] = ()) -> None:
    say_images(cluster, name, {image: f"b3:{image}" for image in images}, unavailable)


def hinted(cluster: Cluster) -> list[str]:
    """Return the nodes that are told to get the image."""
    return sorted(name for name, node in cluster.state.nodes.items() if "torch" in node.hinted)


def why(cluster: Cluster, job: str) -> e.Reason:
    index_of(cluster.state).refresh(cluster.now)
    return outlook(cluster.state, cluster.now).reasons(cluster.job(job), cluster.waiting)[0]


@pytest.mark.parametrize("has", [(), ("host",)])
@pytest.mark.parametrize("image", ["torch", "b3:torch"])
def test_a_job_waits_for_the_first_node_that_gets_its_image_and_starts_there(has: tuple[str, ...], image: str) -> None:
    cluster = elastic()
    join(cluster, "n1", *has)
    cluster.submit(spec(2000, image=image), "waits")
    cluster.advance(HOUR)
    assert cluster.state.nodes["n1"].hinted == [image]
    reason = why(cluster, "waits")
    assert (reason.code, reason.numbers) == ("NoNode", {"members_needed": 1, "members_most": 0})
    assert f"has the image {image} yet" in reason.detail
    told(cluster, "n1", *has, "torch")
    cluster.settle()
    assert cluster.stage("waits") == "placed"


def test_where_others_have_the_room_the_image_comes_first_and_then_room_is_kept() -> None:
    """Those behind it would else have all the room that comes free, a little at a time, for ever."""
    cluster = elastic()
    join(cluster, "n1", "host")
    for number in range(2):
        run(cluster, f"small{number}", spec(1000))
    cluster.submit(spec(2000, **TORCH, priority=1), "waits")
    cluster.settle()
    assert hinted(cluster) == ["n1"]
    told(cluster, "n1", "host", "torch")
    cluster.settle()
    for number in range(2):
        cluster.submit(spec(1000), f"later{number}")
        if cluster.stage(f"small{number}") == "preempting":
            cluster.exit(f"small{number}", "suspended", acknowledged=True)
        else:
            cluster.exit(f"small{number}", "completed")
        cluster.settle()
    assert cluster.stage("waits") == "placed"


def test_it_is_rejected_when_the_last_that_could_hold_it_has_tried_in_vain_and_not_before() -> None:
    cluster = elastic()
    join(cluster, "small", "host", cpu=1000)
    join(cluster, "no", "host", fetches=False)
    for name in ("n1", "n2"):
        join(cluster, name, "host")
    cluster.submit(spec(2000, **TORCH), "waits")
    cluster.advance(HOUR)
    assert hinted(cluster) == ["n1"]
    told(cluster, "n1", "host", unavailable=("torch",))
    cluster.advance(HOUR)
    assert hinted(cluster) == ["n2"]
    assert "yet" in why(cluster, "waits").detail
    told(cluster, "n2", "host", unavailable=("torch",))
    cluster.advance(AFTER - 1)
    assert cluster.stage("waits") == "pending", "it could not get it just now"
    (rejected,) = of(cluster.advance(1), e.JobRejected)
    assert rejected.reasons[0].detail == "no node of its isolation level has the image torch"


def test_what_no_node_is_large_enough_for_is_not_waited_for() -> None:
    cluster = elastic()
    join(cluster, "n1", "host")
    cluster.advance(HOUR)
    cluster.submit(spec(2001, **TORCH), "never")
    (rejected,) = of(cluster.settle(), e.JobRejected)
    assert rejected.reasons[0].detail == "no node is large enough for a member"
    assert not hinted(cluster)


@pytest.mark.parametrize(("busy", "where"), [((), "s1"), (("a1",), "s2"), (("a1", "b2"), "s1")])
def test_a_gang_that_stays_below_one_switch_has_its_image_fetched_there(busy: tuple[str, ...], where: str) -> None:
    cluster = elastic()
    below = {"s1": ("a1", "b1"), "s2": ("a2", "b2"), "s3": ("a3",)}
    for switch, names in below.items():
        for name in names:
            join(cluster, name, "host", switch=switch)
    for name in busy:
        others = [other for other in cluster.state.nodes if other != name]
        cluster.append("gateway", "g1", *(drain(cluster, other) for other in others))
        run(cluster, f"on {name}".replace(" ", "-"), spec(2000))
        cluster.append("gateway", "g1", *(resume(cluster, other) for other in others))
    cluster.submit(spec(2000, **TORCH, gang=2, communication="intensive"), "gang")
    cluster.settle()
    assert hinted(cluster) == list(below[where])
    for name in below[where]:
        told(cluster, name, "host", "torch")
    cluster.settle()
    for name in busy:
        if cluster.members(f"on-{name}")[0].node in below[where]:
            cluster.exit(f"on-{name}", "completed")
    cluster.settle()
    assert sorted(nodes_of(cluster, "gang")) == list(below[where])


def drain(cluster: Cluster, name: str) -> e.NodeDrainRequested:
    stamp = {"id": f"drain-{name}-{len(cluster.frames)}", "at_ns": cluster.now}
    return e.NodeDrainRequested(**stamp, actor="ada", node=name, deadline_ns=cluster.now)


def resume(cluster: Cluster, name: str) -> e.NodeResumeRequested:
    return e.NodeResumeRequested(id=f"resume-{name}-{len(cluster.frames)}", at_ns=cluster.now, actor="ada", node=name)


def test_a_dry_run_says_that_it_waits_for_the_image() -> None:
    cluster = elastic()
    join(cluster, "n1", "host")
    cluster.advance(HOUR)
    found = dry_run(cluster.state, spec(2000, **TORCH), cluster.now)
    assert (found.verdict, found.reasons[0].code) == ("waits", "NoNode")
    assert "yet" in found.reasons[0].detail
    told(cluster, "n1", "host", unavailable=("torch",))
    cluster.advance(HOUR)
    assert dry_run(cluster.state, spec(2000, **TORCH), cluster.now).verdict == "never"


def test_of_a_node_without_the_image_it_is_said_whether_it_may_get_it() -> None:
    cluster = elastic()
    join(cluster, "fetches", "torch", cpu=100)
    join(cluster, "failed", "other")
    join(cluster, "never", "other", fetches=False)
    join(cluster, "may", "other")
    told(cluster, "failed", "other", unavailable=("torch",))
    cluster.submit(spec(1000, **TORCH), "job")
    cluster.settle()
    said = {each.node: (each.code, each.detail) for each in verdicts(cluster.state, cluster.job("job"), cluster.now)}
    assert said["failed"] == ("Image", "it could not get the image torch")
    assert said["never"] == ("Image", "it has no image torch, and fetches none")
    assert said["may"] == ("Image", "it has no image torch, which it may get")
