"""A recording under another policy: what decides otherwise first, whom it means, and how far the model is off."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.source import FileSource, open_file
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.simulator.calibration import calibrate
from tidegate_scheduler.simulator.choice import Choice, QueueChoice
from tidegate_scheduler.simulator.divergence import Compared, first_divergence
from tidegate_scheduler.simulator.errors import InputError
from tidegate_scheduler.simulator.recorded import Recording, read
from tidegate_scheduler.simulator.rules import Rules, elastic
from tidegate_scheduler.simulator.what_if import Runs, WhatIf, other_rules, recorded_rules, what_if
from tidegate_scheduler.simulator.workload import Span, Truth, Workload

from tests.scheduler.history.files import a_history, told, write
from tests.scheduler.simulator.journals import SECOND, START, everything, job, node, recorded_run
from tests.support.cluster import Cluster, spec

JOURNALS = Path(__file__).parents[2] / "golden" / "journals"


async def reading(source: FileSource) -> Recording:
    return await read(source, "recorded", Moment(), Moment(), told)


async def asked(source: FileSource, choice: Choice) -> tuple[WhatIf, Runs]:
    return await what_if(source, await reading(source), choice, told)


async def compared(source: FileSource, rules: Rules) -> Compared:
    return await first_divergence(source, await reading(source), rules, lambda spec: spec, told)


def priorities(*, queue: bool = False) -> Workload:
    """One node: a long job of low priority, and a short one of high priority that comes later."""
    facts = (e.QueueChanged(id="q", at_ns=START + SECOND, actor="ada", tenant="b", stopped=True),) if queue else ()
    low, high = spec(1000, grace=20, tenant="a"), spec(1000, priority=5, tenant="b")
    arrivals = (job("low", 0, 60, low), job("high", 20, 10, high))
    return Workload("priorities", (node("n1", 1000, 1),), arrivals, facts)


async def test_the_same_policy_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, source = recorded_run(tmp_path, everything(), monkeypatch)
    answer, runs = await asked(source, Choice("elastic"))
    assert answer.compared.first is None
    assert answer.compared.passes > 100
    assert answer.whole.recorded == answer.whole.other
    assert runs.recorded.jobs == runs.other.jobs
    assert answer.calibration.otherwise == ()
    assert answer.calibration.worst_off_s < 1.0
    assert answer.calibration.placements_alike == answer.calibration.placements
    assert answer.left_out == ()


async def test_parameters_that_protect_change_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, source = recorded_run(tmp_path, priorities(), monkeypatch)
    answer, _ = await asked(source, Choice("elastic", {"preemptions_max": 0}))
    first = answer.compared.first
    assert first is not None
    assert first.at_ns == START + 20 * SECOND
    assert "low: asked to save and leave" in " ".join(first.recorded)
    assert not any("asked to save" in words for words in first.instead)
    assert first.jobs == ("low",)
    by_job = {each.job: each for each in answer.jobs}
    assert by_job["low"].preemptions == (1, 0)
    assert by_job["high"].waiting_s[1] > by_job["high"].waiting_s[0] + 30
    assert by_job["low"].lost_s == (3.0, 0.0)
    assert answer.whole.recorded.preemptions == 1
    assert [(group.name, group.recorded.jobs) for group in answer.tenants] == [("a", 1), ("b", 1)]
    assert answer.tenants[1].other.completion_s > answer.tenants[1].recorded.completion_s + 30
    assert answer.jobs[0].job in ("low", "high")


async def test_the_same_question_has_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, source = recorded_run(tmp_path, everything(), monkeypatch)
    choice = Choice("elastic", {"preemptions_max": 0})
    one, two = await asked(source, choice), await asked(source, choice)
    assert msgspec.json.encode(one) == msgspec.json.encode(two)


async def test_what_the_other_policy_does_not_say_is_as_it_was_recorded(tmp_path: Path) -> None:
    cluster = Cluster(Parameters(node_lost_seconds=7, ageing_seconds=11))
    cluster.node("n1")
    cluster.submit(spec(1000))
    cluster.settle()
    recording = await reading(open_file(write(tmp_path / "parameters.tgj", cluster.frames)))
    rules = other_rules(recording, Choice("elastic", {"ageing_seconds": 99}))
    assert rules.parameters == Parameters(node_lost_seconds=7, ageing_seconds=99)
    assert rules.knows_durations
    assert not other_rules(recording, Choice("elastic", estimates=False)).knows_durations
    assert recorded_rules(recording).parameters == Parameters(node_lost_seconds=7, ageing_seconds=11)


async def test_queues_that_the_other_policy_sets_stay_as_it_sets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = (e.QueueChanged(id="go", at_ns=START + 100 * SECOND, actor="ada", tenant="b"),)
    _, source = recorded_run(tmp_path, priorities(queue=True), monkeypatch, facts=facts)
    answer, runs = await asked(source, Choice("elastic", queues=(QueueChoice("b", weight=2),)))
    waited = {each.job: each.waiting_s for each in answer.jobs}
    assert waited["high"][0] == pytest.approx(80, abs=1)
    assert waited["high"][1] < 11
    assert answer.compared.first is not None
    assert answer.compared.first.at_ns == START + 20 * SECOND
    assert {each.job: each.outcome for each in runs.other.jobs} == {"low": "completed", "high": "completed"}


async def test_a_policy_that_acts_where_nobody_did_differs_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ceiling keeps a job waiting; without it the job would have been placed in a time without any pass."""
    ceiling = e.QueueChanged(
        id="q", at_ns=START + SECOND, actor="ada", tenant="t", ceiling=Resources(1000, 1024, 0, 0, 0)
    )
    workload = Workload("ceiling", (node("n1", 4000),), (job("one", 2, 30), job("two", 10, 30), job("three", 20, 1)))
    _, source = recorded_run(tmp_path, workload, monkeypatch, facts=(ceiling,))
    found = await compared(
        source, msgspec.structs.replace(elastic(), queues=(msgspec.structs.replace(ceiling, ceiling=None),))
    )
    assert found.first is not None
    assert found.first.seq == 0
    assert found.first.recorded == ()
    assert "two: attempt 1 placed on n1" in found.first.instead[0]
    assert found.first.at_ns == START + 10 * SECOND


