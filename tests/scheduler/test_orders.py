"""Orders are derived from the state, and go in messages that the bus takes."""

from __future__ import annotations

import msgspec
from tidegate_events.orders import LOOPBACK, GangPlace, encode
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


def test_each_member_of_a_gang_is_told_its_place_in_it() -> None:
    cluster = Cluster()
    cluster.node("n1", 2000)
    cluster.node("n2", 3000)
    cluster.state.nodes["n2"].address = "10.0.0.2"
    job = cluster.submit(spec(1000, gang=5))
    cluster.settle()
    orders = [orders_for(cluster.state, node).sandboxes for node in cluster.state.nodes.values()]
    placed = sorted((order.rank, node, order.gang) for node, of in enumerate(orders) for order in of)
    nodes_of = {member.rank: member.node for member in cluster.state.jobs[job].members}
    first = {"n1": LOOPBACK, "n2": "10.0.0.2"}[nodes_of[0]]
    expected_nodes = tuple(dict.fromkeys(nodes_of[rank] for rank in range(5)))
    seen: dict[str, int] = {}
    for rank, _, place in placed:
        node = nodes_of[rank]
        assert place == GangPlace(
            nodes=expected_nodes,
            node_rank=expected_nodes.index(node),
            local_rank=seen.get(node, 0),
            local_size=list(nodes_of.values()).count(node),
            master_address=first,
        )
        seen[node] = seen.get(node, 0) + 1
    assert set(seen) == {"n1", "n2"}


def test_a_job_of_one_member_has_no_place_to_be_told() -> None:
    cluster = Cluster()
    cluster.node("n1")
    cluster.submit(spec(10))
    cluster.settle()
    (order,) = orders_for(cluster.state, cluster.state.nodes["n1"]).sandboxes
    assert order.gang is None
    assert b'"gang"' not in encode(orders_for(cluster.state, cluster.state.nodes["n1"]))
