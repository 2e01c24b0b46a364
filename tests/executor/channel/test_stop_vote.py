"""All ranks answer alike for each call index, and nobody waits for ever, whatever the order of events."""

import threading
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tidegate_executor.channel.stop_vote import Order, StopVote, Tell

NEVER = 1e9


class Process:
    """A rank as stop.StopGate behaves, without threads: a held call is answered when the decision comes."""

    def __init__(self) -> None:
        self.calls = 0
        self.held = False
        self.stop_at: int | None = None
        self.waiting = False
        self.answers: list[bool] = []
        self.inbox: list[Tell] = []
        self.outbox: list[tuple[str, int, int | None]] = []
        self.connected = False
        self.epoch = 0

    def call(self) -> None:
        self.calls += 1
        if not self.held:
            self.answers.append(False)
        elif self.stop_at is None:
            self.waiting = True
        else:
            self.answers.append(self.calls - 1 >= self.stop_at)

    def receive(self, tell: Tell) -> None:
        self.held = True
        if self.stop_at is None and tell.stop_at is not None:
            self.stop_at = tell.stop_at
            if self.waiting:
                self.waiting = False
                self.answers.append(self.calls - 1 >= self.stop_at)
        self.outbox.append((tell.order.vote, self.calls, self.stop_at))


