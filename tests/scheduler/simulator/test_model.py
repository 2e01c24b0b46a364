"""The model of the nodes where things go wrong or meet: images that are missing, gangs that lose a member, recalls."""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.settle import settle
from tidegate_scheduler.policy.sharing import fixed
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.simulator.run import PhaseTime
from tidegate_scheduler.simulator.workload import Span, Truth

from tests.scheduler.simulator.small import SECOND, arrival, by_name, ends, node, phased, run, stays, workload
from tests.support.cluster import spec


def anywhere(draft: Draft) -> None:
    """Place each job on the first nodes that did not refuse it, whatever they have: rules that ask little."""
    settle(draft)
    nodes = [each for each in draft.state.nodes.values() if each.status == "up"]
    for job in draft.state.jobs.values():
        wanted = draft.state.specs[job.id]
        open_to_it = [each for each in nodes if each.name not in job.excluded_nodes][: wanted.gang_size]
        if job.waiting and job.not_before_ns > draft.now_ns:
            draft.wake_by(job.not_before_ns)
        elif job.waiting and len(open_to_it) == wanted.gang_size:
            members = tuple(
                e.MemberPlacement(rank=rank, node=each.name, incarnation=each.incarnation, quotas=fixed(wanted))
                for rank, each in enumerate(open_to_it)
            )
            resume = job.newest_checkpoint
            draft.add(e.JobPlaced, job, attempt=job.attempt + 1, members=members, resume=resume)


ANYWHERE = Rules(name="anywhere", fill=anywhere)


def test_a_node_fetches_an_image_that_a_job_is_placed_for() -> None:
    work = workload(
        [node("n1", fetches_images=True)],
        arrival("a", 0, spec(image="trainer"), 10),
        arrival("b", 200, spec(image="trainer"), 10),
    )
    result = run(work, Costs(image_pull_seconds=40), rules=ANYWHERE)
    assert ends(result) == {"a": 40 + 1 + 10, "b": 200 + 1 + 10}


def test_an_image_that_is_being_fetched_is_not_fetched_again() -> None:
    work = workload(
        [node("n1", fetches_images=True)],
        arrival("a", 0, spec(image="trainer"), 10),
        arrival("b", 30, spec(image="trainer"), 10),
    )
    result = run(work, Costs(image_pull_seconds=40), rules=ANYWHERE)
    assert ends(result) == {"a": 40 + 1 + 10, "b": 40 + 1 + 10}


def test_a_node_that_fetches_none_refuses_what_it_has_no_image_for() -> None:
    nodes = [node("n1"), node("n2", images={"host": "b3:00", "trainer": "b3:01"})]
    result = run(workload(nodes, arrival("a", 0, spec(image="trainer"), 10)), rules=ANYWHERE)
    assert stays(result, "a") == [("n1", 0, 1, "rejected"), ("n2", 2, 13, "completed")]


def test_a_gang_of_which_one_is_refused_is_stopped_and_goes_elsewhere() -> None:
    nodes = [node("n1"), node("n2", images={"trainer": "b3:01"}), node("n3", images={"trainer": "b3:01"})]
    result = run(workload(nodes, arrival("a", 0, spec(gang=2, image="trainer"), 10)), rules=ANYWHERE)
    assert sorted(stays(result, "a")) == [
        ("n1", 0, 1, "rejected"),
        ("n2", 0, 1, "stopped"),
        ("n2", 3, 14, "completed"),
        ("n3", 3, 14, "completed"),
    ]


def test_a_gang_that_loses_a_member_hangs_until_it_is_told_to_end() -> None:
    nodes = [node("n1"), node("n2"), node("n3")]
    silent = e.NodeUnreachable(id="u", at_ns=21 * SECOND, node="n2", incarnation=1)
    saves = Truth((Span("default", 60),), saves_every_seconds=15)
    result = run(workload(nodes, arrival("a", 0, spec(gang=2), saves), facts=(silent,)), rules=ANYWHERE)
    # 20 s are done when n2 dies; it is lost 30 s later, the rest ends, and after a second it goes on from 15 s
    found = sorted(stays(result, "a"), key=lambda stay: (stay[1], stay[0]))
    assert found[:2] == [("n1", 0, 51, "stopped"), ("n2", 0, 21, "lost")]
    assert found[2:] == [("n1", 53, 53 + 1 + 20 + 45, "completed"), ("n3", 53, 119, "completed")]
    assert by_name(result)["a"].lost_ms == (5 + 20) * 1000


def test_a_gang_that_hangs_cannot_save_when_it_is_asked_to_leave() -> None:
    nodes = [node("n1"), node("n2")]
    silent = e.NodeUnreachable(id="u", at_ns=21 * SECOND, node="n2", incarnation=1)
    back = e.NodeJoined(
        **{**{name: getattr(nodes[1], name) for name in nodes[1].__struct_fields__}, "at_ns": 300 * SECOND}
    )
    low, high = spec(gpus=4, gang=2, grace=15), spec(gpus=4, priority=1)
    work = workload(nodes, arrival("low", 0, low, 60), arrival("high", 25, high, 10), facts=(silent, back))
    result = run(work)
    found = {stay[0]: stay for stay in reversed(stays(result, "low"))}
    assert found["n1"] == ("n1", 0, 40, "stopped")  # its grace over
    assert by_name(result)["low"].lost_ms == (20 + 15) * 1000
    assert by_name(result)["high"].first_placed_ns is not None


