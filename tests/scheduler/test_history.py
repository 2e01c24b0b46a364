"""`history verify`: equal histories verify, and any change to a recorded decision is found and shown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events.frame import Frame
from tidegate_events.journal.base import Recorded
from tidegate_scheduler.decide import decide
from tidegate_scheduler.history import Verification, verify

from tests.support.cluster import Cluster, spec


def a_history() -> Cluster:
    cluster = Cluster()
    cluster.node("n1", 2000)
    low = cluster.submit(spec(1500, priority=1), "low")
    cluster.settle()
    cluster.start(low)
    cluster.submit(spec(1500, priority=5), "high")
    cluster.settle()
    cluster.save(low, 10)
    cluster.exit(low, "suspended", acknowledged=True)
    cluster.start("high")
    cluster.exit("high", "completed")
    cluster.start(low)
    cluster.exit(low, "completed")
    return cluster


async def verified(frames: list[Recorded]) -> Verification:
    async def read() -> AsyncIterator[Recorded]:
        for recorded in frames:
            yield recorded

    return await verify(read())


async def test_a_whole_history_verifies_bit_for_bit() -> None:
    cluster = a_history()
    report = await verified(cluster.frames)
    assert report.ok
    assert report.decisions == report.decisions_verified > 8
    assert report.state_digest == cluster.state.digest()


def _with_decision(frame: Frame, change: Callable[[e.AnyEvent], e.AnyEvent | None]) -> Frame:
    changed = [change(event) for event in frame.events[1:]]
    return Frame(frame.writer, (frame.events[0], *(event for event in changed if event is not None)))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda event: (
                msgspec.structs.replace(event, grace_seconds=99) if isinstance(event, e.PreemptRequested) else event
            ),
            id="a changed number",
        ),
        pytest.param(lambda event: None if isinstance(event, e.RoomReserved) else event, id="a missing decision"),
        pytest.param(
            lambda event: msgspec.structs.replace(event, reasons=()) if isinstance(event, e.JobPlaced) else event,
            id="a changed reason",
        ),
    ],
)
async def test_a_changed_decision_is_found(change: Callable[[e.AnyEvent], e.AnyEvent | None]) -> None:
    frames = [
        Recorded(recorded.seq, recorded.subject, _with_decision(recorded.frame, change))
        if isinstance(recorded.frame.events[0], e.DecisionPass)
        else recorded
        for recorded in a_history().frames
    ]
    report = await verified(frames)
    assert not report.ok
    assert report.difference is not None
    assert report.difference.recorded != report.difference.recomputed


async def test_a_changed_fact_shows_in_the_next_pass() -> None:
    frames = a_history().frames
    index = next(i for i, r in enumerate(frames) if isinstance(r.frame.events[0], e.JobSubmitted))
    submitted = frames[index].frame.events[0]
    assert isinstance(submitted, e.JobSubmitted)
    forged = msgspec.structs.replace(submitted, spec=msgspec.structs.replace(submitted.spec, priority=7))
    frames[index] = Recorded(frames[index].seq, frames[index].subject, Frame(frames[index].frame.writer, (forged,)))
    report = await verified(frames)
    assert not report.ok
    assert report.difference is not None
    assert report.difference.seq == index + 2


async def test_a_frame_between_the_state_and_its_pass_is_no_difference() -> None:
    cluster = Cluster()
    cluster.node("n1", 2000)
    cluster.submit(spec(500), "first")
    result = decide(cluster.state, cluster.now)
    cluster.submit(spec(500), "late")
    cluster.append("scheduler", "s1", *result.events)
    cluster.settle()
    report = await verified(cluster.frames)
    assert report.ok, report.difference
    assert report.passes == 2


async def test_a_decision_that_no_pass_made_is_a_difference() -> None:
    cluster = Cluster()
    cluster.node("n1", 2000)
    job = cluster.submit(spec(500), "first")
    (placed,) = [event for event in decide(cluster.state, cluster.now).events if isinstance(event, e.JobPlaced)]
    cluster.append("scheduler", "s1", placed)
    assert cluster.stage(job) == "placed"
    report = await verified(cluster.frames)
    assert not report.ok
    assert report.difference is not None
    assert (report.difference.seq, report.difference.index) == (cluster.state.seq, 0)
    assert report.difference.job == "first"
    assert report.difference.recomputed == "nothing: a decision stands in a pass"


async def test_a_node_that_no_pass_forgot_is_a_difference() -> None:
    cluster = a_history()
    cluster.silence("n1")
    cluster.advance(31)
    forgotten = e.NodeForgotten(id="forged", at_ns=cluster.now, node="n1", incarnation=1)
    cluster.append("scheduler", "s1", forgotten)
    assert "n1" not in cluster.state.nodes
    report = await verified(cluster.frames)
    assert report.difference is not None
    assert (report.difference.seq, report.difference.recomputed) == (
        cluster.state.seq,
        "nothing: a decision stands in a pass",
    )


async def test_what_the_leader_saw_stands_in_no_pass() -> None:
    cluster = a_history()
    cluster.silence("n1")
    assert (await verified(cluster.frames)).ok
