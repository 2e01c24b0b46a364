"""Simulations whose schedules were worked out by hand: every time in them follows from the stated costs."""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, ResourceRange
from tidegate_scheduler.policy import registry
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.simulator.run import PhaseTime
from tidegate_scheduler.simulator.workload import Span, Truth

from tests.scheduler.simulator.small import SECOND, arrival, by_name, ends, node, phased, run, stays, workload
from tests.support.cluster import spec

ONE = [node("n1")]


def test_a_job_starts_works_and_ends() -> None:
    result = run(workload(ONE, arrival("a", 5, spec(gpus=4), 100)))
    job = by_name(result)["a"]
    assert (job.submitted_ns, job.first_placed_ns) == (5 * SECOND, 5 * SECOND)
    assert ends(result) == {"a": 5 + 1 + 100}  # it starts in one second
    assert (job.outcome, job.waited_ns, job.preemptions, job.lost_gpu_ms) == ("completed", 0, 0, 0)
    assert job.phases == (PhaseTime("default", 100 * SECOND, 0),)
    assert stays(result, "a") == [("n1", 5, 106, "completed")]


def test_who_does_not_fit_waits_until_the_first_has_ended() -> None:
    result = run(workload(ONE, arrival("a", 0, spec(gpus=3), 100), arrival("b", 10, spec(gpus=2), 50)))
    assert ends(result) == {"a": 101, "b": 101 + 51}
    assert by_name(result)["b"].waited_ns == 91 * SECOND


def test_rounds_keep_their_distance() -> None:
    costs = Costs(start_ms=500, pass_interval_ms=10_000)
    result = run(workload(ONE, arrival("a", 0, spec(gpus=4), 12), arrival("b", 1, spec(gpus=4), 5)), costs)
    # a is seen to run at 10 s, has ended at 12.5 s, and that is seen at 20 s, when b is placed
    assert ends(result) == {"a": 20, "b": 30}
    assert stays(result, "a") == [("n1", 0, 12.5, "completed")]


def test_a_job_of_higher_priority_has_another_save_and_leave() -> None:
    low, high = spec(gpus=4, grace=30), spec(gpus=4, priority=1)
    result = run(workload(ONE, arrival("low", 0, low, 100), arrival("high", 50, high, 30)))
    # asked at 50 with 49 s of work done, saved at 60; high works from 61 to 91; low starts at 92, is back at its work
    # at 112, and has 51 s left
    assert ends(result) == {"low": 112 + 51, "high": 91}
    job = by_name(result)["low"]
    assert stays(result, "low") == [("n1", 0, 60, "suspended"), ("n1", 91, 163, "completed")]
    assert job.preemptions == 1
    assert job.lost_gpu_ms == (10 + 20) * 4 * 1000
    assert job.waited_ns == 31 * SECOND
    assert job.phases == (PhaseTime("default", 100 * SECOND, 0),)


def test_who_cannot_save_within_its_grace_does_its_work_again() -> None:
    low, high = spec(gpus=4, grace=5), spec(gpus=4, priority=1)
    result = run(workload(ONE, arrival("low", 0, low, 100), arrival("high", 50, high, 30)))
    assert stays(result, "low")[0] == ("n1", 0, 55, "stopped")
    assert ends(result) == {"high": 86, "low": 86 + 1 + 100}
    assert by_name(result)["low"].lost_gpu_ms == (49 + 5) * 4 * 1000


def test_a_checkpoint_of_its_own_is_where_it_goes_on_from() -> None:
    saves = Truth((Span("default", 100),), saves_every_seconds=20)
    low, high = spec(gpus=4, grace=5), spec(gpus=4, priority=1)
    result = run(workload(ONE, arrival("low", 0, low, saves), arrival("high", 50, high, 30)))
    # 40 of 49 s are saved: 9 s are lost, and 5 s of trying to save
    assert by_name(result)["low"].lost_gpu_ms == (9 + 5 + 20) * 4 * 1000
    assert ends(result)["low"] == 86 + 1 + 20 + 60


def test_a_job_that_has_not_begun_leaves_at_once() -> None:
    low, high = spec(gpus=4, grace=30), spec(gpus=4, priority=1)
    costs = Costs(start_ms=20_000)
    result = run(workload(ONE, arrival("low", 0, low, 100), arrival("high", 5, high, 30)), costs)
    assert stays(result, "low")[0] == ("n1", 0, 5, "suspended")
    assert by_name(result)["low"].lost_gpu_ms == 0
    assert ends(result)["high"] == 6 + 20 + 30


