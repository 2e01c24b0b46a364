"""A recording in which somebody's clock is wrong: it moves nobody else's time, and the calibration says what is so."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tidegate_events.journal.base import Recorded
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.history.source import FileSource, open_file
from tidegate_scheduler.simulator import scribe
from tidegate_scheduler.simulator.choice import Choice
from tidegate_scheduler.simulator.engine import simulate
from tidegate_scheduler.simulator.rules import elastic
from tidegate_scheduler.simulator.what_if import what_if
from tidegate_scheduler.state import State

from tests.scheduler.history.files import told, write
from tests.scheduler.simulator.journals import COSTS, SECOND, everything
from tests.scheduler.simulator.test_what_if import reading

HOUR_NS = 3600 * SECOND


def recorded_with(path: Path, patch: pytest.MonkeyPatch, service: str, by_ns: int) -> FileSource:
    """Return a recording in which the clock of one service is so far ahead."""
    frames: list[Recorded] = []

    def noted(state: State, recorded: Recorded) -> None:
        evolve(state, recorded)
        frame = recorded.frame
        if frame.writer.service == service:
            events = tuple(msgspec.structs.replace(event, at_ns=event.at_ns + by_ns) for event in frame.events)
            recorded = msgspec.structs.replace(recorded, frame=msgspec.structs.replace(frame, events=events))
        frames.append(recorded)

    with patch.context() as patched:
        patched.setattr(scribe, "evolve", noted)
        simulate(everything(), elastic(), COSTS)
    return open_file(write(path / f"{service}-{by_ns}.tgj", frames))


@pytest.mark.parametrize("service", ["gateway", "node"])
async def test_a_clock_far_ahead_does_not_make_the_recording_look_as_if_it_took_no_time(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = await reading(recorded_with(tmp_path, monkeypatch, service, 0))
    wrong_source = recorded_with(tmp_path, monkeypatch, service, HOUR_NS)
    wrong = await reading(wrong_source)
    for real, read in zip(right.happened.jobs, wrong.happened.jobs, strict=True):
        assert (real.job, real.outcome) == (read.job, read.outcome)
        assert real.ended_ns is not None
        assert read.ended_ns is not None
        taken_ns = real.ended_ns - real.submitted_ns, read.ended_ns - read.submitted_ns
        assert abs(taken_ns[0] - taken_ns[1]) < SECOND, real.job
    assert wrong.happened.begin_ns == pytest.approx(right.happened.begin_ns, abs=SECOND)
    answer, _ = await what_if(wrong_source, wrong, Choice("elastic"), told)
    assert answer.calibration.happened.completion_s > 60
    assert answer.calibration.otherwise == ()
    assert "somebody's clock was ahead of the scheduler's by 1h00m" in " ".join(answer.notes)
    assert right.clock_ahead_ns == 0
