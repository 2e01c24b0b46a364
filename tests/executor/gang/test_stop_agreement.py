"""Ranks on different nodes stop at one call whatever the network does to the agents' messages, and always in time."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_events import subjects
from tidegate_events.orders import GangPlace, SandboxOrder
from tidegate_executor.channel.stop_group import FOLLOW_SECONDS_MAX, LEAD_SECONDS_MAX
from tidegate_executor.gang import messages
from tidegate_executor.gang.attempt import GangAttempt
from tidegate_executor.gang.exchange import GangExchange
from tidegate_executor.gang.messages import Message
from tidegate_executor.gang.stop_agreement import StopAgreement, Votes

from tests.executor.agent.conftest import component, job
from tests.executor.gang.virtual_time import run

GRACE_SECONDS = 60
WARM_SECONDS = 2.0
GROUP = "learner/0"


def place(node: int, nodes: tuple[str, ...], ranks_each: int) -> SandboxOrder:
    order = job("g", component("learn", "", kind="learner"), gang_size=len(nodes) * ranks_each)
    gang = GangPlace(nodes=nodes, node_rank=node, local_size=ranks_each)
    return SandboxOrder(**{name: getattr(order, name) for name in order.__struct_fields__ if name != "gang"}, gang=gang)


class Network:
    """Carries the agents' messages: late, twice, in another order or not at all; each as its bytes on the wire."""

    def __init__(self, chance: random.Random, *, lost: float, late_seconds: float, twice: float) -> None:
        self._chance, self._lost, self._late, self._twice = chance, lost, late_seconds, twice
        self.agents: dict[str, GangExchange] = {}
        self.shared: dict[str, GangAttempt] = {}
        self.cut: set[str] = set()

    def send_from(self, sender: str) -> Callable[[str, Message], None]:
        def send(receiver: str, message: Message) -> None:
            data = messages.encode(message)
            for _ in range(1 + (self._chance.random() < self._twice)):
                if self._chance.random() >= self._lost:
                    late = self._chance.uniform(0.0, self._late)
                    asyncio.get_running_loop().call_later(late, self._deliver, sender, receiver, data)

        return send

    def _deliver(self, sender: str, receiver: str, data: bytes) -> None:
        if not self.cut & {sender, receiver}:
            # A node whose members have left still answers.
            self.agents[receiver].on_message(subjects.gang(sender, receiver), data, lambda _job, _attempt: True)


class Process:
    """A rank as stop.StopGate behaves, without threads: it calls at its own pace, and a held call waits."""

    def __init__(self, name: str, agent: GangAttempt, pace_seconds: float, left: Callable[[], None]) -> None:
        self._name, self._agent, self._pace, self._left = name, agent, pace_seconds, left
        self.calls = 0
        self.held = self.waiting = False
        self.stop_at: int | None = None
        self.stopped_at: int | None = None
        self.told_at: float | None = None
        self._receive = self._on_stop  # one object, by which the group knows the connection
        agent.stops.join(name, GROUP, None, self._receive)
        self._later(pace_seconds, self._call)

    def _later(self, seconds: float, what: Callable[..., None], *given: Any) -> None:
        asyncio.get_running_loop().call_later(seconds, what, *given)

    def _call(self) -> None:
        if self.held and self.stop_at is None:
            self.waiting = True
            return
        index, self.calls = self.calls, self.calls + 1
        if self.stop_at is not None and index >= self.stop_at:
            self.stopped_at = index
            self._agent.stops.leave(self._name, GROUP, self._receive)
            self._left()
        else:
            self._later(self._pace, self._call)

    def _on_stop(self, message: dict[str, Any]) -> None:
        self._later(0.001, self._take, message)

    def _take(self, message: dict[str, Any]) -> None:
        self.held = True
        if self.stop_at is None and message["stop_at"] is not None:
            self.stop_at = message["stop_at"]
            self.told_at = asyncio.get_running_loop().time()
            if self.waiting:
                self._call()
        if self.stopped_at is None:
            answer = (message["vote"], self.calls, self.stop_at)
            self._later(0.001, self._agent.stops.answer, self._name, GROUP, answer)


async def stop_a_gang(nodes: int, ranks_each: int, network: Network, chance: random.Random) -> list[Process]:
    """Order each node at its own moment to stop; return the processes when all have stopped."""
    names = tuple(f"n{number}" for number in range(nodes))
    for number, name in enumerate(names):
        network.agents[name] = agent = GangExchange(name)
        agent._send = network.send_from(name)  # type: ignore[method-assign]
        for _ in range(ranks_each):
            network.shared[name] = agent.take(place(number, names, ranks_each))
        network.shared[name].stops.opened()
    processes = [
        Process(
            f"{name}/{rank}",
            network.shared[name],
            chance.uniform(0.01, 0.03),
            functools.partial(network.agents[name].give_back, "g", 1),
        )
        for name in names
        for rank in range(ranks_each)
    ]
    deadline_ns = time.time_ns() + GRACE_SECONDS * 1_000_000_000
    for agent in network.shared.values():
        when = WARM_SECONDS + chance.uniform(0.0, 2.0)
        asyncio.get_running_loop().call_later(when, agent.stops.order, "preemption", deadline_ns)
    async with asyncio.timeout(GRACE_SECONDS):
        while any(process.stopped_at is None for process in processes):  # noqa: ASYNC110 - this time costs nothing
            await asyncio.sleep(0.1)
    return processes