def test_what_was_to_start_on_a_node_that_went_away_starts_when_it_is_back() -> None:
    nodes = [node("n1")]
    silent = e.NodeUnreachable(id="u", at_ns=5 * SECOND, node="n1", incarnation=1)
    back = e.NodeJoined(
        **{**{name: getattr(nodes[0], name) for name in nodes[0].__struct_fields__}, "at_ns": 20 * SECOND}
    )
    work = workload(nodes, arrival("a", 0, spec(), 10), facts=(silent, back))
    result = run(work, Costs(start_ms=10_000), rules=ANYWHERE)
    assert stays(result, "a") == [("n1", 0, 20 + 10 + 10, "completed")]


def test_a_job_that_never_saves_is_gone_after_its_own_time() -> None:
    stubborn = Truth((Span("default", 100),), leaves_in_ms=2500)
    low, high = spec(gpus=4, grace=30), spec(gpus=4, priority=1)
    result = run(workload([node("n1")], arrival("low", 0, low, stubborn), arrival("high", 50, high, 30)))
    assert stays(result, "low")[0] == ("n1", 0, 52.5, "stopped")
    assert by_name(result)["low"].lost_ms == 49_000 + 2500


def test_a_gang_that_asks_enters_its_phase_together() -> None:
    job = phased(
        {"default": Resources(1000, 512), "learning": Resources(1000, 512, 1)}, entry="asked", borrows=True, gang=2
    )
    work = workload([node("n1", gpus=1), node("n2", gpus=1)], arrival("a", 0, job, [("default", 10), ("learning", 20)]))
    result = run(work, Costs(phase_change_ms=2000))
    assert ends(result)["a"] == 1 + 10 + 2 + 20
    learned = next(phase for phase in by_name(result)["a"].phases if phase.phase == "learning")
    assert (learned.worked_ns, learned.asked_ns) == (
        20 * SECOND,
        2 * 2 * SECOND,
    )  # two members wait for two seconds each


def test_who_asks_for_phases_loses_the_gpus_of_the_phases_that_are_done_again() -> None:
    job = phased(
        {"default": Resources(500, 512), "sampling": Resources(500, 512), "learning": Resources(500, 512, 2)},
        entry="asked",
        borrows=True,
    )
    silent = e.NodeUnreachable(id="u", at_ns=100 * SECOND, node="n1", incarnation=1)
    back = e.NodeJoined(
        **{**{name: getattr(node("n1"), name) for name in node("n1").__struct_fields__}, "at_ns": 101 * SECOND}
    )
    work = workload([node("n1")], arrival("a", 0, job, [("learning", 30), ("sampling", 90)]), facts=(silent, back))
    found = by_name(run(work, Costs(phase_change_ms=0)))["a"]
    assert found.lost_ms == 99_000
    assert found.lost_gpu_ms == 2 * 30_000


def test_who_is_in_no_phase_any_more_does_not_ask_for_that() -> None:
    job = phased({"default": Resources(500, 512), "learning": Resources(500, 512, 1)}, entry="asked", borrows=True)
    work = workload([node("n1", gpus=1)], arrival("a", 0, job, [("learning", 20), ("default", 10)]))
    result = run(work, Costs(phase_change_ms=2000))
    assert by_name(result)["a"].phases == (
        PhaseTime("learning", 20 * SECOND, 2 * SECOND),
        PhaseTime("default", 10 * SECOND, 0),
    )
    assert ends(result)["a"] == 1 + 2 + 20 + 10
    back = [each.at_ns // SECOND for each in result.decided if each.kind == "QuotaChanged"]
    assert back == [1, 23]  # it has the device when it asks, and no longer than it is in the phase


def test_who_waits_for_a_phase_has_left_the_one_before() -> None:
    """Two jobs that each hold what the other needs would wait for ever, if they kept it while they ask."""
    job = phased(
        {
            "default": Resources(500, 512),
            "sampling": Resources(6000, 512),
            "learning": Resources(500, 512, 1),
        },
        entry="asked",
        borrows=True,
    )
    one = [("sampling", 20), ("learning", 20)] * 3
    other = [("learning", 20), ("sampling", 20)] * 3
    result = run(workload([node("n1", gpus=1)], arrival("a", 0, job, one), arrival("b", 0, job, other)))
    assert [each.outcome for each in result.jobs] == ["completed", "completed"]


def test_a_recall_that_nobody_needs_any_more_is_forgotten() -> None:
    owner = phased({"default": Resources(1000, 512), "learning": Resources(1000, 512, 1)}, entry="asked")
    borrower = phased(
        {"default": Resources(1000, 512), "learning": Resources(1000, 512, 1)},
        entry="asked",
        borrows=True,
        hand_back=60,
    )
    cancelled = e.CancelRequested(id="c", at_ns=35 * SECOND, tenant="t", job="owner", actor="ada")
    work = workload(
        [node("n1", gpus=1)],
        arrival("owner", 0, owner, [("default", 30), ("learning", 20)]),
        arrival("borrower", 1, borrower, [("learning", 100)]),
        facts=(cancelled,),
    )
    result = run(work, Costs(phase_change_ms=20_000))
    told = [each.at_ns // SECOND for each in result.decided if each.kind == "HandBackRequested"]
    assert len(told) == 2  # to leave, and to stay
    lent = by_name(result)["borrower"]
    assert [(phase.phase, phase.worked_ns) for phase in lent.phases] == [("learning", 100 * SECOND)]
    entered = 2 + 20  # it asks at 2 s
    assert ends(result)["borrower"] == entered + 100