async def test_estimates_that_are_hidden_are_hidden_from_the_recorded_states_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrivals = (
        job("now", 0, 30),
        job("long", 1, 900, spec(1000, expected_seconds=900)),
        job("short", 2, 5, spec(1000, expected_seconds=5)),
    )
    workload = Workload("estimates", (node("n1", 1000),), arrivals)
    _, source = recorded_run(tmp_path, workload, monkeypatch, rules=elastic(estimates=True))
    told_them, _ = await asked(source, Choice("elastic"))
    assert told_them.compared.first is None
    hidden, _ = await asked(source, Choice("elastic", estimates=False))
    assert hidden.compared.first is not None
    assert hidden.compared.first.recorded[0].startswith("short: room reserved on n1")
    assert {each.job: each.waiting_s for each in hidden.jobs}["short"][1] > 900


async def test_under_a_policy_that_grants_no_phases_jobs_hold_their_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, source = recorded_run(tmp_path, everything(), monkeypatch)
    answer, runs = await asked(source, Choice("static_priority"))
    assert all(each.outcome in ("completed", "failed") for each in runs.other.jobs)
    assert sum(each.asked_ns for each in runs.other.jobs) == 0
    assert sum(each.asked_ns for each in runs.recorded.jobs) > 0
    assert all(stay.gpus == 2 for stay in runs.other.stays if stay.job.startswith("a"))
    assert any("grants no phases" in note for note in answer.notes)
    midway = await read(source, "midway", Moment(at_ns=START + 60 * SECOND), Moment(), told)
    _, runs = await what_if(source, midway, Choice("static_priority"), told)
    assert all(each.outcome in ("completed", "failed") for each in runs.other.jobs)


