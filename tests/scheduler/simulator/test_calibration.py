"""How far the model is off: no error cancels another, and what may be the model's own doing is marked."""

from __future__ import annotations

import msgspec
from tidegate_scheduler.history.commands.comparing import group_row, job_row
from tidegate_scheduler.simulator.calibration import Off, calibrate, mean_off, numbers, pairs
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.run import JobRun, Run
from tidegate_scheduler.simulator.what_if import Change, JobChange

SECOND = 1_000_000_000


def job_run(name: str, tenant: str, ends: int, *, preemptions: int = 0) -> JobRun:
    lost_ms = preemptions * 3_600_000
    waited_ns = ended_ns = ends * SECOND
    found = JobRun(name, tenant, 0, 0, ended_ns, "completed", 1, 1, 0, preemptions, lost_ms, waited_ns, 0, ())
    return msgspec.structs.replace(found, lost_ms=lost_ms)


def run(*jobs: JobRun) -> Run:
    return Run("made", "rules", 0, Costs(), jobs, (), (), (), 0, 0)


REAL = run(job_run("a", "A", 100, preemptions=2), job_run("b", "B", 100))
MODEL = run(job_run("a", "A", 160), job_run("b", "B", 40, preemptions=2))
OTHER = run(job_run("a", "A", 165, preemptions=1), job_run("b", "B", 45, preemptions=3))


def change(name: str, *jobs: str) -> Change:
    same, other = ([each for each in found.jobs if each.job in jobs] for found in (MODEL, OTHER))
    off = mean_off([pair for pair in pairs(REAL, MODEL) if pair[0].job in jobs])
    return Change(name, numbers(same), numbers(other), off)


def test_opposite_errors_do_not_cancel() -> None:
    found = calibrate(REAL, MODEL)
    assert found.happened.completion_s == found.simulated.completion_s
    assert found.off == Off(2, 60.0, 60.0, 0.0, 2.0, 7200.0, 7200.0)
    assert group_row(change("all", "a", "b"))[2:] == (
        "1m45s (~+5.0s)", "1m45s (~+5.0s)", "0.0s", "4 (~+2)", "4.00 (~+2.00)", "4h00m (~+2h00m)",
    )  # fmt: skip


def test_each_tenant_has_the_error_of_its_own_jobs() -> None:
    real = run(job_run("a", "A", 100), job_run("b", "B", 100))
    model = run(job_run("a", "A", 160), job_run("b", "B", 100))
    one, two = (mean_off([pair]) for pair in pairs(real, model))
    assert one is not None
    assert two is not None
    assert (one.completion_s, two.completion_s) == (60.0, 0.0)
    exact = Change("B", numbers(model.jobs[1:]), numbers(OTHER.jobs[1:]), two)
    assert group_row(exact)[2] == "45s (-55s)"
    assert group_row(exact)[5:7] == ("3 (+3)", "3.00 (+3.00)")


def test_where_nothing_tells_the_error_any_difference_may_be_the_models() -> None:
    assert mean_off([]) is None
    unknown = Change("A", numbers(MODEL.jobs[:1]), numbers(OTHER.jobs[:1]), None)
    assert group_row(unknown)[2:6] == ("2m45s (~+5.0s)", "2m45s (~+5.0s)", "0.0s", "1 (~+1)")


def test_a_job_has_the_error_of_that_job() -> None:
    job = JobChange(
        job="a", tenant="A", outcomes=("completed", "completed"), waiting_s=(10.0, 25.0), completion_s=(50.0, 65.0),
        asked_s=(0.0, 0.0), preemptions=(0, 1), lost_gpu_s=(0.0, 0.0), lost_s=(0.0, 9.0), censored=False, assumed=False,
        why=("", ""), off=Off(1, 20.0, 2.0, 0.0, 0.0, 0.0, 9.0),
    )  # fmt: skip
    assert job_row(job)[1:7] == ("1m05s (~+15s)", "25s (+15s)", "0.0s", "1 (+1)", "0.00", "9.0s (~+9.0s)")
