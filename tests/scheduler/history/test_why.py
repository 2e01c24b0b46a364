"""`why`: who waits and for what, why it ran where it ran, was resized, was asked to leave; with the numbers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, ResourceRange
from tidegate_scheduler.history.errors import NotInHistoryError
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.source import FileSource
from tidegate_scheduler.history.why import Why, why

from tests.scheduler.history.files import a_history, history_in, told
from tests.support.cluster import Cluster, spec


async def asked(source: FileSource, job: str, seq: int | None = None) -> Why:
    return await why(source, job, Moment(seq=seq), told)


async def test_a_waiting_job_is_told_what_is_short_and_who_is_in_front(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.node("big", 2000)
    cluster.node("other", 4000, levels=("guarded",))
    cluster.node("small", 500)
    cluster.submit(spec(1500, expected_seconds=60), "runs")
    cluster.settle()
    cluster.start("runs")
    cluster.submit(spec(1800, priority=3), "first")
    cluster.submit(spec(1000), "second")
    cluster.settle()
    found = await asked(history_in(tmp_path, cluster), "second")
    assert found.waits is not None
    assert (found.waits.place.position, found.waits.in_line) == (2, 2)
    assert [one.job for one in found.waits.in_front] == ["first"]
    verdicts = {each.node: each for each in found.waits.nodes}
    assert {name: each.code for name, each in verdicts.items()} == {
        "big": "Resources", "other": "Isolation", "small": "TooSmall",
    }  # fmt: skip
    assert verdicts["small"].numbers["cpu_millis_free"] == 500
    assert verdicts["big"].numbers["cpu_millis_needed"] == 1000
    first = await asked(history_in(tmp_path, cluster), "first")
    assert first.waits is not None
    assert first.waits.place.reasons[0].numbers["cpu_millis_free"] == 500
    assert first.answer.startswith("it waits, number 1 of 2 in line: Reserved")


async def test_a_closed_node_names_who_closed_it(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.node("n1", 2000)
    cluster.submit(spec(1500, priority=5, expected_seconds=60), "runs")
    cluster.settle()
    cluster.start("runs")
    cluster.submit(spec(1800, priority=3), "first")
    cluster.submit(spec(500), "second")
    cluster.settle()
    found = await asked(history_in(tmp_path, cluster), "second")
    assert found.waits is not None
    assert [(each.code, each.detail) for each in found.waits.nodes] == [("Priority", "the room is kept for first")]
    assert "the room is kept for first" in [reason.detail for reason in found.waits.place.reasons]
    first = await asked(history_in(tmp_path, cluster), "first")
    assert first.waits is not None
    assert first.waits.place.starts_basis == "expected"
    assert first.waits.place.starts_at_ns == cluster.job("runs").started_ns + 60 * 10**9


async def test_a_placed_job_is_told_what_every_node_meant_for_it(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.node("loose", 8000)
    cluster.node("tight", 2000)
    cluster.submit(spec(1000), "before")
    cluster.settle()
    cluster.submit(spec(500), "one")
    cluster.submit(spec(400), "two")
    cluster.settle()
    found = await asked(history_in(tmp_path, cluster), "two")
    assert found.state == "placed"
    assert found.placed is not None
    assert found.placed.decision["reasons"][0]["code"] == "Fits"
    free = {each.node: each.numbers["cpu_millis_free"] for each in found.placed.nodes}
    assert free == {"loose": 8000, "tight": 500}  # what "before" and "one", who was in front, had left
    assert [share.job for share in found.shares] == ["before", "one", "two"]


async def test_a_preempted_job_is_told_for_whom_and_what_was_short(tmp_path: Path) -> None:
    cluster = a_history()
    source = history_in(tmp_path, cluster)
    asked_at = next(r.seq for r in cluster.frames for x in r.frame.events if isinstance(x, e.PreemptRequested))
    found = await asked(source, "low", asked_at)
    assert found.state == "preempting"
    assert found.leaving is not None
    assert found.leaving.for_job == "high"
    short = {each.node: each for each in found.leaving.nodes}["n1"]
    assert (short.code, short.numbers["cpu_millis_needed"], short.numbers["cpu_millis_free"]) == (
        "Resources",
        1500,
        500,
    )
    assert "for high" in found.answer


async def test_a_resized_job_is_told_who_shares_and_what_moved_cpu(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.node("n1", 4000)
    both = Component(
        name="main",
        command=("true",),
        resources={
            "default": ResourceRange(minimum=Resources(500, 128), maximum=Resources(4000, 128)),
            "learn": ResourceRange(minimum=Resources(1000, 128), maximum=Resources(1000, 128)),
        },
    )
    job = cluster.submit(spec().__class__(name="a", tenant="t", submitter="u", components=(both,), priority=1), "a")
    cluster.submit(spec().__class__(name="b", tenant="t", submitter="u", components=(both,)), "b")
    cluster.settle()
    cluster.start("a")
    cluster.start("b")
    cluster.phase(job, "learn")
    found = await asked(history_in(tmp_path, cluster), "b")
    assert found.resized is not None
    assert found.resized.decision["kind"] == "QuotaChanged"
    assert [each["kind"] for each in found.resized.triggers] == ["PhaseChanged"]
    rows = {
        share.job: (share.phase, share.minimum_millis, share.maximum_millis, share.has_millis) for share in found.shares
    }
    assert rows == {"a": ("learn", 1000, 1000, 1000), "b": ("default", 500, 4000, 3000)}


async def test_an_ended_job_is_told_how_it_ended(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.node("n1")
    cluster.submit(spec(100), "bad")
    cluster.settle()
    cluster.start("bad")
    cluster.exit("bad", "failed", exit_code=3, detail="it said no")
    found = await asked(history_in(tmp_path, cluster), "bad")
    assert found.state == "failed"
    assert found.ended is not None
    assert found.ended["reasons"][0]["detail"] == "it said no"
    assert "exit code 3" in found.answer
    assert [each["kind"] for each in found.story] == cluster.story("bad")


async def test_a_job_that_nobody_knew_then_is_not_there(tmp_path: Path) -> None:
    source = history_in(tmp_path, a_history())
    with pytest.raises(NotInHistoryError, match="is not known"):
        await asked(source, "nobody")
    with pytest.raises(NotInHistoryError, match="high"):
        await asked(source, "high", 4)


async def test_every_job_has_an_answer_at_every_moment(tmp_path: Path) -> None:
    cluster = a_history()
    source = history_in(tmp_path, cluster)
    submitted = {x.job: r.seq for r in cluster.frames for x in r.frame.events if isinstance(x, e.JobSubmitted)}
    for job, first in submitted.items():
        for seq in range(first, source.end + 1):
            assert (await asked(source, job, seq)).answer


async def test_one_far_back_in_line_is_answered_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate_scheduler.explain.QUEUE_MAX", 2)
    cluster = Cluster()
    cluster.node("n1", 1000)
    for number in range(6):
        cluster.submit(spec(1000), f"j{number}")
    cluster.settle()
    found = await asked(history_in(tmp_path, cluster), "j5")
    assert found.waits is not None
    assert (found.waits.place.position, found.waits.in_line) == (5, 5)
    assert [one.job for one in found.waits.in_front] == ["j1", "j2"]


async def test_a_placement_that_came_too_late_explains_nothing(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.node("n1", 1000)
    cluster.submit(spec(500), "job")
    cluster.settle()
    placed = next(x for r in cluster.frames for x in r.frame.events if isinstance(x, e.JobPlaced))
    stale = msgspec.structs.replace(placed, id="stale", attempt=2, reasons=(e.Reason(code="Stale"),))
    cluster.append("scheduler", "s1", stale)
    found = await asked(history_in(tmp_path, cluster), "job")
    assert found.placed is not None
    assert found.placed.decision["attempt"] == 1
    assert "Stale" not in found.answer


async def test_a_forged_end_is_not_told_as_the_end(tmp_path: Path) -> None:
    cluster = a_history()
    end = (await asked(history_in(tmp_path, cluster), "high")).answer
    assert end.startswith("it ended: completed")
    forged = e.JobFailed(
        id="forged", at_ns=cluster.now, job="high", tenant="default", revision=99, attempt=1, reasons=()
    )
    cluster.append("node", "n1", forged)
    cluster.settle()
    assert (await asked(history_in(tmp_path, cluster), "high")).answer == end
