"""Jobs described in JSON: phases that are asked for, own checkpoints and images, which no CSV of others has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tidegate_scheduler.simulator.choice import Choice, rules_for
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.engine import simulate
from tidegate_scheduler.simulator.errors import InputError
from tidegate_scheduler.simulator.traces import find, nodespec

NEEDS = {"default": {"minimum": {"cpu_millis": 100}}, "learning": {"minimum": {"cpu_millis": 1000, "gpus": 1}}}
COMPONENT = {"name": "main", "command": ["train"], "resources": NEEDS}
SPEC = {"name": "agent", "tenant": "t", "submitter": "u", "image": "torch", "phase_entry": "asked",
        "components": [COMPONENT]}  # fmt: skip
JOB: dict[str, Any] = {
    "at_seconds": 5,
    "spec": SPEC,
    "spans": [{"phase": "default", "seconds": 20}, {"phase": "learning", "seconds": 30}],
    "saves_every_seconds": 10,
}


def written(path: Path, *jobs: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"jobs": jobs}))
    return path


def test_phases_checkpoints_and_images_are_simulated(tmp_path: Path) -> None:
    workload = find.read(written(tmp_path / "agents.json", JOB), nodespec.parse("1x2"))
    (arrival,) = workload.arrivals
    assert (arrival.job, arrival.at_ns, arrival.truth.saves_every_seconds) == ("agent", 5 * 10**9, 10)
    (job,) = simulate(workload, rules_for(Choice("elastic"), workload), Costs()).jobs
    assert job.outcome == "completed"
    assert {phase.phase: phase.worked_ns // 10**9 for phase in job.phases} == {"default": 20, "learning": 30}
    assert job.ended_ns is not None
    assert job.ended_ns - job.submitted_ns > (60 + 50) * 10**9  # the image is fetched first


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"spans": []}, "is refused: Expected `array` of length >= 1"),
        ({"spans": [{"phase": "playing", "seconds": 1}]}, "goes through playing, which no component declares"),
        ({"spec": SPEC | {"gang_size": 0}}, "gang_size is 0"),
        ({"spec": SPEC | {"components": []}}, "no component"),
        ({"spec": SPEC | {"components": [COMPONENT | {"resources": {}}]}}, "says nothing of the phase 'default'"),
        (
            {"spec": SPEC | {"components": [COMPONENT | {"resources": {"default": {"minimum": {"gpus": -1}}}}]}},
            "needs less than nothing",
        ),
        ({"at_seconds": -1}, "is refused: Expected `int` >= 0"),
        ({"sapns": []}, "is refused: Object contains unknown field"),
    ],
)
def test_what_cannot_be_simulated_is_refused(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        find.read(written(tmp_path / "agents.json", JOB | changed), nodespec.parse("1x2"))


def test_a_job_that_is_there_twice_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has agent more than once"):
        find.read(written(tmp_path / "twice.json", JOB, JOB), nodespec.parse("1x2"))
    (tmp_path / "key.json").write_text(f'{{"jobs": {json.dumps([JOB])}, "jobs": {json.dumps([JOB])}}}')
    with pytest.raises(InputError, match="says 'jobs' more than once"):
        find.read(tmp_path / "key.json", nodespec.parse("1x2"))
    with pytest.raises(InputError, match="cannot be read"):
        find.read(tmp_path / "none.json", nodespec.parse("1x2"))
