"""A recorded stretch as a workload: what a simulation did is read back from its journal, number by number."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.source import FileSource, open_file
from tidegate_scheduler.simulator.engine import simulate
from tidegate_scheduler.simulator.recorded import Recording, read
from tidegate_scheduler.simulator.rules import elastic
from tidegate_scheduler.simulator.run import JobRun, Run
from tidegate_scheduler.simulator.what_if import recorded_rules
from tidegate_scheduler.simulator.workload import Arrival, Span, Truth, Workload

from tests.scheduler.history.files import told, write
from tests.scheduler.simulator.journals import COSTS, SECOND, START, everything, job, node, recorded_run
from tests.support.cluster import Cluster, spec

ALL = Moment()


async def reading(source: FileSource, begin: Moment = ALL, end: Moment = ALL) -> Recording:
    return await read(source, "recorded", begin, end, told)


def truths(recording: Recording) -> dict[str, Truth]:
    return {arrival.job: arrival.truth for arrival in recording.workload.arrivals}


def plainly(job_run: JobRun) -> JobRun:
    """Leave out phases of no length: a member is in one before it asks for its first."""
    phases = tuple(phase for phase in job_run.phases if phase.worked_ns or phase.asked_ns)
    return msgspec.structs.replace(job_run, phases=phases, work_seconds=0, censored=False)


def one_node(*arrivals: Arrival) -> Workload:
    return Workload("one", (node("n1", 1000, 1),), arrivals)


async def test_what_happened_is_counted_as_the_engine_counts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, source = recorded_run(tmp_path, everything(), monkeypatch)
    happened = (await reading(source)).happened
    assert [plainly(each) for each in happened.jobs] == [plainly(each) for each in run.jobs]
    assert sorted(happened.stays, key=str) == sorted(run.stays, key=str)
    assert sum(each.preemptions for each in run.jobs) > 0
    assert sum(each.lost_gpu_ms for each in run.jobs) > 0
    assert sum(each.asked_ns for each in run.jobs) > 0
    assert [d for d in happened.decided if d.kind == "JobPlaced"] == [d for d in run.decided if d.kind == "JobPlaced"]


async def test_what_jobs_really_do_is_read_from_their_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what was lost and done again counts once; one that failed is known up to there."""
    workload = everything()
    _, source = recorded_run(tmp_path, workload, monkeypatch)
    recording = await reading(source)
    found = truths(recording)
    for arrival in workload.arrivals:
        if arrival.job == "g6":
            assert (found["g6"].work_seconds, found["g6"].fails_after_seconds) == (22, 22)
            continue
        spans = [(span.phase, round(span.work_ms / 1000)) for span in found[arrival.job].spans]
        assert spans == [(span.phase, span.seconds) for span in arrival.truth.spans], arrival.job
        assert not found[arrival.job].censored
    assert found["a1"].saves_every_seconds == 20
    assert recording.assumed == ()
    assert {cost.name: cost.value for cost in recording.measured if cost.seen} == {
        "start_ms": 800,
        "checkpoint_seconds": 3,
        "phase_change_ms": 100,
        "pass_interval_ms": 1,
    }


async def test_who_saves_nothing_when_asked_to_leave_is_known_by_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = job("low", 0, Truth((Span("default", 30),), leaves_in_ms=1500), spec(1000, grace=20))
    run, source = recorded_run(tmp_path, one_node(low, job("high", 10, 5, spec(1000, priority=5))), monkeypatch)
    recording = await reading(source)
    assert {name: truth.leaves_in_ms for name, truth in truths(recording).items()} == {"low": 1500, "high": 1500}
    assert truths(recording)["low"].work_seconds == 30
    assert {each.job: each.lost_ms for each in recording.happened.jobs}["low"] == 9200 + 1500
    again = simulate(recording.workload, recorded_rules(recording), recording.costs, begin=recording.begin)
    assert [plainly(each) for each in again.jobs] == [plainly(each) for each in run.jobs]


