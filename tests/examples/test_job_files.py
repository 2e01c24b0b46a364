"""The job files: accepted by the contract, and two of them never fit beside each other on the demo's node."""

import json
from pathlib import Path

import msgspec
import pytest
from tidegate_events.spec import JobSpec, member_floor

NODE_CPU_MILLIS = 1900  # what a node of two cores has to give


def job_file(example: Path, name: str) -> JobSpec:
    return msgspec.convert({**json.loads((example / name).read_text()), "submitter": "someone"}, JobSpec)


@pytest.mark.parametrize("name", ["job.json", "job-high.json"])
def test_a_job_fits_alone_in_every_phase_and_lends_what_a_phase_does_not_need(example: Path, name: str) -> None:
    spec = job_file(example, name)
    assert spec.main_component.name == "learner"
    assert spec.determinism == "strict"
    simulator, learner = spec.components
    for phase in ("default", "sampling", "learning"):
        minima = simulator.range_in(phase).minimum.cpu_millis * 4 + learner.range_in(phase).minimum.cpu_millis
        maxima = simulator.range_in(phase).ceiling.cpu_millis * 4 + learner.range_in(phase).ceiling.cpu_millis
        assert minima == member_floor(spec).cpu_millis
        assert maxima <= NODE_CPU_MILLIS
    for component in spec.components:
        in_sampling, in_learning = component.range_in("sampling"), component.range_in("learning")
        assert in_sampling.minimum.cpu_millis != in_learning.minimum.cpu_millis


def test_the_urgent_job_does_not_fit_beside_the_patient_one(example: Path) -> None:
    patient, urgent = job_file(example, "job.json"), job_file(example, "job-high.json")
    assert urgent.priority > patient.priority
    assert member_floor(patient).cpu_millis + member_floor(urgent).cpu_millis > NODE_CPU_MILLIS
