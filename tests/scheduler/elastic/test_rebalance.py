"""Borrowers that wait for a phase while another node has what they wait for: who moves, who does not, and how often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, ResourceRange
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import asked_to_leave, elastic, leave, looked_up, nodes_of, of
from tests.scheduler.elastic.lent import applied, ask, borrower, enter, go, granted, lending, node, owner, run
from tests.scheduler.elastic.world import answers, told_anew
from tests.support.cluster import SECOND, Cluster, spec

LOW, HIGH = Resources(100, 100), Resources(3000, 100)
AFTER = 120
STAYS = 600


def learner(cpu: int = 3000, *, gpu_millis: int = 0, **more: Any) -> JobSpec:
    return borrower(low=LOW, high=Resources(cpu, 100, gpu_millis=gpu_millis), **more)


def uneven(parameters: Parameters | None = None, *, stays: int = STAYS) -> Cluster:
    """Two nodes for one learner each: on n1 are two, of which one learns, and on n2 there is none any more."""
    cluster = elastic(parameters)
    for name in ("n1", "n2"):
        node(cluster, name)
    for name in ("learns", "ended", "waits"):
        run(cluster, name, learner())
    assert [nodes_of(cluster, name) for name in ("learns", "ended", "waits")] == [["n1"], ["n2"], ["n1"]]
    cluster.save("waits", 1)
    cluster.exit("ended", "completed")
    go(cluster, "learns", "learning")
    cluster.advance(stays)
    return cluster


def test_who_waits_for_long_moves_to_where_it_is_granted_at_once() -> None:
    cluster = uneven()
    assert not granted(ask(cluster, "waits", "learning"))
    assert cluster.wake_at == cluster.now + AFTER * SECOND
    assert not asked_to_leave(cluster.advance(AFTER - 1))
    (asked,) = of(cluster.advance(1), e.PreemptRequested)
    assert (asked.job, asked.for_job, asked.reasons[0].code) == ("waits", "", "Rebalanced")
    assert asked.reasons[0].numbers == {"waited_seconds": AFTER}
    assert "n2 has what that needs" in asked.reasons[0].detail
    leave(cluster, "waits")
    assert nodes_of(cluster, "waits") == ["n2"]
    cluster.start("waits")
    assert granted(ask(cluster, "waits", "learning")) == {"waits": "learning"}
    assert cluster.job("waits").preemptions == 0, "it left for nobody"


def test_who_came_a_moment_ago_stays_for_a_while() -> None:
    cluster = uneven(stays=0)
    ask(cluster, "waits", "learning")
    assert not asked_to_leave(cluster.advance(STAYS - 1))
    assert asked_to_leave(cluster.advance(1)) == {"waits": ""}


def saved_nothing(cluster: Cluster) -> None:
    cluster.job("waits").checkpoints = []
    cluster.state.touch("job/waits")


def another_waits_there(cluster: Cluster) -> None:
    run(cluster, "there", learner(2000))
    run(cluster, "too", learner(3900))
    go(cluster, "there", "learning")
    ask(cluster, "too", "learning")


def something_runs_there(cluster: Cluster) -> None:
    cluster.submit(spec(1500, memory=100), "plain")
    cluster.settle()
    assert nodes_of(cluster, "plain") == ["n2"]


def as_much_is_asked_for_there(cluster: Cluster) -> None:
    for name in ("there", "too"):
        run(cluster, name, learner(3050))
    assert nodes_of(cluster, "there") == nodes_of(cluster, "too") == ["n2"]


def its_queue_is_stopped(cluster: Cluster) -> None:
    cluster.ask(e.QueueChanged, tenant="t", stopped=True)
    cluster.settle()


def the_node_is_drained(cluster: Cluster) -> None:
    cluster.ask(e.NodeDrainRequested, node="n2", deadline_ns=cluster.now + 10**6 * SECOND)
    cluster.settle()


@pytest.mark.parametrize(
    "but",
    [
        saved_nothing,
        another_waits_there,
        something_runs_there,
        as_much_is_asked_for_there,
        its_queue_is_stopped,
        the_node_is_drained,
    ],
)
def test_who_stays(but: Callable[[Cluster], None]) -> None:
    cluster = uneven()
    but(cluster)
    assert not granted(ask(cluster, "waits", "learning"))
    assert "waits" not in asked_to_leave(cluster.advance(10 * AFTER))
    assert cluster.stage("waits") == "running"


def test_nobody_moves_where_the_parameter_says_so() -> None:
    cluster = uneven(Parameters(rebalance_after_seconds=0))
    ask(cluster, "waits", "learning")
    assert not asked_to_leave(cluster.advance(10 * AFTER))


def test_an_owner_waits_for_its_own_where_it_is() -> None:
    cluster = lending(gpus=0)
    run(cluster, "owner", owner(low=LOW, high=Resources(1000, 4000)))
    run(cluster, "taker", borrower(low=LOW, high=Resources(1000, 4000)))
    node(cluster, "n2")
    cluster.save("owner", 1)
    cluster.advance(STAYS)
    go(cluster, "taker", "learning")
    assert not granted(ask(cluster, "owner", "learning"))
    assert asked_to_leave(cluster.advance(AFTER)) == {"taker": "owner"}
    assert cluster.stage("owner") == "running"


def test_one_moves_at_a_time_on_few_nodes() -> None:
    cluster = elastic()
    for name in ("n1", "n2", "n3"):
        node(cluster, name)
    jobs = [f"j{number}" for number in range(9)]
    for name in jobs:
        run(cluster, name, learner())
        cluster.save(name, 1)
    on_n1 = [name for name in jobs if nodes_of(cluster, name) == ["n1"]]
    for name in jobs:
        if name not in on_n1:
            cluster.exit(name, "completed")
    go(cluster, on_n1[0], "learning")
    cluster.advance(STAYS)
    for name in on_n1[1:]:
        ask(cluster, name, "learning")
    assert asked_to_leave(cluster.advance(AFTER)) == {on_n1[1]: ""}
    assert not asked_to_leave(cluster.advance(5)), "the first is on its way"
    assert asked_to_leave(leave(cluster, on_n1[1])) == {on_n1[2]: ""}
    leave(cluster, on_n1[2])
    assert sorted(nodes_of(cluster, name)[0] for name in on_n1) == ["n1", "n2", "n3"]


def test_an_index_that_was_kept_moves_whom_one_that_is_made_anew_does() -> None:
    cluster = uneven()
    ask(cluster, "waits", "learning")
    cluster.now += AFTER * SECOND
    found = answers(cluster.state, cluster.now)
    assert b"Rebalanced" in found[0]
    assert found == answers(told_anew(cluster.frames), cluster.now)
    assert found == answers(told_anew(cluster.frames, turned=True), cluster.now)


def test_nobody_moves_to_where_its_floor_has_no_room() -> None:
    """Simulators need CPU in the default phase, and learning a GPU and hardly any: both must be there."""
    cluster = elastic()
    cluster.node("n1", 8000, memory=5000, gpus=1)
    for name in ("learns", "waits"):
        run(cluster, name, borrower(low=Resources(3000, 100), high=Resources(500, 3000, 1)))
        cluster.save(name, 1)
    cluster.node("n2", 4000, memory=5000, gpus=1)
    run(cluster, "plain", spec(2500, memory=100))
    assert nodes_of(cluster, "plain") == ["n2"]
    go(cluster, "learns", "learning")
    cluster.advance(STAYS)
    assert not granted(ask(cluster, "waits", "learning"))
    assert not asked_to_leave(cluster.advance(STAYS + AFTER))


def test_nobody_moves_for_a_share_of_a_device_that_is_not_there() -> None:
    cluster = elastic()
    for name in ("n1", "n2"):
        cluster.node(name, 4000, memory=8000, gpus=1)
    for name in ("learns", "ended", "waits"):
        run(cluster, name, learner(gpu_millis=800))
    assert [nodes_of(cluster, name) for name in ("learns", "ended", "waits")] == [["n1"], ["n2"], ["n1"]]
    cluster.exit("ended", "completed")
    run(cluster, "plain", spec(100, memory=7850, gpus=1))
    assert nodes_of(cluster, "plain") == ["n2"]
    cluster.save("waits", 1)
    go(cluster, "learns", "learning")
    cluster.advance(STAYS)
    assert not granted(ask(cluster, "waits", "learning"))
    assert not asked_to_leave(cluster.advance(STAYS + AFTER))


def test_nobody_moves_for_room_that_a_job_will_have_which_the_pass_did_not_reach() -> None:
    cluster = uneven(Parameters(decisions_per_pass_max=1))
    ask(cluster, "waits", "learning")
    node(cluster, "n3", cpu=50, memory=100)
    cluster.advance(AFTER - 1)
    cluster.submit(spec(50, memory=50, priority=3), "first")
    cluster.submit(spec(4000, memory=4900, priority=2), "second")
    assert not asked_to_leave(cluster.advance(1))
    assert nodes_of(cluster, "second") == ["n2"]


# ---- where it may go ----


def crowded(*, memory: int = 250, gpus: int = 0, there: int = 2, high: Resources = HIGH, **more: Any) -> Cluster:
    """Two learners on n1, which has no memory for others; one of them learns. Then n2 came, so whoever comes is there.

    n1 has so many `gpus`, and n2 so many as `there` says.
    """
    cluster = elastic()
    node(cluster, "n1", memory=memory, gpus=gpus)
    for name in ("learns", "waits"):
        run(cluster, name, borrower(**({"low": LOW, "high": high} | more)))
        cluster.save(name, 1)
    learns(cluster, "learns")
    node(cluster, "n2", gpus=there)
    cluster.advance(STAYS)
    return cluster


def learns(cluster: Cluster, name: str) -> None:
    """All members of the job enter their learning phase."""
    ranks = tuple(member.rank for member in cluster.members(name))
    ask(cluster, name, "learning", ranks=ranks)
    for rank in ranks:
        enter(cluster, name, rank=rank)
        applied(cluster, name, rank=rank)


def moved(cluster: Cluster, seconds: int = STAYS + AFTER) -> bool:
    """Say whether the one that waits is asked to move once it has waited."""
    assert not granted(ask(cluster, "waits", "learning"))
    asked = of(cluster.advance(seconds), e.PreemptRequested)
    assert all(event.job == "waits" and event.reasons[0].code == "Rebalanced" for event in asked), asked
    return bool(asked)


def test_who_is_crowded_moves_to_a_node_with_room_for_its_phase() -> None:
    assert moved(crowded())


def test_nobody_moves_to_where_another_waits_though_it_would_be_granted_its_phase_there() -> None:
    cluster = crowded()
    run(cluster, "plain", spec(100, memory=3000))
    run(cluster, "there", borrower(low=LOW, high=Resources(100, 3000)))
    assert not granted(ask(cluster, "there", "learning"))
    assert not moved(cluster)
    assert asked_to_leave(cluster.exit("there", "completed")) == {"waits": ""}


def test_nobody_moves_to_memory_that_is_kept_for_others() -> None:
    cluster = crowded(memory=450, high=Resources(3000, 300))
    run(cluster, "plain", spec(10, memory=1000, gpus=1))
    cluster.submit(spec(10, memory=3800, gpus=2), "kept")
    cluster.settle()
    assert cluster.job("kept").reserved_nodes == ("n2",)
    assert not moved(cluster)
    cluster.cancel("kept")
    assert asked_to_leave(cluster.advance(1)) == {"waits": ""}


def test_nobody_moves_to_memory_in_which_there_are_simulators_that_were_added() -> None:
    cluster = crowded(memory=550, high=Resources(3000, 400))
    need = ResourceRange(minimum=Resources(10, 1550))
    sampler = Component(
        name="s", kind="simulator", command=("s",), replicas=1, replicas_max=3, resources={"default": need}
    )
    run(cluster, "sampler", JobSpec(name="j", tenant="t", submitter="u", components=(sampler,)))
    assert sum(quota.replicas or 0 for quota in cluster.members("sampler")[0].quotas) == 3
    assert not moved(cluster), "of 5000 MiB 350 are left, and 3100 are those of simulators"
    assert asked_to_leave(cluster.exit("sampler", "completed")) == {"waits": ""}


def test_nobody_moves_to_devices_that_are_leased_though_nobody_holds_them() -> None:
    cluster = crowded(gpus=1, high=Resources(200, 100, 1))
    run(cluster, "owner", owner(low=LOW, high=Resources(100, 4000, 2)))
    run(cluster, "taker", borrower(low=LOW, high=Resources(100, 100, 2)))
    go(cluster, "taker", "learning")
    cluster.exit("owner", "completed")
    assert looked_up(cluster).table.now_on(looked_up(cluster).table.rows["n2"])[2] == 2, "nobody holds them"
    assert not moved(cluster)
    assert asked_to_leave(go(cluster, "taker", "sampling")) == {"waits": ""}


def test_nobody_moves_to_cpu_that_is_leased_though_nobody_holds_it() -> None:
    cluster = crowded()
    run(cluster, "owner", owner(low=LOW, high=Resources(3800, 4000)))
    run(cluster, "taker", borrower(low=LOW, high=Resources(2000, 4000)))
    go(cluster, "taker", "learning")
    print(cluster.members("taker")[0])
    cluster.exit("owner", "completed")
    print(cluster.members("taker")[0])
    assert not moved(cluster)


def test_nobody_moves_to_devices_that_are_kept_for_others() -> None:
    cluster = crowded(gpus=1, there=3, high=Resources(200, 100, 1))
    run(cluster, "plain", spec(10, memory=300, gpus=1))
    cluster.submit(spec(10, memory=300, gpus=3), "kept")
    cluster.settle()
    assert cluster.job("kept").reserved_nodes == ("n2",)
    assert not moved(cluster)
    cluster.cancel("kept")
    assert asked_to_leave(cluster.settle()) == {"waits": ""}


SHARE = Resources(100, 100, gpu_millis=800)


@pytest.mark.parametrize(
    ("devices", "used", "moves"), [(1, 200, True), (1, 201, False), (2, 201, True), (2, 600, False)]
)
def test_who_waits_for_a_share_moves_to_where_one_device_has_it(devices: int, used: int, moves: bool) -> None:
    """Of two devices that are used so much no part is left together."""
    cluster = crowded(gpus=1, high=SHARE, there=devices)
    for number in range(2 if used > 500 else 1):
        run(cluster, f"part{number}", spec(10, memory=300, gpu_millis=used))
    assert moved(cluster) == moves
    if moves:
        leave(cluster, "waits")
        assert nodes_of(cluster, "waits") == ["n2"]
        cluster.start("waits")
        assert granted(ask(cluster, "waits", "learning")) == {"waits": "learning"}


def test_nobody_moves_for_a_share_of_a_device_that_is_kept_for_others() -> None:
    cluster = crowded(gpus=1, high=SHARE, there=1)
    run(cluster, "plain", spec(3900, memory=300))
    cluster.submit(spec(200, memory=300, gpus=1), "kept")
    cluster.settle()
    assert cluster.job("kept").reserved_nodes == ("n2",)
    assert not moved(cluster)


def test_who_has_a_share_of_its_own_moves_only_to_a_device_of_which_it_gets_all_that_it_waits_for() -> None:
    """It would begin with what it is guaranteed, of the device that is begun, and get more of that one only."""
    cluster = crowded(gpus=1, low=Resources(100, 100, gpu_millis=100), high=SHARE, there=1)
    run(cluster, "other", borrower(low=Resources(100, 300, gpu_millis=100), high=Resources(100, 300, gpu_millis=300)))
    go(cluster, "other", "learning")
    assert not moved(cluster)


def test_who_has_a_share_of_its_own_moves_only_where_it_begins_on_the_device_that_has_what_it_waits_for() -> None:
    """Of the one 900 are left, but another may ask for 300 of them; of the other 700 are, and it would begin there."""
    low = Resources(100, 100, gpu_millis=100)
    cluster = crowded(gpus=1, low=low, high=SHARE)
    run(cluster, "part", spec(10, memory=300, gpu_millis=700))
    run(cluster, "other", borrower(low=Resources(100, 300, gpu_millis=100), high=Resources(100, 300, gpu_millis=400)))
    run(cluster, "stays", spec(10, memory=300, gpu_millis=300))
    cluster.exit("part", "completed")
    assert [cluster.members(name)[0].gpu_indices for name in ("stays", "other")] == [(0,), (1,)]
    assert not moved(cluster)
    assert asked_to_leave(cluster.exit("other", "completed")) == {"waits": ""}


# ---- who moves ----


def test_a_gang_stays_where_it_is() -> None:
    cluster = crowded(memory=450, high=Resources(1300, 100), gang_size=2)
    assert nodes_of(cluster, "waits") == ["n1", "n1"]
    assert not granted(ask(cluster, "waits", "learning", ranks=(0, 1)))
    assert not asked_to_leave(cluster.advance(STAYS + AFTER))


def test_who_is_close_to_its_end_stays() -> None:
    cluster = crowded(expected_seconds=850)
    assert not granted(ask(cluster, "waits", "learning"))
    until = 850 * 5 // 4 - STAYS
    assert not asked_to_leave(cluster.advance(until))
    assert asked_to_leave(cluster.advance(1)) == {"waits": ""}, "it has overrun what it expected"


def test_who_would_have_to_leave_a_phase_for_it_stays() -> None:
    """It has CPU beyond its floor, for a phase that it would leave when it moves."""
    cluster = elastic()
    node(cluster, "n1", memory=250)
    needs = {"default": LOW, "sampling": Resources(600, 100), "learning": Resources(3000, 100)}
    resources = {phase: ResourceRange(minimum=need) for phase, need in needs.items()}
    component = Component(name="main", command=("true",), resources=resources)
    between = JobSpec(name="j", tenant="t", submitter="u", components=(component,), phase_entry="asked", borrows=True)
    run(cluster, "learns", learner())
    run(cluster, "waits", between)
    cluster.save("waits", 1)
    go(cluster, "learns", "learning")
    go(cluster, "waits", "sampling")
    node(cluster, "n2")
    cluster.advance(STAYS)
    assert not moved(cluster)
    go(cluster, "waits", "default")
    assert moved(cluster)


def test_whom_an_operator_asks_to_leave_is_asked_for_nothing_else() -> None:
    cluster = crowded()
    assert not granted(ask(cluster, "waits", "learning"))
    cluster.now += AFTER * SECOND
    cluster.ask(e.SuspendRequested, "waits")
    (asked,) = of(cluster.settle(), e.PreemptRequested)
    assert asked.reasons[0].code == "SuspendRequested"


def test_who_asked_first_moves_first_whatever_changed_since() -> None:
    cluster = elastic()
    node(cluster, "n1")
    for name in ("learns", "waits", "first"):
        run(cluster, name, learner())
        cluster.save(name, 1)
    go(cluster, "learns", "learning")
    node(cluster, "n2")
    cluster.advance(STAYS)
    ask(cluster, "first", "learning")
    cluster.advance(1)
    ask(cluster, "waits", "learning")
    cluster.save("first", 2)
    cluster.settle()
    assert list(looked_up(cluster).asking.waiting) == ["waits", "first"]
    cluster.now += AFTER * SECOND
    assert asked_to_leave(cluster.settle()) == {"first": ""}


@pytest.mark.parametrize("front", [15, 16, 40])
def test_whoever_can_move_does_however_many_can_not_that_asked_before(front: int) -> None:
    cluster = elastic()
    cluster.node("n1", 12_800 + 100 * front, memory=50_000)
    large = [run(cluster, f"large{number:02}", learner(12_000)) for number in range(front + 1)]
    run(cluster, "small", learner())
    node(cluster, "n2")
    for name in (*large, "small"):
        cluster.save(name, 1)
    go(cluster, large[0], "learning")
    cluster.advance(STAYS)
    for name in (*large[1:], "small"):
        ask(cluster, name, "learning")
        cluster.advance(1)
    asked: dict[str, str] = {}
    if front == 40:
        asked = asked_to_leave(cluster.advance(AFTER))
        assert asked or cluster.wake_at == cluster.now + 10 * SECOND, "there are others to look at"
    for _ in range(60):
        if not asked:
            assert cluster.wake_at is not None
            cluster.now = max(cluster.now, cluster.wake_at)
            asked = asked_to_leave(cluster.settle())
    assert asked == {"small": ""}


def test_who_moves_again_and_again_does_so_less_and_less_often() -> None:
    """Wherever it goes another comes, and has the phase that it waits for."""
    cluster = elastic()
    for name in ("n1", "n2"):
        node(cluster, name)
    run(cluster, "waits", learner())
    stayed: list[int] = []
    for turn in range(10):
        if turn == 9:
            cluster.advance(2 * (STAYS << 6))
        (here,) = nodes_of(cluster, "waits")
        run(cluster, f"full{turn}", spec(4000, memory=100))
        run(cluster, f"other{turn}", learner())
        assert nodes_of(cluster, f"other{turn}") == [here]
        go(cluster, f"other{turn}", "learning")
        cluster.exit(f"full{turn}", "completed")
        cluster.save("waits", turn + 1)
        begun_ns = cluster.now
        assert not granted(ask(cluster, "waits", "learning"))
        while not (asked := asked_to_leave(cluster.settle())):
            assert cluster.wake_at is not None
            cluster.now = cluster.wake_at
        assert asked == {"waits": ""}
        stayed.append((cluster.now - begun_ns) // SECOND)
        leave(cluster, "waits")
        assert nodes_of(cluster, "waits") != [here]
        cluster.exit(f"other{turn}", "completed")
        cluster.start("waits")
        applied(cluster, "waits")
        assert cluster.job("waits").moves == (min(turn + 1, 6) if turn < 9 else 1)
    assert stayed == [STAYS << doublings for doublings in (0, 1, 2, 3, 4, 5, 6, 6, 6)] + [AFTER]