async def test_a_recording_simulated_by_its_own_policy_is_what_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, source = recorded_run(tmp_path, everything(), monkeypatch)
    recording = await reading(source)
    rules = recorded_rules(recording)
    again = simulate(recording.workload, rules, recording.costs, begin=recording.begin)
    assert ends(again) == pytest.approx(ends(recording.happened), abs=1.0)
    assert [each.preemptions for each in again.jobs] == [each.preemptions for each in recording.happened.jobs]
    assert again == simulate(recording.workload, rules, recording.costs, begin=recording.begin)


def ends(run: Run) -> list[float]:
    return [(each.ended_ns or 0) / SECOND - START / SECOND for each in run.jobs]


async def test_in_mid_journal_it_begins_with_the_state_and_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, source = recorded_run(tmp_path, one_node(job("first", 0, 30), job("second", 5, 20)), monkeypatch)
    at_ns = START + 11 * SECOND
    recording = await reading(source, Moment(at_ns=at_ns))
    assert recording.from_seq > 0
    assert set(recording.begin.jobs) == {"first", "second"}
    assert recording.begin.header.now_ns == at_ns
    assert truths(recording)["first"].spans == (Span("default", 19, False, 800),)
    assert truths(recording)["second"].work_seconds == 20
    again = simulate(recording.workload, recorded_rules(recording), recording.costs, begin=recording.begin)
    assert [each.ended_ns for each in again.jobs] == pytest.approx([each.ended_ns for each in run.jobs], abs=SECOND)
    assert [each.submitted_ns for each in again.jobs] == [each.submitted_ns for each in run.jobs]


async def test_what_the_end_of_the_stretch_cuts_off_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals = (job("done", 0, 5), job("running", 1, 60), job("waiting", 2, 7, spec(1000, expected_seconds=500)))
    _, source = recorded_run(tmp_path, one_node(*arrivals), monkeypatch, rules=elastic(estimates=True))
    recording = await reading(source, end=Moment(at_ns=START + 30 * SECOND))
    found = truths(recording)
    assert [found[name].censored for name in ("done", "running", "waiting")] == [False, True, True]
    assert recording.assumed == ("waiting",)
    assert found["waiting"].work_seconds == 500  # it never worked: what it said itself
    assert found["running"].work_seconds == 23  # from 6.6 s until 30 s
    assert {each.job: each.censored for each in recording.happened.jobs}["running"]


