"""What processes say is kept until it is sampled: the newest value of each name, and nothing twice."""

from __future__ import annotations

import pytest
from tidegate.protocol import METRICS_MAX
from tidegate_events import telemetry
from tidegate_executor.attempts.phases import PhaseState
from tidegate_executor.attempts.state import AttemptState
from tidegate_executor.channel.handler import Origin, Sandbox
from tidegate_executor.channel.messages import Report, Saved, SavedLayer
from tidegate_executor.sampling import reports as module
from tidegate_executor.sampling.reports import ProcessReports
from tidegate_executor.sampling.stamp import Stamp

STATE = AttemptState(job="j1", tenant="lab-a", attempt=2, rank=1, phase=PhaseState(current="sampling", flips=3))


def origin(component: str = "sim", replica: int = 0) -> Origin:
    return Origin(sandbox=Sandbox("j1", 2, 1), component=component, replica=replica, client="c" * 32, seq=0)


def report(step: int | None = None, **metrics: float) -> Report:
    return Report(at_ns=5, metrics=dict(metrics), step=step)  # type: ignore[arg-type]


@pytest.fixture
def stamp() -> Stamp:
    return Stamp(node="n1", incarnation=7)


def test_the_newest_value_of_each_metric_is_sampled_once(stamp: Stamp) -> None:
    reports = ProcessReports()
    reports.report(STATE, origin(), report(3, loss=0.5, reward=1.0), 100)
    reports.report(STATE, origin(), report(None, loss=0.25), 200)
    (sample,) = reports.take(stamp)
    assert (sample.node, sample.incarnation, sample.seq, sample.at_ns) == ("n1", 7, 1, 200)
    assert (sample.tenant, sample.job, sample.attempt, sample.rank) == ("lab-a", "j1", 2, 1)
    assert (sample.component, sample.replica, sample.step) == ("sim", 0, 3)
    assert (sample.phase, sample.phase_flips) == ("sampling", 3)
    assert sample.metrics == {"loss": 0.25, "reward": 1.0}
    assert reports.take(stamp) == []


def test_numbers_that_json_lacks_are_named_and_the_sample_still_arrives(stamp: Stamp) -> None:
    reports = ProcessReports()
    reports.report(STATE, origin(), Report(at_ns=5, metrics={"loss": "nan", "ok": 1.0}), 100)
    (sample,) = reports.take(stamp)
    assert (sample.metrics, sample.not_finite) == ({"ok": 1.0}, ("loss",))
    assert telemetry.decode(telemetry.encode([sample])[0]) == (sample,)


def test_a_process_cannot_fill_the_agent_with_names(stamp: Stamp) -> None:
    reports = ProcessReports()
    for window in range(5):
        reports.report(STATE, origin(), report(None, **{f"m{window}_{i}": 1.0 for i in range(METRICS_MAX)}), 100)
    (sample,) = reports.take(stamp)
    assert set(sample.metrics) == {f"m4_{i}" for i in range(METRICS_MAX)}


def test_more_processes_than_there_is_room_for_are_counted(stamp: Stamp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_MAX", 2)
    reports = ProcessReports()
    for replica in range(4):
        reports.report(STATE, origin(replica=replica), report(replica), 100)
    assert [sample.replica for sample in reports.take(stamp)] == [0, 1]
    assert reports.dropped == 2


def test_saves_are_sampled_with_their_times_also_without_a_report(stamp: Stamp) -> None:
    reports = ProcessReports()
    layer = SavedLayer(name="model", bytes=1, sha256="a" * 64)
    directory = "000000000009-2-abcdefgh"
    saved = Saved(seq=1, at_ns=5, id="a" * 64, directory=directory, step=9, layers=[layer], copy_ms=125, write_ms=1500)
    reports.saved(STATE, origin(), saved, 100)
    (sample,) = reports.take(stamp)
    assert sample.metrics == {}
    assert [(t.step, t.copy_seconds, t.write_seconds) for t in sample.checkpoints] == [(9, 0.125, 1.5)]
