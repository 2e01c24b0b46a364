"""What nodes say of their images, one by one, comes to the same as what agents said once: all of them at a time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_executor.image_news import Images, since

from tests.support.cluster import Cluster
from tests.support.images import say_images

HOST, SIM, OTHER = {"host": "b3:host"}, {"sim": "b3:sim"}, {"sim": "b3:other"}


def a_node() -> Cluster:
    cluster = Cluster()
    joined = e.NodeJoined(
        id="join",
        at_ns=cluster.now,
        node="n1",
        incarnation=1,
        capacity=Resources(2000, 8192),
        levels=("trusted",),
        images=HOST,
        fetches_images=True,
    )
    cluster.append("node", "n1", joined)
    for image in ("sim", "torch"):
        hint = e.ImagePrefetchHinted(id=f"hint-{image}", at_ns=cluster.now, node="n1", image=image)
        cluster.append("scheduler", cluster.leader, hint)
    return cluster


@pytest.mark.parametrize(
    ("images", "unavailable"),
    [
        (HOST | SIM, ()),
        (HOST, ("torch",)),
        (HOST | SIM, ("torch",)),
        ({}, ()),
        (SIM, ()),
        (HOST | OTHER, ("sim",)),
    ],
)
def test_one_by_one_is_as_all_at_a_time(images: dict[str, str], unavailable: tuple[str, ...]) -> None:
    one_by_one, at_a_time = a_node(), a_node()
    say_images(one_by_one, "n1", HOST | SIM)
    say_images(one_by_one, "n1", images, unavailable)
    for number, there in enumerate((HOST | SIM, images)):
        changed = e.NodeImagesChanged(
            id=f"c{number}",
            at_ns=at_a_time.now,
            node="n1",
            incarnation=1,
            images=there,
            unavailable=unavailable if number else (),
        )
        at_a_time.append("node", "n1", changed)
    assert one_by_one.state.nodes["n1"] == at_a_time.state.nodes["n1"]


def test_what_another_start_of_the_agent_says_is_void() -> None:
    cluster = a_node()
    before = msgspec.structs.replace(cluster.state.nodes["n1"])
    say_images(cluster, "n1", HOST | SIM, ("torch",), incarnation=2)
    assert cluster.state.nodes["n1"] == before


def test_an_image_that_left_is_not_missed_where_its_name_is_anothers_by_now() -> None:
    cluster = a_node()
    say_images(cluster, "n1", HOST | OTHER)
    late = e.ImageEvicted(id="late", at_ns=cluster.now, node="n1", incarnation=1, image="sim", digest="b3:sim")
    cluster.append("node", "n1", late)
    assert cluster.state.nodes["n1"].images == HOST | OTHER


def test_only_differences_are_said_and_what_left_first() -> None:
    told = Images(digests=HOST | SIM, size_bytes={"b3:sim": 5}, unavailable=("a",))
    now = Images(digests=HOST | OTHER, size_bytes={"b3:other": 7}, unavailable=("a", "b"))
    assert since(told, told, ("n1", 3, 9)) == []
    about: dict[str, Any] = {"id": "", "at_ns": 9, "node": "n1", "incarnation": 3}
    assert since(told, now, ("n1", 3, 9)) == [
        e.ImageEvicted(**about, image="sim", digest="b3:sim", size_bytes=5),
        e.ImageCached(**about, image="sim", digest="b3:other", size_bytes=7),
        e.ImageUnavailable(**about, image="b"),
    ]
