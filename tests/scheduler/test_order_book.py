"""Orders that are kept up are those derived anew, whatever happens; each node is told what changed, and all in turn."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant
from tidegate_events import events as e
from tidegate_events.orders import NodeOrders, SandboxOrder
from tidegate_scheduler import order_book
from tidegate_scheduler.order_book import OrderBook
from tidegate_scheduler.orders import orders_for

from tests.scheduler.test_hostile_machine import HostileMachine
from tests.scheduler.test_machine import NODES
from tests.support.cluster import Cluster, spec

RESEND_SECONDS = 2.0
TICK_SECONDS = 0.5


def turn(book: OrderBook, now: float) -> dict[str, NodeOrders]:
    """Let the book have a turn in which every message arrives; return who was told what."""
    said: dict[str, NodeOrders] = {}
    for name in book.due(now):
        orders = book.orders(name)
        if orders is not None:
            book.told(orders, now)
            said[name] = orders
    return said


def made(cluster: Cluster, rate: float = 1000.0) -> OrderBook:
    return OrderBook(cluster.state, resend_seconds=RESEND_SECONDS, resends_per_second=rate)


def cluster_of(nodes: int) -> Cluster:
    cluster = Cluster()
    for number in range(nodes):
        cluster.node(f"n{number:03d}", 1000)
    return cluster


class ToldMachine(HostileMachine):
    """Nodes remember what they were told last, and are told nothing again only because time passed."""

    def __init__(self) -> None:
        super().__init__()
        self.book = OrderBook(self.cluster.state, resend_seconds=float("inf"), resends_per_second=1.0)
        self.told: dict[str, tuple[int, tuple[SandboxOrder, ...]]] = {}

    def _join(self, name: str, held: list[e.HeldSandbox]) -> None:
        self.incarnations[name] += 1
        cpu, gpus = NODES[name]
        incarnation = self.incarnations[name]
        self.cluster.node(
            name, cpu, gpus=gpus, incarnation=incarnation, held=held, address=f"10.0.0.{incarnation // 2 % 3}"
        )

    @invariant()
    def every_node_was_told_what_is_wanted_of_it(self) -> None:
        state = self.cluster.state
        for name in NODES:
            there = [job.id for job in state.jobs.values() if any(member.node == name for member in job.members)]
            assert [job.id for job in state.seats.on(name)] == there
        while True:
            said = turn(self.book, 0.0)
            for name, orders in said.items():
                self.told[name] = (orders.incarnation, orders.sandboxes)
            if not self.book.behind:
                break
        for name, node in state.nodes.items():
            wanted = orders_for(state, node)
            assert self.told[name] == (wanted.incarnation, wanted.sandboxes), name
        assert turn(self.book, 0.0) == {}, "it would be said again for nothing"


ToldMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=35, deadline=None)
TestTold = ToldMachine.TestCase


def test_a_new_term_tells_every_node_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_book, "UNTOLD_PER_TURN", 4)
    cluster = cluster_of(10)
    book = made(cluster)
    said = [set(turn(book, 0.0)) for _ in range(3)]
    assert [len(each) for each in said] == [4, 4, 2]
    assert set.union(*said) == set(cluster.state.nodes)
    assert not book.behind


def test_only_who_is_concerned_is_told_of_a_change() -> None:
    cluster = cluster_of(5)
    book = made(cluster)
    turn(book, 0.0)
    job = cluster.submit(spec(900))
    cluster.settle()
    (node,) = cluster.state.seats.nodes_of(job)
    said = turn(book, 0.1)
    assert [(name, orders.sandboxes[0].job) for name, orders in said.items()] == [(node, job)]
    cluster.start(job)
    assert turn(book, 0.2) == {}, "that it started changes nothing of what is wanted"
    cluster.exit(job, "completed")
    assert {name: orders.sandboxes for name, orders in turn(book, 0.3).items()} == {node: ()}


def test_a_hint_is_told_while_somebody_waits_for_the_image() -> None:
    cluster = cluster_of(2)
    book = made(cluster)
    turn(book, 0.0)
    hinted = e.ImagePrefetchHinted(id="h", at_ns=cluster.now, node="n001", image="sim")
    cluster.append("scheduler", cluster.leader, hinted)
    assert turn(book, 0.1) == {}, "nobody waits for it"
    job = cluster.submit(spec(900, image="sim"))
    assert turn(book, RESEND_SECONDS)["n001"].prefetch == ("sim",)
    assert turn(book, RESEND_SECONDS + 0.1) == {}
    cluster.cancel(job)
    cluster.settle()
    told = turn(book, 2 * RESEND_SECONDS + 1)
    assert {name: orders.prefetch for name, orders in told.items()} == {"n000": (), "n001": ()}


def test_what_changed_for_many_waits_for_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_book, "CHANGED_PER_TURN", 2)
    cluster = cluster_of(5)
    book = made(cluster)
    turn(book, 0.0)
    for _ in range(5):
        cluster.submit(spec(900))
    cluster.settle()
    said = []
    for _ in range(3):
        said.append(set(turn(book, 0.1)))
        assert book.behind is (len(said) < 3)
    assert [len(each) for each in said] == [2, 2, 1]
    assert set.union(*said) == set(cluster.state.nodes)


@pytest.mark.parametrize(("nodes", "rate"), [(20, 1000.0), (40, 4.0)])
def test_a_lost_order_is_made_up_for_within_the_bound(nodes: int, rate: float) -> None:
    cluster = cluster_of(nodes)
    book = made(cluster, rate)
    turn(book, 0.0)
    last = dict.fromkeys(cluster.state.nodes, 0.0)
    bound = max(RESEND_SECONDS, nodes / rate) + 2 * TICK_SECONDS
    told, now = 0, 0.0
    while now < 5 * bound:
        now += TICK_SECONDS
        for name in turn(book, now):
            assert now - last[name] <= bound
            last[name] = now
            told += 1
    assert min(last.values()) >= now - bound
    assert told <= rate * (now + 1), "more often than the bus was promised"
    assert told <= nodes * now / RESEND_SECONDS


def test_a_node_on_which_something_happens_all_the_time_is_told_again_too() -> None:
    cluster = cluster_of(1)
    job = cluster.submit(spec(900))
    cluster.settle()
    cluster.start(job)
    book = made(cluster)
    turn(book, 0.0)
    told, now = 0, 0.0
    for permille in range(20):
        now += TICK_SECONDS
        cluster.node_fact(job, cluster.members(job)[0], e.ProgressReported, progress_millis=permille, _node=False)
        told += len(turn(book, now))
    assert told == 20 * TICK_SECONDS / RESEND_SECONDS


def test_a_node_whose_agent_joined_again_is_told_at_once() -> None:
    cluster = cluster_of(3)
    book = made(cluster)
    turn(book, 0.0)
    cluster.node("n001", 1000, incarnation=2)
    assert {name: orders.incarnation for name, orders in turn(book, 0.1).items()} == {"n001": 2}
    cluster.node("n007", 1000)
    assert set(turn(book, 0.2)) == {"n007"}


def test_a_node_that_is_heard_again_is_told_what_it_may_have_missed() -> None:
    cluster = cluster_of(2)
    book = made(cluster)
    turn(book, 0.0)
    cluster.silence("n000")
    turn(book, 0.1)
    heard = e.NodeReachable(id="heard", at_ns=cluster.now, node="n000", incarnation=1)
    cluster.append("scheduler", cluster.leader, heard)
    assert set(turn(book, 0.2)) == {"n000"}


def test_a_gang_elsewhere_is_told_where_its_first_member_is_now() -> None:
    cluster = cluster_of(2)
    job = cluster.submit(spec(900, gang=2))
    cluster.settle()
    book = made(cluster)
    turn(book, 0.0)
    first = cluster.members(job)[0]
    held = [e.HeldSandbox(job=job, attempt=1, rank=first.rank)]
    cluster.node(first.node, 1000, incarnation=2, held=held, address="10.0.0.9")
    said = turn(book, 0.1)
    assert set(said) == {"n000", "n001"}
    places = [order.gang for orders in said.values() for order in orders.sandboxes]
    assert [place.master_address for place in places if place is not None] == ["10.0.0.9"] * 2


def test_what_could_not_be_said_is_said_at_the_next_turn() -> None:
    cluster = cluster_of(1)
    book = made(cluster)
    for name in book.due(0.0):
        assert book.orders(name) is not None  # and the bus goes away before it is told
    assert book.behind
    assert set(turn(book, 0.1)) == {"n000"}
    cluster.submit(spec(900))
    cluster.settle()
    assert [book.orders(name) is not None for name in book.due(0.2)] == [True]
    assert len(turn(book, 0.3)["n000"].sandboxes) == 1


def test_a_closed_book_follows_nothing() -> None:
    cluster = cluster_of(1)
    book = made(cluster)
    turn(book, 0.0)
    book.close()
    cluster.submit(spec(900))
    cluster.settle()
    assert turn(book, 0.1) == {}


def test_a_zombie_whose_job_becomes_known_is_named_by_it() -> None:
    cluster = Cluster()
    cluster.node("n1", held=[e.HeldSandbox(job="j", attempt=1, rank=0)])
    book = made(cluster)
    assert turn(book, 0.0)["n1"].sandboxes[0].tenant == "unknown"
    cluster.submit(spec(900, tenant="lab"), "j")
    assert turn(book, 0.1)["n1"].sandboxes[0].tenant == "lab"


def test_nothing_is_kept_of_a_gang_that_came_and_went_between_two_turns() -> None:
    cluster = cluster_of(2)
    book = made(cluster)
    due = book.due(0.0)
    job = cluster.submit(spec(900, gang=2))
    cluster.settle()
    assert [len(orders.sandboxes) for name in due if (orders := book.orders(name)) is not None] == [1, 1]
    cluster.cancel(job)
    cluster.settle()
    cluster.exit(job, "stopped")
    turn(book, 1.0)
    assert cluster.stage(job) == "cancelled"
    assert book.gangs_known == 0
