"""Orders are derived from the state, and go in messages that the bus takes."""

from __future__ import annotations

import msgspec
from tidegate_events.orders import encode
from tidegate_scheduler.orders import MESSAGE_BYTES_MAX, in_parts, orders_for

from tests.support.cluster import Cluster, spec


def test_orders_larger_than_a_message_go_in_parts_that_lose_nothing() -> None:
    cluster = Cluster()
    cluster.node("n1", 64_000, memory=1 << 20)
    for _ in range(30):
        cluster.submit(msgspec.structs.replace(spec(10), env={"LONG": "x" * 60_000}))
    cluster.settle()
    whole = orders_for(cluster.state, cluster.state.nodes["n1"])
    parts = in_parts(whole)
    assert len(encode(whole)) > MESSAGE_BYTES_MAX
    assert all(len(encode(part)) <= MESSAGE_BYTES_MAX for part in parts)
    assert tuple(order for part in parts for order in part.sandboxes) == whole.sandboxes
    assert {(part.epoch, part.at_seq) for part in parts} == {(whole.epoch, whole.at_seq)}


def test_orders_that_fit_stay_one_message() -> None:
    cluster = Cluster()
    cluster.node("n1")
    cluster.submit(spec(10))
    cluster.settle()
    whole = orders_for(cluster.state, cluster.state.nodes["n1"])
    assert in_parts(whole) == [whole]
    assert whole.sandboxes[0].desired == "run"