async def test_a_job_that_was_done_at_once_is_taken_to_take_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody saw it work, but it completed: that is no reason to take it to run as long as others do."""
    arrivals = (job("long", 0, 60), job("quick", 1, Truth((Span("default", 0),))), job("cut", 2, 3000))
    _, source = recorded_run(tmp_path, Workload("quick", (node("n1", 4000),), arrivals), monkeypatch)
    recording = await reading(source, end=Moment(at_ns=START + 90 * SECOND))
    assert recording.assumed == ()
    assert truths(recording)["quick"] == Truth(
        (Span("default", 0),), leaves_in_ms=truths(recording)["quick"].leaves_in_ms
    )
    again = simulate(recording.workload, recorded_rules(recording), recording.costs, begin=recording.begin)
    assert [each.outcome for each in again.jobs] == ["completed"] * 3
    assert ends(again)[1] == pytest.approx(ends(recording.happened)[1], abs=1.0)


async def test_what_operators_ask_for_happens_again_at_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(kind: type[e.Event], at_seconds: int, name: str = "", **fields: object) -> e.AnyEvent:
        about = {"tenant": "t", "job": name} if name else {}
        found = {"id": f"{kind.__name__}-{at_seconds}", "at_ns": START + at_seconds * SECOND, "actor": "ada"}
        return kind(**found, **about, **fields)  # type: ignore[return-value]

    facts = (
        said(e.HoldRequested, 1, "held"),
        said(e.CancelRequested, 12, "cancelled"),
        said(e.ReleaseRequested, 40, "held"),
        said(e.NodeDrainRequested, 55, node="n1", deadline_ns=START + 70 * SECOND),
        said(e.NodeResumeRequested, 90, node="n1"),
        said(e.QueueChanged, 91, tenant="t", weight=3),
    )
    arrivals = (job("cancelled", 0, 30), job("held", 0.5, 30), job("last", 95, 5))
    run, source = recorded_run(tmp_path, one_node(*arrivals), monkeypatch, facts=facts)
    recording = await reading(source)
    replayed = [fact for fact in recording.workload.facts if not isinstance(fact, e.NodeJoined)]
    assert [(type(fact), fact.at_ns) for fact in replayed] == [(type(fact), fact.at_ns) for fact in facts]
    assert truths(recording)["cancelled"].censored
    again = simulate(recording.workload, recorded_rules(recording), recording.costs, begin=recording.begin)
    assert [each.outcome for each in again.jobs] == ["cancelled", "completed", "completed"]
    assert ends(again) == pytest.approx(ends(run), abs=1.0)


async def test_a_node_that_crashed_crashes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = msgspec.structs.replace(COSTS, node_failures_per_day_millis=2_000_000, node_repair_seconds=60)
    workload = Workload("two", (node("n1"), node("n2")), tuple(job(f"j{n}", n, 40 + n) for n in range(6)))
    run, source = recorded_run(tmp_path, workload, monkeypatch, costs=costs)
    recording = await reading(source)
    lost = [stay.job for stay in recording.happened.stays if stay.ended == "lost"]
    assert lost
    again = simulate(recording.workload, recorded_rules(recording), recording.costs, begin=recording.begin)
    assert [stay.job for stay in again.stays if stay.ended == "lost"] == lost
    assert [each.outcome for each in again.jobs] == [each.outcome for each in run.jobs]


@pytest.mark.parametrize("fell_silent", [20, 50, 90])
async def test_what_a_node_was_not_heard_doing_before_it_died_is_no_work(
    fell_silent: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given up a while later, and the job did all of it again elsewhere."""
    silent = e.NodeUnreachable(id="u", at_ns=START + fell_silent * SECOND, node="n1", incarnation=1)
    workload = Workload("crash", (node("n1"), node("n2")), (job("a", 0, 100),))
    run, source = recorded_run(tmp_path, workload, monkeypatch, facts=(silent,))
    recording = await reading(source)
    assert [stay.ended for stay in run.stays] == ["lost", "completed"]
    assert truths(recording)["a"].spans == (Span("default", 100),)
    assert recording.happened.jobs[0].lost_ms == run.jobs[0].lost_ms == fell_silent * 1000 - 800


async def test_what_a_node_did_that_was_not_heard_for_a_while_is_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = e.NodeUnreachable(id="u", at_ns=START + 20 * SECOND, node="n1", incarnation=1)
    heard = e.NodeReachable(id="r", at_ns=START + 30 * SECOND, node="n1", incarnation=1)
    workload = Workload("silent", (node("n1"), node("n2")), (job("a", 0, 100),))
    run, source = recorded_run(tmp_path, workload, monkeypatch, facts=(silent, heard))
    recording = await reading(source)
    assert [stay.ended for stay in run.stays] == ["completed"]
    assert truths(recording)["a"].spans == (Span("default", 100),)
    cut = await reading(source, end=Moment(at_ns=START + 25 * SECOND))
    assert truths(cut)["a"].spans == (Span("default", 19, False, 200),)  # nobody knows yet that it goes on


