"""Folding to a point: every sequence gives the state the scheduler had, and times are the scheduler's own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events.journal.base import Recorded
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.history.cluster import cluster_at
from tidegate_scheduler.history.errors import NotInHistoryError
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.point import reach
from tidegate_scheduler.history.source import open_file
from tidegate_scheduler.snapshot import encode_snapshot
from tidegate_scheduler.state import State

from tests.scheduler.history.files import a_history, history_in, told, write
from tests.support.cluster import SECOND, Cluster, spec


def digests(frames: list[Recorded]) -> list[str]:
    state = State()
    found = [state.digest()]
    for recorded in frames:
        evolve(state, recorded)
        found.append(state.digest())
    return found


async def test_every_sequence_gives_the_state_after_it(tmp_path: Path) -> None:
    cluster = a_history()
    source = history_in(tmp_path, cluster)
    for seq, digest in enumerate(digests(cluster.frames)):
        assert (await reach(source, Moment(seq=seq), told)).state.digest() == digest


async def test_a_file_that_begins_in_mid_history_gives_the_same_states(tmp_path: Path) -> None:
    cluster = a_history()
    state = State()
    for recorded in cluster.frames[:9]:
        evolve(state, recorded)
    path = write(tmp_path / "tail.tgj", cluster.frames[9:], snapshot=encode_snapshot(state))
    source = open_file(path)
    expected = digests(cluster.frames)
    for seq in range(9, len(cluster.frames) + 1):
        assert (await reach(source, Moment(seq=seq), told)).state.digest() == expected[seq]
    with pytest.raises(NotInHistoryError, match="begins with 10"):
        await reach(source, Moment(seq=8), told)
    with pytest.raises(NotInHistoryError, match="begins with sequence 10"):
        await reach(source, Moment(at_ns=1), told)


async def test_what_lies_beyond_the_end_is_not_there(tmp_path: Path) -> None:
    source = history_in(tmp_path, a_history())
    with pytest.raises(NotInHistoryError, match="ends with") as missing:
        await reach(source, Moment(seq=source.end + 1), told)
    assert missing.value.exit_code == 4


async def test_a_time_is_the_state_before_the_first_pass_after_it(tmp_path: Path) -> None:
    cluster = a_history()
    source = history_in(tmp_path, cluster)
    begin = cluster.frames[0].frame.events[0].at_ns
    for seconds in range(6):
        moment = begin + seconds * SECOND + SECOND // 2
        expected = max(r.seq for r in cluster.frames if r.frame.events[0].at_ns <= moment)
        point = await reach(source, Moment(at_ns=moment), told)
        assert (point.state.seq, point.at_ns) == (expected, moment)


async def test_a_node_whose_clock_is_wrong_moves_nobody_elses_time(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.node("n1", 2000)
    job = cluster.submit(spec(500))
    cluster.settle()
    right = cluster.now
    cluster.now += 3600 * SECOND
    cluster.node_fact(job, cluster.members(job)[0], e.SandboxStarted, level="trusted")
    cluster.now = right + SECOND
    cluster.settle()
    cluster.advance(1)
    source = history_in(tmp_path, cluster)
    point = await reach(source, Moment(at_ns=right + SECOND), told)
    assert point.state.jobs[job].stage == "running"
    assert (await reach(source, Moment(at_ns=right), told)).state.jobs[job].stage == "placed"


async def test_the_whole_cluster_is_shown_as_it_was(tmp_path: Path) -> None:
    cluster = a_history()
    source = history_in(tmp_path, cluster)
    waiting = next(r.seq for r in cluster.frames for x in r.frame.events if isinstance(x, e.PreemptRequested))
    then = cluster_at(await reach(source, Moment(seq=waiting), told))
    node, other = then.nodes
    assert (node.node, node.capacity.cpu_millis, node.free.cpu_millis) == ("n1", 2000, 500)
    assert [(one.job, one.stage, one.attempt) for one in node.holds] == [("low", "preempting", 1)]
    assert (other.node, other.levels, other.holds) == ("n2", ("guarded",), ())
    assert [(one.position, one.job, one.reasons[0].code) for one in then.queue] == [(1, "high", "Reserved")]
    assert then.queue[0].reasons[0].numbers["cpu_millis_needed"] == 1500
    assert then.queue[0].starts_basis == "deadline"
    assert then.jobs == {"pending": 1, "preempting": 1}
    assert msgspec.to_builtins(then)["state_digest"] == digests(cluster.frames)[waiting]
