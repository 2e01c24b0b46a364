"""The agents' messages: who is heard, what is said of an attempt that has ended, and that nothing piles up."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from tidegate_events import subjects
from tidegate_events.orders import GangPlace, SandboxOrder
from tidegate_executor.channel.stop_group import SETTLE_SECONDS
from tidegate_executor.gang import exchange, messages
from tidegate_executor.gang.exchange import GangExchange
from tidegate_executor.gang.messages import Joined, Led, Message

from tests.executor.agent.conftest import component, job

NODES = ("n1", "n2", "n3")


def order(node_rank: int, attempt: int = 1) -> SandboxOrder:
    made = job("g", component("main", ""), gang_size=3)
    return msgspec.structs.replace(made, attempt=attempt, gang=GangPlace(nodes=NODES, node_rank=node_rank))


def hear(agent: GangExchange, sender: str, message: Message | bytes, begun: bool | None = None) -> None:
    data = message if isinstance(message, bytes) else messages.encode(message)
    agent.on_message(subjects.gang(sender, "here"), data, lambda _job, _attempt: begun)


def outgoing(agent: GangExchange) -> list[tuple[str, Message]]:
    sent = []
    while not agent._outgoing.empty():
        sent.append(agent._outgoing.get_nowait())
    return sent


MESSAGES = [
    Joined(job="g", attempt=1),
    Joined(job="g", attempt=1, ready=True, counts={"learner/0": 7}, known={"all": 3}, settled=True),
    Led(job="g", attempt=2, go=True, stop_at={}),
    Led(job="g", attempt=2, gone=True),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_come_back_equal(message: Message) -> None:
    assert messages.decode(messages.encode(message)) == message


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b'{"kind":"led","job":"g"}', b'{"kind":"joined","job":"g","attempt":1,"counts":{"x":-1}}'],
)
async def test_what_is_no_message_is_not_heard(data: bytes) -> None:
    agent = GangExchange("n1")
    agent.take(order(0))
    hear(agent, "n2", data)
    assert outgoing(agent) == []


async def test_only_the_leading_node_lets_begin_and_only_the_gangs_nodes_are_heard() -> None:
    follower = GangExchange("n2")
    member = follower.take(order(1))
    member.stands(1, asyncio.Event())
    assert [to for to, _ in outgoing(follower)] == ["n1"]
    hear(follower, "n3", Led(job="g", attempt=1, go=True))
    assert not member.may_begin
    hear(follower, "n1", Led(job="g", attempt=1, go=True))
    assert member.may_begin
    leader = GangExchange("n1")
    leading = leader.take(order(0))
    leading.stands(0, asyncio.Event())
    for sender in ("n2", "n9", "n1"):
        hear(leader, sender, Joined(job="g", attempt=1, ready=True))
    assert not leading.may_begin
    hear(leader, "n3", Joined(job="g", attempt=1, ready=True))
    assert leading.may_begin
    assert {to for to, message in outgoing(leader) if isinstance(message, Led) and message.go} == {"n2", "n3"}
    for agent in (follower, leader):
        agent.give_back("g", 1)


async def test_an_attempt_that_has_ended_here_is_said_to_be_gone_and_an_unknown_one_is_not() -> None:
    agent = GangExchange("n1")
    hear(agent, "n2", Joined(job="g", attempt=1, ready=True), begun=None)
    assert outgoing(agent) == []
    hear(agent, "n2", Joined(job="g", attempt=1, ready=True), begun=True)
    assert outgoing(agent) == [("n2", Led(job="g", attempt=1, gone=True, go=True))]
    hear(agent, "n2", Led(job="g", attempt=1), begun=False)
    assert outgoing(agent) == [("n2", Joined(job="g", attempt=1, gone=True, settled=True))]
    hear(agent, "n2", Led(job="g", attempt=1, gone=True), begun=True)
    assert outgoing(agent) == [], "two that are gone do not talk for ever"


async def test_where_a_gang_stops_is_still_told_when_the_leading_nodes_members_have_left() -> None:
    agent = GangExchange("n1")
    leading = agent.take(order(0))
    leading.stops.opened()
    leading.stops.order("preemption", time.time_ns() + 60_000_000_000)
    await asyncio.sleep(SETTLE_SECONDS)
    for sender in ("n2", "n3"):
        hear(agent, sender, Joined(job="g", attempt=1, ready=True, begun=True, counts={"learner/0": 9}))
    assert leading.stop_at == {"learner/0": 9}
    agent.give_back("g", 1)
    outgoing(agent)
    hear(agent, "n2", Joined(job="g", attempt=1, ready=True, counts={"learner/0": 4}), begun=True)
    assert outgoing(agent) == [("n2", Led(job="g", attempt=1, gone=True, go=True, stop_at={"learner/0": 9}))]


async def test_nothing_more_is_said_once_the_members_have_left() -> None:
    agent = GangExchange("n1")
    leading = agent.take(order(0))
    leading.stops.opened()
    leading.stops.join("p", "learner/0", None, (send := [].append))
    leading.stops.order("preemption", time.time_ns() + 60_000_000_000)
    agent.give_back("g", 1)
    outgoing(agent)
    leading.stops.leave("p", "learner/0", send)
    assert outgoing(agent) == []
    assert leading._timer is None or leading._timer.cancelled()


async def test_what_waits_for_the_bus_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "OUTGOING_MAX", 3)
    agent = GangExchange("n1")
    agent._outgoing = asyncio.Queue(exchange.OUTGOING_MAX)
    for _ in range(10):
        hear(agent, "n2", Joined(job="g", attempt=1), begun=True)
    assert len(outgoing(agent)) == 3
