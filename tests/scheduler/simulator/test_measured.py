"""What things took is the middle of what was seen; what was never seen is the model's own, and says so."""

from __future__ import annotations

from typing import Any

from tidegate_events import events as e
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.measured import PASS_INTERVAL_MS_MAX, Meter

MILLI = 1_000_000
ABOUT: dict[str, Any] = {"id": "x", "tenant": "t", "attempt": 1}


def placed(job: str, at_ms: int) -> e.JobPlaced:
    return e.JobPlaced(**ABOUT, job=job, at_ns=at_ms * MILLI, revision=0, members=())


def started(job: str, at_ms: int, prepare_ms: int = 0) -> e.SandboxStarted:
    return e.SandboxStarted(
        **ABOUT, job=job, at_ns=at_ms * MILLI, rank=0, node="n", level="trusted", prepare_ms=prepare_ms
    )


def leaves(job: str, at_ms: int) -> e.PreemptRequested:
    return e.PreemptRequested(
        **ABOUT, job=job, at_ns=at_ms * MILLI, revision=0, grace_seconds=9, deadline_ns=0, for_job=""
    )


def gone(job: str, at_ms: int, outcome: e.Outcome = "suspended") -> e.SandboxExited:
    return e.SandboxExited(**ABOUT, job=job, at_ns=at_ms * MILLI, rank=0, node="n", outcome=outcome)


def decided(at_ms: int) -> e.DecisionPass:
    return e.DecisionPass(
        id="p", at_ns=at_ms * MILLI, epoch=1, at_seq=1, now_ns=at_ms * MILLI, core="", policy=2, state_digest="",
        decisions=0,
    )  # fmt: skip


def meter(*seen: e.AnyEvent) -> Meter:
    found = Meter()
    for event in seen:
        found.saw(event)
    return found


def test_nothing_seen_is_what_the_model_has_by_itself() -> None:
    costs, measured = meter().costs()
    assert costs == Costs(restart_seconds=0)
    assert {cost.seen for cost in measured} == {0}


def test_a_start_is_without_the_image_that_it_waited_for() -> None:
    costs, measured = meter(
        placed("a", 0),
        started("a", 300),
        placed("b", 10),
        started("b", 7_410, 7_000),
        placed("c", 20),
        started("c", 920),
    ).costs()
    assert (costs.start_ms, costs.image_pull_seconds) == (400, 7)
    assert [(cost.name, cost.seen) for cost in measured if cost.seen] == [("start_ms", 3), ("image_pull_seconds", 1)]
    assert meter(started("of before", 5)).costs()[0].start_ms == Costs().start_ms


def test_saving_is_from_being_asked_until_it_is_gone_and_only_of_those_who_saved() -> None:
    costs, _ = meter(leaves("a", 0), gone("a", 2_600), leaves("b", 0), gone("b", 50, "stopped")).costs()
    assert costs.checkpoint_seconds == 3


def test_entering_a_phase_is_from_its_grant() -> None:
    about: dict[str, Any] = {**ABOUT, "job": "a", "rank": 0}
    grant = e.QuotaChanged(**about, at_ns=5 * MILLI, revision=0, quotas=(), phase="learning")
    other = e.PhaseChanged(**about, at_ns=9 * MILLI, phase="sampling")
    entered = e.PhaseChanged(**about, at_ns=125 * MILLI, phase="learning")
    costs, _ = meter(grant, other, entered, entered).costs()
    assert costs.phase_change_ms == 120


def test_the_service_reacts_to_the_newest_that_it_heard() -> None:
    costs, measured = meter(
        started("a", 0), started("b", 100), decided(130), decided(900), started("c", 1_000), decided(1_040),
        started("d", 2_000), decided(99_000),
    ).costs()  # fmt: skip
    assert costs.pass_interval_ms == 40
    assert {cost.name: cost.seen for cost in measured}["pass_interval_ms"] == 3
    assert meter(started("d", 0), decided(99_000)).costs()[0].pass_interval_ms == PASS_INTERVAL_MS_MAX


def test_what_took_longer_than_a_cost_may_be_is_the_most_that_it_may_be() -> None:
    meter = Meter()
    for event in (placed("a", 0), started("a", 7_200_000)):
        meter.saw(event)
    assert meter.costs()[0].start_ms == 3_600_000