def without(network: Network) -> set[tuple[str, ...]]:
    """Return who was left out of the decision, as each agent knows it."""
    return {agent._agreement.without for agent in network.shared.values() if agent._agreement is not None}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    nodes=st.integers(2, 4),
    ranks_each=st.integers(1, 2),
    lost=st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]),
    late_seconds=st.sampled_from([0.0, 0.5, 5.0]),
)
def test_ranks_stop_alike_when_all_agents_were_heard_and_always_in_time(
    seed: int, nodes: int, ranks_each: int, lost: float, late_seconds: float
) -> None:
    chance = random.Random(seed)
    network = Network(chance, lost=lost, late_seconds=late_seconds, twice=0.3)
    stopped: list[Process] = []

    async def scenario() -> None:
        stopped.extend(await stop_a_gang(nodes, ranks_each, network, chance))

    run(scenario())
    for process in stopped:
        assert process.told_at is not None
        assert process.told_at <= WARM_SECONDS + 2.0 + FOLLOW_SECONDS_MAX + 0.1
    if without(network) == {()}:
        assert len({process.stopped_at for process in stopped}) == 1
    for rank in range(ranks_each, len(stopped), ranks_each):
        alike = {process.stopped_at for process in stopped[rank - ranks_each : rank]}
        assert len(alike) == 1, "ranks of one node vote in one place"
    if lost == 0.0 and late_seconds < 1.0:
        assert without(network) == {()}, "a network that only delays and repeats keeps nobody out"


@pytest.mark.parametrize("cut_off", ["n0", "n1"])
def test_a_node_that_is_cut_off_keeps_the_others_for_a_bounded_time(cut_off: str) -> None:
    chance = random.Random(7)
    network = Network(chance, lost=0.0, late_seconds=0.1, twice=0.0)
    network.cut.add(cut_off)
    stopped: list[Process] = []

    async def scenario() -> None:
        stopped.extend(await stop_a_gang(3, 1, network, chance))

    run(scenario())
    bound = LEAD_SECONDS_MAX if cut_off != "n0" else FOLLOW_SECONDS_MAX
    assert all(process.told_at is not None and process.told_at <= WARM_SECONDS + 2 + bound + 2 for process in stopped)
    agreements = [agent._agreement for agent in network.shared.values()]
    assert all(agreement is not None and agreement.without for agreement in agreements[:1]), "the leading node says so"


# The pure part alone ------------------------------------------------------------------------------------------------


def leading() -> StopAgreement:
    agreement = StopAgreement("a", ("a", "b", "c"))
    agreement.order(10.0, 12.0)
    return agreement


def test_the_largest_count_of_each_group_is_agreed_on() -> None:
    agreement = leading()
    agreement.note(Votes({"x": 4}), 0.0)
    agreement.on_votes("b", Votes({"x": 7, "y": 2}), 1.0)
    assert agreement.stop_at is None
    assert agreement.untold == ("c",)
    agreement.on_votes("c", Votes({}), 1.0)
    assert agreement.stop_at == {"x": 7, "y": 2}
    assert agreement.without == ()
    assert agreement.untold == ("b", "c"), "until they say that they know it"


def test_an_older_word_that_comes_late_takes_nothing_back() -> None:
    agreement = leading()
    agreement.on_votes("b", Votes({"x": 9}), 0.0)
    agreement.on_votes("b", Votes({"x": 3}), 0.1)
    agreement.on_votes("b", Votes(None), 0.2)
    agreement.note(Votes({"x": 4}), 0.3)
    agreement.on_votes("c", Votes({"x": 5}), 0.4)
    assert agreement.stop_at == {"x": 9}


def test_where_a_group_stops_already_the_others_follow() -> None:
    """An agent that started again knows by its processes what it had told them before."""
    agreement = leading()
    agreement.note(Votes({"x": 4}), 0.0)
    agreement.on_votes("b", Votes({}, {"x": 12}), 0.0)
    agreement.on_votes("c", Votes({"x": 6}), 0.0)
    assert agreement.stop_at == {"x": 12}


def test_a_node_without_members_is_not_waited_for() -> None:
    agreement = leading()
    agreement.note(Votes({"x": 4}), 0.0)
    agreement.on_votes("b", Votes(None), 0.0, gone=True)
    agreement.on_votes("c", Votes({"x": 2}), 0.0)
    assert agreement.stop_at == {"x": 4}
    assert agreement.without == ()


def test_a_node_stops_by_its_own_vote_at_once_when_the_leading_one_has_no_member_left() -> None:
    agreement = StopAgreement("b", ("a", "b"))
    agreement.order(10.0, 12.0)
    agreement.on_leader_gone(0.0)
    assert agreement.stop_at is None, "its own votes are still open"
    agreement.note(Votes({"x": 3}), 0.5)
    assert agreement.stop_at == {"x": 3}
    assert agreement.without == ("a",)


def test_the_first_decision_counts_and_only_the_leading_nodes() -> None:
    agreement = StopAgreement("b", ("a", "b"))
    agreement.on_decision({"x": 3})
    agreement.on_decision({"x": 5})
    agreement.order(10.0, 12.0)
    agreement.note(Votes({"x": 1}), 0.0)
    agreement.tick(50.0)
    assert agreement.stop_at == {"x": 3}
    leader = leading()
    leader.on_decision({"x": 3})
    assert leader.stop_at is None


def test_a_stranger_is_not_heard() -> None:
    agreement = leading()
    agreement.note(Votes({"x": 4}), 0.0)
    for stranger in ("z", "a"):
        agreement.on_votes(stranger, Votes({"x": 100}), 0.0)
    agreement.tick(10.0)
    assert agreement.stop_at == {"x": 4}
    assert agreement.without == ("b", "c")