class Vote(RuleBasedStateMachine):
    """Ranks connect, call, lose and regain their connection; messages take their time; the agent restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.ranks = {f"rank{index}": Process() for index in range(3)}
        self.gone: set[str] = set()
        self.vote = StopVote()
        self.agents = 1
        self.now = 0.0
        for name in self.ranks:
            self.connect(name)

    names = st.sampled_from(["rank0", "rank1", "rank2"])

    def connect(self, name: str) -> None:
        process = self.ranks[name]
        process.connected = True
        self.post(self.vote.join(name, process.stop_at, self.now))

    def post(self, tells: list[Tell]) -> None:
        for tell in tells:
            if self.ranks[tell.member].connected:
                self.ranks[tell.member].inbox.append(tell)

    @rule(name=names)
    def call(self, name: str) -> None:
        process = self.ranks[name]
        # Lock-step: a rank is never more than one call ahead of another one.
        slowest = min(other.calls - other.waiting for key, other in self.ranks.items() if key not in self.gone)
        if name not in self.gone and not process.waiting and process.calls <= slowest and True not in process.answers:
            process.call()

    @rule(name=names)
    def deliver(self, name: str) -> None:
        process = self.ranks[name]
        if process.inbox:
            process.receive(process.inbox.pop(0))

    @rule(name=names)
    def answer(self, name: str) -> None:
        process = self.ranks[name]
        if process.outbox:
            vote, calls, stop_at = process.outbox.pop(0)
            self.post(self.vote.answer(name, vote, calls, stop_at, self.now))

    @precondition(lambda self: self.vote.ordered is None)
    @rule()
    def order(self) -> None:
        everyone = all(process.connected or name in self.gone for name, process in self.ranks.items())
        order = Order(f"v{self.agents}", "preemption", 1, self.now + (not everyone), NEVER)
        self.post(self.vote.order(order, self.now))

    @rule()
    def order_again_with_another_deadline(self) -> None:
        if self.vote.ordered is not None:
            order = Order("other", "preemption", self.vote.ordered.deadline_ns + 1, self.now, NEVER)
            self.post(self.vote.order(order, self.now))

    @precondition(lambda self: self.agents < 3)
    @rule()
    def agent_restarts(self) -> None:
        """All connections break; the processes come back one by one before the new agent closes a vote."""
        ordered = self.vote.ordered is not None
        self.agents += 1
        self.vote = StopVote()
        self.now += 10
        if ordered:
            self.vote.order(Order(f"v{self.agents}", "preemption", 1, self.now + 1, NEVER), self.now)
        for process in self.ranks.values():
            process.inbox.clear()
            process.outbox.clear()
            process.connected = False

    @rule(name=names)
    def comes_back(self, name: str) -> None:
        if name not in self.gone and not self.ranks[name].connected:
            self.connect(name)

    @rule()
    def time_goes_on(self) -> None:
        if all(process.connected or name in self.gone for name, process in self.ranks.items()):
            self.now += 1
            self.post(self.vote.tick(self.now))

    @precondition(lambda self: len(self.gone) < 2)
    @rule(name=names)
    def leave(self, name: str) -> None:
        if name not in self.gone:
            self.gone.add(name)
            self.ranks[name].connected = False
            self.post(self.vote.leave(name, self.now))

    @invariant()
    def ranks_agree_on_every_call(self) -> None:
        # One that has left answered no call any more: what it said before matters to nobody.
        answers = [process.answers for name, process in self.ranks.items() if name not in self.gone]
        for index in range(max(map(len, answers))):
            assert len({given[index] for given in answers if index < len(given)}) == 1, answers

    def teardown(self) -> None:
        """Everything is delivered at last: then nobody may be waiting, and after an order all stop."""
        for name in self.ranks:
            self.comes_back(name)
        for _ in range(50):
            self.time_goes_on()
            for name, process in self.ranks.items():
                if name in self.gone:
                    continue
                while process.inbox:
                    self.deliver(name)
                while process.outbox:
                    self.answer(name)
                self.call(name)
            self.post(self.vote.tick(self.now))
        left = [process for name, process in self.ranks.items() if name not in self.gone]
        assert not any(process.waiting for process in left)
        self.ranks_agree_on_every_call()
        if self.vote.ordered is not None:
            assert all(True in process.answers for process in left)


Vote.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestVote = Vote.TestCase


def order(decide_by: float = 5.0) -> Order:
    return Order("v1", "preemption", 1, 0.0, decide_by)


def test_a_member_that_does_not_answer_keeps_the_others_for_a_bounded_time() -> None:
    vote = StopVote()
    vote.join("a", None, 0.0)
    vote.join("b", None, 0.0)
    assert [tell.stop_at for tell in vote.order(order(), 0.0)] == [None, None]
    assert vote.answer("a", "v1", 7, None, 1.0) == []
    assert vote.wake_at() == 5.0
    assert {tell.member: tell.stop_at for tell in vote.tick(5.0)} == {"a": 7, "b": 7}


def test_a_member_that_leaves_is_not_waited_for() -> None:
    vote = StopVote()
    vote.join("a", None, 0.0)
    vote.join("b", None, 0.0)
    vote.order(order(), 0.0)
    vote.answer("a", "v1", 7, None, 1.0)
    assert [(tell.member, tell.stop_at) for tell in vote.leave("b", 2.0)] == [("a", 7)]


def test_a_process_started_after_all_voters_are_gone_stops_at_once() -> None:
    vote = StopVote()
    vote.join("a", None, 0.0)
    vote.order(order(), 0.0)
    vote.answer("a", "v1", 500, None, 1.0)
    vote.leave("a", 2.0)
    assert [tell.stop_at for tell in vote.join("a2", None, 3.0)] == [0]


def test_an_answer_to_an_earlier_vote_does_not_count() -> None:
    vote = StopVote()
    vote.join("a", None, 0.0)
    vote.order(order(), 0.0)
    assert vote.answer("a", "v0", 3, None, 1.0) == []
    assert not vote.decided


def test_after_a_restart_the_vote_waits_for_those_that_come_back_later() -> None:
    vote = StopVote()
    vote.order(Order("v1", "preemption", 1, 1.0, 5.0), 0.0)
    vote.join("a", None, 0.1)
    assert vote.answer("a", "v1", 0, None, 0.2) == [], "b has made a call and is on its way back"
    assert vote.wake_at() == 1.0
    vote.join("b", None, 0.5)
    assert vote.tick(1.0) == []
    assert {tell.member: tell.stop_at for tell in vote.answer("b", "v1", 1, None, 1.1)} == {"a": 1, "b": 1}


def test_a_decision_of_an_earlier_agent_stands() -> None:
    vote = StopVote()
    vote.order(Order("v2", "preemption", 1, 1.0, 5.0), 0.0)
    vote.join("a", None, 0.1)
    assert {tell.member: tell.stop_at for tell in vote.join("b", 40, 0.2)} == {"a": 40, "b": 40}


# With the real gate, over real sockets ------------------------------------------------------------------------------


def run_ranks(jobs: list[Any], per_rank_delay: list[float]) -> list[int]:
    """Call should_stop() in each rank until it says so; return how many calls each made."""
    barrier = threading.Barrier(len(jobs))
    counts = [0] * len(jobs)

    def work(index: int) -> None:
        stop = False
        while not stop:
            barrier.wait(20)
            threading.Event().wait(per_rank_delay[index])
            stop = jobs[index].should_stop()
            counts[index] += 1

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return counts


@pytest.mark.parametrize("restart", [False, True])
def test_lock_step_ranks_stop_at_the_same_call(agent: Any, join: Any, restart: bool) -> None:
    jobs = [join(rank=rank) for rank in range(3)]
    timers = [threading.Timer(0.1, agent.order_stop)]
    if restart:

        def again() -> None:
            agent.stop()
            agent.start()
            agent.order_stop()

        timers.append(threading.Timer(0.1005, again))
    for timer in timers:
        timer.start()
    counts = run_ranks(jobs, [0.0, 0.002, 0.004])
    for timer in timers:
        timer.join()
    assert len(set(counts)) == 1
    assert {job.stop_reason for job in jobs} == {"preemption"}
    assert 0 < jobs[0].stop_seconds_left <= 60
    assert agent.servers[0].polls_stop


def test_other_components_do_not_vote_with_the_learner(agent: Any, join: Any, wait_for: Any) -> None:
    learner, simulator = join(), join(component="simulator", replica=1)
    for _ in range(5000):
        simulator.should_stop()
    learner.should_stop()
    agent.order_stop()
    wait_for(lambda: learner.stop_ordered and simulator.stop_ordered)
    assert learner.should_stop()
    assert simulator.should_stop()


def test_replicas_of_one_stop_group_vote_together(agent: Any, join: Any, wait_for: Any) -> None:
    one, two = (join(component="simulator", replica=index, group="all") for index in range(2))
    one.should_stop()
    agent.order_stop()
    wait_for(lambda: one.stop_ordered and two.stop_ordered)
    assert [two.should_stop(), two.should_stop()] == [False, True]
    assert one.should_stop()


def test_a_rank_that_connects_after_the_decision_follows_it(agent: Any, join: Any, wait_for: Any) -> None:
    early = join(rank=0)
    early.should_stop()
    early.should_stop()
    agent.order_stop()
    wait_for(lambda: early.stop_ordered)
    assert early.should_stop()
    late = join(rank=1)
    wait_for(lambda: late.stop_ordered)
    assert [late.should_stop() for _ in range(3)] == [False, False, True]


def test_a_held_call_is_answered_when_the_agent_never_comes_back(
    agent: Any, join: Any, wait_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.stop.HOLD_SECONDS_MAX", 0.3)
    job = join()
    silent = join(rank=1)
    silent._gate.on_stop = lambda message: {"kind": "stop_count", "vote": "stale", "calls": 0}
    agent.order_stop()
    wait_for(lambda: job.stop_ordered)
    agent.stop()
    assert job.should_stop()
