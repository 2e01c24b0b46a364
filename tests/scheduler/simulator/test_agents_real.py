"""The comparison of quotas for real: what its two sides differ in, and whom it counts as working."""

from __future__ import annotations

import pytest
from tidegate_local.demo.observed import Entry

from benchmarks import elastic_real


def entry(at_ns: int, job: str, kind: str, phase: str | None = None) -> Entry:
    data = {} if phase is None else {"phase": phase}
    return Entry(seq=at_ns, index=0, at_ns=at_ns, kind=kind, job_id=job, data=data)


def test_who_waits_or_starts_does_not_work() -> None:
    told = [
        entry(0, "a", "JobSubmitted"),
        entry(10, "a", "PhaseChanged", "sampling"),
        entry(20, "a", "PhaseRequested", "learning"),
        entry(25, "a", "PhaseChanged", "default"),
        entry(30, "a", "PhaseChanged", "learning"),
        entry(50, "a", "SandboxExited"),
    ]
    assert elastic_real.at_once(told) == pytest.approx((10 + 20) / 50)


def test_a_request_that_is_withdrawn_ends_no_phase_and_jobs_add_up() -> None:
    told = [
        entry(0, "a", "PhaseChanged", "sampling"),
        entry(0, "b", "PhaseChanged", "learning"),
        entry(5, "a", "PhaseRequested", ""),
        entry(20, "b", "PhaseChanged", "sampling"),
        entry(40, "a", "JobCompleted"),
        entry(60, "b", "JobCompleted"),
    ]
    assert elastic_real.at_once(told) == pytest.approx((40 + 60) / 60)


def test_both_sides_need_the_same_in_each_phase() -> None:
    static, elastic = (elastic_real.spec_of(3, 10, elastic=each, level="trusted") for each in (False, True))
    assert (elastic.pop("phase_entry"), elastic.pop("borrows")) == ("asked", True)
    for one, other in zip(static.pop("components"), elastic.pop("components"), strict=True):
        needs = [{phase: each["minimum"] for phase, each in side.pop("resources").items()} for side in (one, other)]
        assert needs[0].pop("default") == needs[0]["sampling"], "a static job starts with its peak"
        assert needs[1].pop("default")["cpu_millis"] == elastic_real.IDLE_MILLIS[one["name"]]
        assert needs[0] == needs[1]
        assert one == other
    assert static == elastic