def test_a_job_fails_by_its_own_fault_and_is_tried_again() -> None:
    fails = Truth((Span("default", 100),), fails_after_seconds=30)
    result = run(workload(ONE, arrival("a", 0, spec(gpus=1, attempts=2), fails)))
    # it fails at 31 s, its pause is one second; it fails again
    assert [stay[1:] for stay in stays(result, "a")] == [(0, 31, "failed"), (32, 63, "failed")]
    assert (by_name(result)["a"].outcome, ends(result)["a"]) == ("failed", 63)


def test_a_job_that_no_node_could_hold_is_rejected() -> None:
    result = run(workload(ONE, arrival("a", 0, spec(gpus=5), 10), arrival("b", 0, spec(gpus=1), 10)))
    assert by_name(result)["a"].outcome == "rejected"
    assert by_name(result)["a"].first_placed_ns is None
    assert ends(result) == {"a": 60, "b": 11}


def test_who_waits_for_ever_has_not_ended_when_nothing_more_can_happen() -> None:
    held = e.HoldRequested(id="h", at_ns=0, tenant="t", job="a", actor="ada")
    work = workload(ONE, arrival("a", 0, spec(gpus=1), 10), arrival("b", 3, spec(gpus=1), 10), facts=(held,))
    result = run(work)
    assert ends(result) == {"a": None, "b": 14}
    assert (by_name(result)["a"].outcome, by_name(result)["a"].waited_ns) == ("", 14 * SECOND)
    assert result.end_ns == 14 * SECOND


def test_histories_of_policy_1_can_be_simulated_by_it() -> None:
    first = Rules(name="policy 1", fill=registry.find(1).decide, policy=1)
    low, high = spec(gpus=4, grace=30), spec(gpus=4, priority=1)
    work = workload(ONE, arrival("low", 0, low, 100), arrival("high", 50, high, 30), arrival("late", 55, low, 10))
    assert ends(run(work, rules=first)) == {"high": 91, "low": 91 + 1 + 20 + 51, "late": 163 + 11}


def test_a_gang_works_together() -> None:
    nodes = [node("n1"), node("n2")]
    result = run(workload(nodes, arrival("a", 0, spec(gpus=3, gang=2), 50), arrival("b", 1, spec(gpus=2), 10)))
    assert ends(result) == {"a": 51, "b": 62}
    assert sorted(stays(result, "a")) == [("n1", 0, 51, "completed"), ("n2", 0, 51, "completed")]
    assert by_name(result)["a"].gpus == 6


# ---- phases ----


def test_told_phases_share_the_cpu_of_their_node_and_take_longer_with_less() -> None:
    need = ResourceRange(minimum=Resources(2000, 512), maximum=Resources(8000, 512))
    job = phased({"default": Resources(2000, 512), "sampling": need})
    does = Truth((Span("sampling", 60, cpu_bound=True),))
    alone = run(workload([node("n1", 8000, gpus=0)], arrival("a", 0, job, does)), Costs(pass_interval_ms=1))
    both = run(
        workload([node("n1", 8000, gpus=0)], arrival("a", 0, job, does), arrival("b", 0, job, does)),
        Costs(pass_interval_ms=1),
    )
    assert ends(alone)["a"] == 61  # all of the CPU is there for it alone
    # together the first has 6 of the 8 CPUs that it could use, and the other 2 until the first has ended
    assert ends(both)["a"] == 1 + 60 * 8 // 6
    done = 60 - 80 * 2 // 8
    assert ends(both)["b"] == 81 + done


def test_simulators_that_are_added_make_a_phase_as_fast_as_it_can_be() -> None:
    simulators = Component(
        name="env",
        kind="simulator",
        command=("true",),
        replicas=2,
        replicas_max=4,
        resources={"default": ResourceRange(minimum=Resources(1000, 512))},
    )
    job = JobSpec(name="job", tenant="t", submitter="u", components=(simulators,))
    does = Truth((Span("default", 60, cpu_bound=True),))
    alone = run(workload([node("n1", 8000, gpus=0)], arrival("a", 0, job, does)))
    narrow = run(workload([node("n1", 2000, gpus=0)], arrival("a", 0, job, does)))
    assert ends(narrow)["a"] == 1 + 2 * 60  # two of four simulators, for which alone there is CPU
    assert 61 <= (ends(alone)["a"] or 0) <= 63  # four of them, as soon as it runs