async def test_who_was_late_does_not_differ(tmp_path: Path) -> None:
    """Nobody leads for a while: what is decided afterwards is what the same policy decides."""
    cluster = Cluster()
    cluster.node("n1")
    cluster.settle()
    cluster.submit(spec(1000))
    cluster.now += 30 * SECOND
    cluster.elect("s2")
    cluster.settle()
    cluster.start("j1")
    cluster.advance(3)
    cluster.exit("j1", "completed")
    found = await compared(open_file(write(tmp_path / "late.tgj", cluster.frames)), elastic())
    assert (found.first, found.limits_since) == (None, 0)
    assert found.passes > 0


async def test_other_limits_are_noted_and_are_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate_scheduler.policy import registry  # noqa: PLC0415

    def starves(draft: object) -> None:
        registry.find(2).decide(draft)  # type: ignore[arg-type]
        draft.events = [  # type: ignore[attr-defined]
            event if not isinstance(event, e.JobPlaced) else _with_less(event)
            for event in draft.events  # type: ignore[attr-defined]
        ]

    _, source = recorded_run(tmp_path, priorities(), monkeypatch)
    found = await compared(source, msgspec.structs.replace(elastic(), fill=starves))
    assert found.first is None
    assert found.limits_since > 0


def _with_less(event: e.JobPlaced) -> e.JobPlaced:
    members = tuple(
        msgspec.structs.replace(
            member, quotas=tuple(msgspec.structs.replace(quota, cpu_millis=10) for quota in member.quotas)
        )
        for member in event.members
    )
    return msgspec.structs.replace(event, members=members)


async def test_what_was_cut_off_is_marked_and_not_in_the_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, source = recorded_run(tmp_path, priorities(), monkeypatch)
    recording = await read(source, "cut", Moment(), Moment(at_ns=START + 40 * SECOND), told)
    answer, _ = await what_if(source, recording, Choice("elastic"), told)
    assert answer.left_out == ("low",)
    assert {each.job: each.censored for each in answer.jobs} == {"low": True, "high": False}
    assert answer.whole.recorded.jobs == 1
    assert any("cut off" in note for note in answer.notes)
    assert {each.job: each.off is None for each in answer.jobs} == {"low": True, "high": False}


async def test_the_notes_count_who_was_cut_off_and_who_was_assumed_for_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrivals = (job("done", 0, Truth((Span("default", 0),))), job("runs", 5, 60), job("waits", 6, 60))
    _, source = recorded_run(tmp_path, Workload("notes", (node("n1", 1000, 1),), arrivals), monkeypatch)
    recording = await read(source, "cut", Moment(), Moment(at_ns=START + 40 * SECOND), told)
    answer, _ = await what_if(source, recording, Choice("elastic"), told)
    notes = " ".join(answer.notes)
    assert "may take longer: 1 job " in f"{notes} "
    assert "how long it takes is assumed: 1 job " in f"{notes} "


async def test_a_model_that_is_off_says_by_how_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = recorded_run(tmp_path, priorities(), monkeypatch)
    late = tuple(
        msgspec.structs.replace(each, ended_ns=(each.ended_ns or 0) + 4 * SECOND, waited_ns=each.waited_ns + SECOND)
        for each in run.jobs
    )
    failed = (*late[:1], msgspec.structs.replace(late[1], outcome="failed"))
    found = calibrate(run, msgspec.structs.replace(run, jobs=late, decided=run.decided[1:]))
    assert (found.jobs, found.completion_off_s, found.worst_off_s) == (2, 4.0, 4.0)
    assert found.simulated.completion_s - found.happened.completion_s == pytest.approx(4.0)
    assert found.simulated.waiting_s - found.happened.waiting_s == pytest.approx(1.0)
    assert (found.placements, found.placements_alike) == (3, 0)
    assert calibrate(run, msgspec.structs.replace(run, jobs=failed)).otherwise == ("high",)