async def test_how_often_a_job_saves_is_told_by_the_time_between_two_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stretch that begins between two of them does not begin with one."""
    saves = Truth((Span("default", 75),), saves_every_seconds=20)
    run, source = recorded_run(tmp_path, Workload("saves", (node("n1"),), (job("a", 0, saves),)), monkeypatch)
    for begins in (0, 6, 15, 30, 45):
        recording = await reading(source, Moment(at_ns=START + begins * SECOND) if begins else ALL)
        found = truths(recording)["a"]
        if begins < 40:
            assert found.saves_every_seconds == 20, begins
            assert found.saves_first_ms == {0: 0, 6: 14_800, 15: 5_800, 30: 10_800}[begins]
        again = simulate(recording.workload, recorded_rules(recording), recording.costs, begin=recording.begin)
        assert again.jobs[0].ended_ns == pytest.approx(run.jobs[0].ended_ns, abs=SECOND), begins


async def test_an_agent_that_comes_back_without_its_sandboxes_was_away(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.node("n1")
    name = cluster.submit(spec(1000))
    cluster.settle()
    cluster.start(name)
    cluster.advance(5)
    cluster.node("n1", incarnation=2)
    cluster.settle()
    cluster.advance(5)
    cluster.start(name)
    cluster.advance(7)
    cluster.exit(name, "completed")
    recording = await reading(open_file(write(tmp_path / "crash.tgj", cluster.frames)))
    kinds = [type(fact).__name__ for fact in recording.workload.facts]
    assert kinds == ["NodeJoined", "NodeUnreachable", "NodeJoined"]
    assert truths(recording)[name].spans == (Span("default", 7),)
    (happened,) = recording.happened.jobs
    assert happened.lost_ms == 5000
    again = simulate(recording.workload, recorded_rules(recording), recording.costs, begin=recording.begin)
    assert [(each.outcome, each.lost_ms) for each in again.jobs] == [("completed", 5000)]


async def test_attempts_that_end_otherwise(tmp_path: Path) -> None:
    """A job that failed and was tried again, one that ran into its limit, and one that ended while it was to leave."""
    cluster = Cluster()
    cluster.node("n1", 3000)
    flaky, limited = cluster.submit(spec(1000, attempts=2)), cluster.submit(spec(1000, time_limit_seconds=4))
    last = cluster.submit(spec(1000, grace=30))
    cluster.settle()
    for name in (flaky, limited, last):
        cluster.start(name)
    cluster.advance(3)
    cluster.exit(flaky, "failed", exit_code=1)
    cluster.advance(2)
    cluster.exit(limited, "stopped")
    cluster.start(flaky)
    cluster.ask(e.RequeueRequested, last)
    cluster.settle()
    assert cluster.job(last).stage == "preempting"
    cluster.advance(4)
    cluster.exit(last, "completed")
    cluster.exit(flaky, "completed")
    recording = await reading(open_file(write(tmp_path / "ends.tgj", cluster.frames)))
    found = truths(recording)
    assert found[flaky].stumbles_ms == (3000,)
    assert found[flaky].spans == (Span("default", 4),)
    assert found[last].spans == (Span("default", 9),)
    assert found[limited].work_seconds > 4
    assert found[limited].censored
    again = simulate(recording.workload, recorded_rules(recording), recording.costs, begin=recording.begin)
    assert {each.job: each.outcome for each in again.jobs}[limited] == "failed"
    failed = [stay.until_ns for stay in again.stays if (stay.job, stay.ended) == (flaky, "failed")]
    assert len(failed) == 1
    assert {each.job: each.lost_ms for each in again.jobs}[flaky] == 3000


async def test_who_fails_already_as_the_stretch_begins_does_not_stumble_again(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.node("n1", 4000)
    name = cluster.submit(spec(1000, gang=2, attempts=2))
    cluster.settle()
    cluster.start(name)
    cluster.advance(3)
    cluster.exit(name, "failed", ranks=[0], exit_code=1)
    failed = cluster.state.seq
    cluster.advance(1)
    cluster.exit(name, "stopped")
    cluster.advance(2)
    cluster.start(name)
    cluster.advance(6)
    cluster.exit(name, "completed")
    recording = await reading(open_file(write(tmp_path / "fails.tgj", cluster.frames)), Moment(seq=failed))
    assert recording.begin.header.now_ns == START + 3 * SECOND
    assert truths(recording)[name].stumbles_ms == ()
    again = simulate(recording.workload, recorded_rules(recording), recording.costs, begin=recording.begin)
    assert [each.outcome for each in again.jobs] == ["completed"]
    whole = await reading(open_file(tmp_path / "fails.tgj"))
    assert truths(whole)[name].stumbles_ms == (3000,)


async def test_a_history_of_nothing_is_an_empty_workload(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.node("n1")
    recording = await reading(open_file(write(tmp_path / "empty.tgj", cluster.frames)))
    assert recording.workload.arrivals == ()
    assert recording.happened.jobs == ()