def test_asked_phases_take_turns_with_a_device_that_they_borrow() -> None:
    job = phased({"default": Resources(1000, 512), "learning": Resources(1000, 512, 1)}, entry="asked", borrows=True)
    does = [("default", 10), ("learning", 20), ("default", 10), ("learning", 20)]
    result = run(workload([node("n1", gpus=1)], arrival("a", 0, job, does), arrival("b", 5, job, does)))
    first, second = by_name(result)["a"], by_name(result)["b"]
    assert (first.outcome, second.outcome) == ("completed", "completed")
    for each in (first, second):
        assert {phase.phase: phase.worked_ns for phase in each.phases} == {
            "default": 20 * SECOND,
            "learning": 40 * SECOND,
        }
    assert second.asked_ns > first.asked_ns
    assert max(sample.gpus_busy_millis for sample in result.samples) == 1000
    # one device: who learns second waits for the other to have left
    assert second.ended_ns is not None
    assert first.ended_ns is not None
    assert second.ended_ns >= first.ended_ns


def test_an_owner_gets_back_what_was_lent() -> None:
    owner = phased({"default": Resources(1000, 512), "learning": Resources(1000, 512, 1)}, entry="asked")
    borrower = phased(
        {"default": Resources(1000, 512), "learning": Resources(1000, 512, 1)},
        entry="asked",
        borrows=True,
        hand_back=5,
    )
    result = run(
        workload(
            [node("n1", gpus=1)],
            arrival("owner", 0, owner, [("default", 30), ("learning", 20)]),
            arrival("borrower", 1, borrower, [("learning", 100)]),
        )
    )
    told = [each for each in result.decided if each.kind == "HandBackRequested"]
    assert [each.job for each in told] == ["borrower"]
    assert by_name(result)["borrower"].preemptions == 0
    assert {phase.phase: phase.worked_ns for phase in by_name(result)["borrower"].phases} == {"learning": 100 * SECOND}
    learned = next(phase for phase in by_name(result)["owner"].phases if phase.phase == "learning")
    assert 0 < learned.asked_ns <= 6 * SECOND


# ---- images ----


def test_an_image_that_is_not_there_is_fetched_before_the_job_is_placed() -> None:
    nodes = [node("n1", images={"host": "b3:00"}, fetches_images=True)]
    result = run(workload(nodes, arrival("a", 0, spec(gpus=1, image="trainer"), 10)), Costs(image_pull_seconds=40))
    assert stays(result, "a") == [("n1", 40, 51, "completed")]


# ---- nodes ----


def test_a_node_that_fails_takes_its_jobs_and_is_back_empty() -> None:
    away = e.NodeUnreachable(id="u", at_ns=20 * SECOND, node="n1", incarnation=1)
    back = e.NodeReachable(id="r", at_ns=40 * SECOND, node="n1", incarnation=1)
    result = run(workload(ONE, arrival("a", 0, spec(gpus=1), 30), facts=(away, back)))
    # what runs on a node that is not heard goes on; it says when it is back that the job has ended
    assert ends(result) == {"a": 40}
    rebooted = node("n1")
    again = e.NodeJoined(**{**{f: getattr(rebooted, f) for f in rebooted.__struct_fields__}, "at_ns": 40 * SECOND})
    crashed = run(workload(ONE, arrival("a", 0, spec(gpus=1), 30), facts=(away, again)))
    assert stays(crashed, "a")[0] == ("n1", 0, 20, "lost")  # it was gone when it fell silent
    assert ends(crashed)["a"] == 41 + 1 + 30  # after a pause of one second, from nothing
    assert by_name(crashed)["a"].lost_gpu_ms == 19 * 1000


def test_a_node_that_stays_away_is_lost_and_its_job_goes_on_elsewhere() -> None:
    away = e.NodeUnreachable(id="u", at_ns=20 * SECOND, node="n1", incarnation=1)
    saves = Truth((Span("default", 100),), saves_every_seconds=10)
    work = workload([node("n1"), node("n2")], arrival("a", 0, spec(gpus=1), saves), facts=(away,))
    result = run(work)
    # it is lost 30 s after it fell silent; the checkpoint of its first 10 s of work is known, what came after is lost
    assert [stay[0] for stay in stays(result, "a")] == ["n1", "n2"]
    assert ends(result)["a"] == 50 + 1 + 1 + 20 + 90
