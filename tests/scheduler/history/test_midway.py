"""Verification that begins in mid-history proves the same passes as one from the beginning, wherever it begins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Recorded
from tidegate_scheduler.decide import decide
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.history import Verification, verify
from tidegate_scheduler.history.commands.proving import as_text, prove
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.source import FileSource, open_file
from tidegate_scheduler.policy.registry import UnknownPolicyError
from tidegate_scheduler.snapshot import encode_snapshot
from tidegate_scheduler.state import State

from tests.scheduler.history.files import a_history, told, write
from tests.support.cluster import Cluster, spec


def a_restless_history() -> Cluster:
    """Facts between states and their passes, a second leader, a late duplicate, a deposed and a false scheduler."""
    cluster = a_history()
    cluster.submit(spec(200), "x")
    result = decide(cluster.state, cluster.now)
    cluster.submit(spec(200), "between")
    passed = cluster.append("scheduler", "s1", *result.events)
    cluster.elect("s2")
    cluster.settle()
    repeat(cluster, passed)
    head = msgspec.structs.replace(passed.frame.events[0], at_seq=cluster.state.seq)
    cluster.append("scheduler", "s1", head, epoch=1)
    put(cluster, Recorded(len(cluster.frames) + 1, passed.subject, Frame(Writer("node", "n1", 9, 0), (head,))))
    cluster.start("x")
    cluster.start("between")
    cluster.advance(3)
    cluster.exit("x", "completed")
    return cluster


def repeat(cluster: Cluster, old: Recorded) -> None:
    put(cluster, Recorded(len(cluster.frames) + 1, old.subject, old.frame))


def put(cluster: Cluster, recorded: Recorded) -> None:
    cluster.frames.append(recorded)
    evolve(cluster.state, recorded)


def state_after(frames: list[Recorded], seq: int) -> State:
    state = State()
    for recorded in frames[:seq]:
        evolve(state, recorded)
    return state


async def verified(frames: list[Recorded], state: State, after: int = 0) -> Verification:
    async def read() -> AsyncIterator[Recorded]:
        for recorded in frames:
            yield recorded

    return await verify(read(), state, after=after)


async def test_from_every_sequence_on_the_rest_verifies() -> None:
    cluster = a_restless_history()
    whole = await verified(cluster.frames, State())
    assert whole.ok, whole.difference
    passes = 0
    for seq in range(len(cluster.frames) + 1):
        report = await verified(cluster.frames[seq:], state_after(cluster.frames, seq))
        assert report.ok, (seq, report.difference)
        assert report.state_digest == cluster.state.digest()
        assert report.unproved <= 1
        passes = max(passes, report.passes)
    assert passes == whole.passes > 8


async def test_from_every_sequence_on_a_forged_decision_is_found() -> None:
    frames = a_restless_history().frames
    index = next(i for i, r in enumerate(frames) if any(isinstance(x, e.JobCompleted) for x in r.frame.events))
    events = tuple(
        msgspec.structs.replace(event, result={"reward": 9}) if isinstance(event, e.JobCompleted) else event
        for event in frames[index].frame.events
    )
    forged = [*frames]
    forged[index] = Recorded(index + 1, frames[index].subject, Frame(frames[index].frame.writer, events))
    head = events[0]
    assert isinstance(head, e.DecisionPass)
    for seq in range(head.at_seq + 1):
        report = await verified(forged[seq:], state_after(frames, seq))
        assert not report.ok
        assert report.difference is not None
        assert (report.difference.seq, report.difference.job) == (index + 1, "high")


async def test_only_a_first_pass_may_have_been_decided_before_what_is_read() -> None:
    frames = a_history().frames
    index = [i for i, r in enumerate(frames) if isinstance(r.frame.events[0], e.DecisionPass)][2]
    head, *decisions = frames[index].frame.events
    early = msgspec.structs.replace(head, at_seq=1)
    forged = Recorded(index + 1, frames[index].subject, Frame(frames[index].frame.writer, (early, *decisions)))
    report = await verified([*frames[3:index], forged], state_after(frames, 3))
    assert not report.ok
    assert report.difference is not None
    assert report.difference.recorded == "decided at 1"


async def test_the_difference_names_its_inputs_and_the_facts_since_the_last_equal_pass() -> None:
    frames = a_history().frames
    index = next(i for i, r in enumerate(frames) if isinstance(r.frame.events[0], e.CheckpointSaved))
    saved = frames[index].frame.events[0]
    assert isinstance(saved, e.CheckpointSaved)
    other = msgspec.structs.replace(saved, checkpoint=msgspec.structs.replace(saved.checkpoint, step=99))
    frames[index] = Recorded(index + 1, frames[index].subject, Frame(frames[index].frame.writer, (other,)))
    report = await verified(frames, State())
    assert not report.ok
    assert report.difference is not None
    inputs = report.difference.inputs
    assert inputs is not None
    assert inputs.recorded_state_digest != inputs.state_digest
    assert f"{index + 1}.0 CheckpointSaved low" in inputs.facts
    assert report.difference.job == "low"
    shown = as_text(report)
    for part in ("HISTORY DIFFERS at sequence", "ANOTHER STATE", f"{index + 1}.0 CheckpointSaved low"):
        assert part in shown


def midway(path: Path, frames: list[Recorded], seq: int) -> FileSource:
    snapshot = encode_snapshot(state_after(frames, seq))
    return open_file(write(path / f"after-{seq}.tgj", frames[seq:], snapshot=snapshot))


async def test_a_file_from_the_middle_verifies_and_says_what_it_could_not(tmp_path: Path) -> None:
    frames = a_restless_history().frames
    for seq in range(1, len(frames)):
        report = await prove(midway(tmp_path, frames, seq), Moment(), Moment(), told)
        assert report.ok, (seq, report.difference)
        assert ("not among those" in as_text(report)) == bool(report.unproved)


async def test_from_and_to_bound_what_is_proved(tmp_path: Path) -> None:
    cluster = a_restless_history()
    source = open_file(write(tmp_path / "whole.tgj", cluster.frames))
    passes = [r for r in cluster.frames if isinstance(r.frame.events[0], e.DecisionPass)]
    report = await prove(source, Moment(seq=passes[2].seq), Moment(seq=passes[4].seq), told)
    assert (report.ok, report.passes) == (True, 3)
    assert report.until == passes[4].seq
    at_ns = passes[2].frame.events[0].at_ns
    later = await prove(source, Moment(at_ns=at_ns), Moment(), told)
    assert later.ok
    assert 0 < later.passes < len(passes)


async def test_an_unknown_policy_is_refused_and_not_guessed() -> None:
    cluster = Cluster()
    changed = e.PolicyChanged(id="later", at_ns=cluster.now, policy=77, parameters={})
    cluster.append("scheduler", "s1", changed)
    cluster.node("n1")
    head = e.DecisionPass(
        id="1-4-0", at_ns=cluster.now, epoch=1, at_seq=4, now_ns=cluster.now, core="1.0", policy=77,
        state_digest="", decisions=0,
    )  # fmt: skip
    cluster.append("scheduler", "s1", head)
    with pytest.raises(UnknownPolicyError, match="policy 77") as refused:
        await verified(cluster.frames, State())
    assert "it has 1" in str(refused.value)


async def test_what_another_core_decided_says_who_can_prove_it() -> None:
    frames = a_history().frames
    index = next(i for i, r in enumerate(frames) if isinstance(r.frame.events[0], e.DecisionPass))
    head, *decisions = frames[index].frame.events
    other = msgspec.structs.replace(head, core="9.9")
    frames[index] = Recorded(index + 1, frames[index].subject, Frame(frames[index].frame.writer, (other, *decisions)))
    report = await verified(frames, State())
    assert not report.ok
    assert "recorded by core 9.9" in as_text(report)
