"""What a job is guaranteed when it asks for its phases, and when it borrows."""

from __future__ import annotations

from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, ResourceRange, member_floor, phase_need

SIMULATOR = Component(
    name="simulator",
    kind="simulator",
    command=("s",),
    replicas=2,
    resources={
        "default": ResourceRange(minimum=Resources(200, 300)),
        "learning": ResourceRange(minimum=Resources(50, 100)),
    },
)
LEARNER = Component(
    name="learner",
    kind="learner",
    command=("l",),
    resources={
        "default": ResourceRange(minimum=Resources(100, 200)),
        "learning": ResourceRange(minimum=Resources(900, 800, 1, 8000)),
    },
)


def job(*, borrows: bool) -> JobSpec:
    return JobSpec(
        name="j",
        tenant="t",
        submitter="u",
        components=(SIMULATOR, LEARNER),
        phase_entry="asked",
        borrows=borrows,
    )


def test_the_need_of_a_phase_is_summed_over_components_and_replicas() -> None:
    assert phase_need(job(borrows=False), "default") == Resources(500, 800)
    assert phase_need(job(borrows=False), "learning") == Resources(1000, 1000, 1, 8000)
    assert phase_need(job(borrows=False), "unheard-of") == Resources(500, 800)


def test_an_owner_is_guaranteed_its_largest_need_and_a_borrower_that_of_its_default_phase() -> None:
    assert member_floor(job(borrows=False)) == Resources(1000, 1400, 1, 8000)
    assert member_floor(job(borrows=True)) == Resources(500, 800)
