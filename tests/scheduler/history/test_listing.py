"""Events as an operator lists them: the newest, those about a job, those of a time; and why each came to be."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events.frame import Frame
from tidegate_scheduler.history.errors import NotInHistoryError
from tidegate_scheduler.history.listing import Wanted, causes, frame_at, newest, story
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.source import open_file

from tests.scheduler.history.files import a_history, history_in, write
from tests.support.cluster import SECOND

EVERYTHING = 10_000


async def test_all_events_are_listed_in_their_order(tmp_path: Path) -> None:
    cluster = a_history()
    found = await newest(history_in(tmp_path, cluster), Wanted(), EVERYTHING)
    expected = [(r.seq, index) for r in cluster.frames for index in range(len(r.frame.events))]
    assert [(each["seq"], each["index"]) for each in found] == expected
    assert await newest(open_file(tmp_path / "history.tgj"), Wanted(), 3) == found[-3:]


async def test_only_what_is_wanted_is_listed(tmp_path: Path) -> None:
    cluster = a_history()
    source = history_in(tmp_path, cluster)
    kinds = frozenset({"PreemptRequested", "JobSuspended"})
    assert [each["kind"] for each in await newest(source, Wanted(kinds), 9)] == ["PreemptRequested", "JobSuspended"]
    about_high = await newest(source, Wanted(job="high"), EVERYTHING)
    assert {each["job"] for each in about_high} == {"high", "low"}  # low was asked to leave for it
    begin = cluster.frames[0].frame.events[0].at_ns
    window = Wanted(since=Moment(at_ns=begin + 2 * SECOND), until=Moment(at_ns=begin + 2 * SECOND))
    assert {each["at_ns"] for each in await newest(source, window, EVERYTHING)} == {begin + 2 * SECOND}
    between = await newest(source, Wanted(since=Moment(seq=4), until=Moment(seq=6)), EVERYTHING)
    assert {each["seq"] for each in between} == {4, 5, 6}


async def test_looking_back_goes_on_through_all_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate_scheduler.history.listing.FRAMES_PER_LOOK_BACK", 3)
    cluster = a_history()
    source = history_in(tmp_path, cluster)
    assert len(await newest(source, Wanted(), EVERYTHING)) == sum(len(r.frame.events) for r in cluster.frames)
    told = await story(source, "low", source.end)
    assert [each["kind"] for each in told] == cluster.story("low")
    recent = Wanted(since=Moment(at_ns=cluster.now))
    assert [each["kind"] for each in await newest(source, recent, EVERYTHING)][-1] == "JobPlaced"


async def test_causes_lead_back_to_the_submission(tmp_path: Path) -> None:
    cluster = a_history()
    source = history_in(tmp_path, cluster)
    resumed = next(x for r in cluster.frames for x in r.frame.events if isinstance(x, e.JobResumed))
    chain = await causes(source, resumed)
    assert [each["kind"] for each in chain] == ["SandboxStarted"]
    suspended = next(x for r in cluster.frames for x in r.frame.events if isinstance(x, e.JobSuspended))
    assert [each["kind"] for each in await causes(source, suspended)] == ["SandboxExited"]
    preempt = next(x for r in cluster.frames for x in r.frame.events if isinstance(x, e.PreemptRequested))
    kinds = [each["kind"] for each in await causes(source, preempt)]
    assert kinds == ["JobStarted", "SandboxStarted"]
    placed = next(x for r in cluster.frames for x in r.frame.events if isinstance(x, e.JobPlaced))
    assert [each["kind"] for each in await causes(source, placed)] == ["JobSubmitted"]


@pytest.mark.parametrize("cause", ["x.y", "999.0", "3.99", "3.0", "-1.0", "3", "3.0.0"])
async def test_a_cause_that_is_none_ends_the_chain(tmp_path: Path, cause: str) -> None:
    frames = a_history().frames
    joined = frames[2].frame.events[0]
    forged = msgspec.structs.replace(joined, cause=cause)
    frames[2] = msgspec.structs.replace(frames[2], frame=Frame(frames[2].frame.writer, (forged,)))
    source = open_file(write(tmp_path / "forged.tgj", frames))
    assert {each["seq"] for each in await causes(source, forged)} <= {3}


async def test_who_may_not_say_something_is_shown_as_void(tmp_path: Path) -> None:
    cluster = a_history()
    ended = e.JobCompleted(id="x", at_ns=cluster.now, tenant="t", job="last", revision=1, attempt=1)
    seq = cluster.append("node", "n1", ended).seq
    source = history_in(tmp_path, cluster)
    shown = (await newest(source, Wanted(), 1))[0]
    assert (shown["seq"], shown["void"]) == (seq, "node n1 may not say this")
    assert cluster.stage("last") == "placed"


async def test_there_is_no_event_beyond_the_end(tmp_path: Path) -> None:
    source = history_in(tmp_path, a_history())
    for seq in (0, source.end + 1):
        with pytest.raises(NotInHistoryError, match="begins with 1"):
            await frame_at(source, seq)