@pytest.mark.parametrize(
    ("name", "off_percent", "lost_off_s"),
    [
        ("gang", 15, 0.05),
        ("leader-change", 30, 0.05),  # its jobs take three seconds, and for one of them nobody led
        ("node-loss", 10, 0.1),
        ("preemption-storm", 5, 0.15),
        ("resize", 3, 0.05),
    ],
)
async def test_recorded_journals_are_simulated_close_to_what_happened(
    name: str, off_percent: int, lost_off_s: float
) -> None:
    """They were decided by policy 1, on a real bus, with real processes. Bounds are of a job's mean, whichever way."""
    source = open_file(JOURNALS / f"{name}.tgj")
    answer, _ = await asked(source, Choice("elastic"))
    calibration = answer.calibration
    assert calibration.otherwise == ()
    assert calibration.off is not None
    assert calibration.off.completion_s * 100 <= calibration.happened.completion_s * off_percent
    assert calibration.off.lost_s <= lost_off_s
    assert calibration.placements_alike == calibration.placements > 0
    assert calibration.happened.preemptions == calibration.simulated.preemptions
    assert answer.recorded == "policy 1 as recorded"


@pytest.mark.parametrize(
    ("name", "off_s"), [("gang", 1.2), ("node-loss", 1.8), ("preemption-storm", 0.7), ("resize", 0.8)]
)
async def test_a_recorded_journal_is_close_to_what_happened_from_wherever_it_begins(name: str, off_s: float) -> None:
    """As far as anything ends in it: a job of these takes four seconds, and in two of them ten and twenty."""
    source = open_file(JOURNALS / f"{name}.tgj")
    for seq in range(1, source.end, 4):
        recording = await read(source, name, Moment(seq=seq), Moment(), told)
        if not recording.workload.arrivals:
            continue
        answer, _ = await what_if(source, recording, Choice("elastic"), told)
        assert answer.calibration.otherwise == (), seq
        assert answer.calibration.off is None or answer.calibration.off.completion_s <= off_s, seq
        assert answer.calibration.off is None or answer.calibration.off.lost_s <= 0.15, seq


async def test_a_history_of_commands_and_suspensions(tmp_path: Path) -> None:
    cluster = a_history()
    source = open_file(write(tmp_path / "history.tgj", cluster.frames))
    answer, _ = await asked(source, Choice("elastic"))
    assert answer.calibration.jobs == 2  # the third did not end
    assert answer.left_out == ("last",)


async def test_who_is_refused_or_cancelled_is_in_no_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take no time that means anything: a hundred of them would make a policy look quick and the model exact."""
    cancel = e.CancelRequested(id="c", at_ns=START + 30 * SECOND, tenant="t", job="cancelled", actor="ada")
    arrivals = (job("large", 0, 10, spec(9000)), job("cancelled", 1, 100), job("runs", 2, 40))
    work = Workload("refused", (node("n1", 8000, 1),), arrivals, (cancel,))
    _, source = recorded_run(tmp_path, work, monkeypatch)
    answer, _ = await asked(source, Choice("elastic", {"inadmissible_after_seconds": 0}))
    assert {each.job: each.outcomes for each in answer.jobs} == {
        "large": ("rejected", "rejected"),
        "cancelled": ("cancelled", "cancelled"),
        "runs": ("completed", "completed"),
    }
    assert (answer.calibration.jobs, answer.calibration.otherwise) == (1, ())
    assert answer.calibration.happened.completion_s > 40
    assert (answer.whole.recorded.jobs, answer.whole.recorded.completion_s > 40) == (1, True)
    assert set(answer.left_out) == {"large", "cancelled"}
    assert "Inadmissible" in {each.job: each.why for each in answer.jobs}["large"][1]


async def test_a_queue_of_a_tenant_without_jobs_is_known_by_its_recorded_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = (e.QueueChanged(id="q", at_ns=START + SECOND, actor="ada", tenant="idle"),)
    _, source = recorded_run(tmp_path, priorities(), monkeypatch, facts=facts)
    recording = await reading(source)
    assert other_rules(recording, Choice("elastic", queues=(QueueChoice("idle"),))).queues[0].tenant == "idle"
    with pytest.raises(InputError, match="there is no tenant 'nobody' here for a queue; accepted are a, b, idle"):
        other_rules(recording, Choice("elastic", queues=(QueueChoice("nobody"),)))
