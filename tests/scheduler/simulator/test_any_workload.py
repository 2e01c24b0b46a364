"""Whatever jobs come: no capacity is exceeded, all end, work is conserved, and the same again gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate_events.resources import Resources
from tidegate_events.spec import PhaseEntry, ResourceRange
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.rules import elastic
from tidegate_scheduler.simulator.run import JobRun, Run, encode
from tidegate_scheduler.simulator.workload import Arrival, Span, Truth, Workload
from tidegate_scheduler.snapshot import decode_snapshot, encode_snapshot
from tidegate_scheduler.state import State

from tests.scheduler.simulator.small import SECOND, arrival, node, phased, run, workload
from tests.support.cluster import spec

NODES = [node("n1", 8000, gpus=4), node("n2", 8000, gpus=4), node("n3", 4000, gpus=2)]
GRACE = 60
MICROSECOND_NS = 1000
EXAMPLES = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def plain_jobs(draw: st.DrawFn, name: str) -> Arrival:
    """A job with one phase: single or a gang, of any priority, that saves by itself, fails, or does neither."""
    gang = draw(st.sampled_from([1, 1, 2, 3]))
    gpus = draw(st.integers(0, 2 if gang > 1 else 4))
    work = draw(st.integers(1, 300))
    truth = Truth(
        (Span("default", work, more_ms=draw(st.sampled_from([0, 250]))),),
        saves_every_seconds=draw(st.sampled_from([0, 0, 30])),
        fails_after_seconds=draw(st.sampled_from([None, None, None, work // 2])),
    )
    job = spec(
        draw(st.integers(1, 2)) * 1000,
        gpus=gpus,
        gang=gang,
        priority=draw(st.integers(0, 2)),
        grace=GRACE,
        attempts=draw(st.integers(1, 2)),
        tenant=draw(st.sampled_from("xy")),
        expected_seconds=work,
    )
    return arrival(name, draw(st.integers(0, 200)), job, truth)


@st.composite
def elastic_jobs(draw: st.DrawFn, name: str) -> Arrival:
    """A job of two phases, told or asked for, that owns or borrows a device, and may be slower with less CPU."""
    entry: PhaseEntry = draw(st.sampled_from(["told", "asked"]))
    borrows = entry == "asked" and draw(st.booleans())
    sampling = ResourceRange(minimum=Resources(1000, 1024), maximum=Resources(3000, 1024))
    learning = Resources(1000, draw(st.sampled_from([1024, 4096])), draw(st.integers(0, 2)))
    job = phased(
        {"default": Resources(1000, 1024), "sampling": sampling, "learning": learning},
        entry=entry,
        borrows=borrows,
        gang=draw(st.sampled_from([1, 1, 2])),
        hand_back=draw(st.sampled_from([2, 30])),
    )
    bound = draw(st.booleans())
    spans = [
        Span(phase, draw(st.integers(1, 40)), cpu_bound=bound and phase == "sampling")
        for _ in range(draw(st.integers(1, 3)))
        for phase in ("sampling", "learning")
    ]
    return arrival(name, draw(st.integers(0, 60)), job, Truth(tuple(spans)))


def several(make: Callable[[str], st.SearchStrategy[Arrival]]) -> st.SearchStrategy[Workload]:
    lists = st.integers(1, 12).flatmap(lambda count: st.tuples(*(make(f"j{number:02}") for number in range(count))))
    return lists.map(lambda arrivals: workload(NODES, *arrivals))


def worked_ns(job: JobRun) -> int:
    return sum(phase.worked_ns for phase in job.phases)


def truth_ns(work: Workload, job: str) -> int:
    truth = next(each.truth for each in work.arrivals if each.job == job)
    return sum(span.work_ms for span in truth.spans) * 1_000_000


def check_counts(result: Run) -> None:
    """What is counted of the cluster agrees with what is counted of its members and of its jobs."""
    total = sum(len(each.gpus) for each in NODES) * 1000
    for sample in result.samples:
        assert 0 <= sample.gpus_busy_millis <= sample.gpus_held_millis <= sample.gpus_total_millis <= total
        assert 0 <= sample.working <= sample.placed
    last = result.samples[-1]
    assert (last.placed, last.working, last.gpus_held_millis, last.cpu_held_millis) == (0, 0, 0, 0)
    for stay in result.stays:
        assert stay.from_ns <= stay.until_ns <= result.end_ns
        assert stay.ended


@EXAMPLES
@given(several(plain_jobs))
def test_plain_jobs_end_and_do_their_work_once(work: Workload) -> None:
    result = run(work, Costs(checkpoint_seconds=10, restart_seconds=5))
    check_counts(result)
    for job in result.jobs:
        truth = next(each.truth for each in work.arrivals if each.job == job.job)
        assert job.outcome == ("completed" if truth.fails_after_seconds is None else "failed")
        if job.outcome == "completed":
            # everyone has the time to save when asked to leave, so nothing is done twice
            assert worked_ns(job) == truth_ns(work, job.job)
        assert job.ended_ns is not None
        assert job.first_placed_ns is not None
        held_ns = job.ended_ns - job.submitted_ns - job.waited_ns
        assert held_ns >= worked_ns(job)


@EXAMPLES
@given(several(elastic_jobs))
def test_elastic_jobs_end_and_every_phase_takes_what_it_takes(work: Workload) -> None:
    result = run(work)
    check_counts(result)
    for job in result.jobs:
        truth = next(each.truth for each in work.arrivals if each.job == job.job)
        assert job.outcome == "completed", job
        worked = {phase.phase: phase.worked_ns for phase in job.phases}
        for phase in {span.phase for span in truth.spans}:
            least = sum(span.work_ms for span in truth.spans if span.phase == phase) * 1_000_000
            bound = any(span.cpu_bound for span in truth.spans if span.phase == phase)
            # with a third of the CPU it takes three times as long at most; each change of pace may cost a nanosecond
            assert least <= worked[phase] <= (3 * least + MICROSECOND_NS if bound else least)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(several(plain_jobs), st.integers(0, 3))
def test_nodes_may_fail_at_any_time(work: Workload, seed: int) -> None:
    """Everyone ends in spite of failures every few minutes; each failure costs work, and the sum of it is told."""
    costs = Costs(node_failures_per_day_millis=24_000, node_repair_seconds=90, restart_seconds=5)
    result = run(work, costs, seed=seed)
    check_counts(result)
    for job in result.jobs:
        assert job.outcome in ("completed", "failed")
        if job.outcome == "completed":
            again_ns = worked_ns(job) - truth_ns(work, job.job)
            assert 0 <= again_ns <= job.lost_ms * 1_000_000 + 1_000_000


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(several(plain_jobs), several(elastic_jobs)), st.integers(1, 60))
def test_it_goes_on_from_any_state_that_there_was(work: Workload, passes: int) -> None:
    """Whatever is half done there (starts, savings, phases that are asked for): all of it goes on to its end."""
    states: list[State] = []

    def see(state: State) -> None:
        if len(states) < passes:
            states.append(state if len(states) + 1 < passes else decode_snapshot(encode_snapshot(state)))

    run(work, see=see)
    if len(states) < passes:
        return
    state = states[-1]
    left = tuple(each for each in work.arrivals if each.job not in state.finished)
    over = {name for name, job in state.jobs.items() if any(m.status in ("completed", "failed") for m in job.members)}
    result = run(Workload("rest", (), left), begin=state)
    check_counts(result)
    for job in result.jobs:
        if job.job in over:  # what was left of it was to be seen
            assert job.outcome in ("completed", "failed")
            continue
        truth = next(each.truth for each in left if each.job == job.job)
        assert job.outcome == ("completed" if truth.fails_after_seconds is None else "failed"), job
        if job.outcome == "completed" and not any(span.cpu_bound for span in truth.spans):
            assert worked_ns(job) == truth_ns(work, job.job)


@settings(max_examples=8, deadline=None)
@given(several(elastic_jobs), st.integers(0, 3))
def test_the_same_again_is_the_same_to_the_byte(work: Workload, seed: int) -> None:
    costs = Costs(node_failures_per_day_millis=12_000, node_repair_seconds=60)
    copy = msgspec.json.decode(msgspec.json.encode(work), type=Workload)
    assert encode(run(work, costs, seed=seed)) == encode(run(copy, costs, seed=seed))


def test_the_seed_is_that_of_the_failures() -> None:
    costs = Costs(node_failures_per_day_millis=24_000)
    work = workload(NODES, *(arrival(f"j{number}", number, spec(gpus=2), 4000) for number in range(6)))
    first, again, other = (encode(run(work, costs, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    calm = run(work, Costs(), seed=1)
    assert msgspec.structs.replace(calm, seed=2) == run(work, Costs(), seed=2)


def test_failures_are_the_same_whatever_is_decided() -> None:
    costs = Costs(node_failures_per_day_millis=24_000)
    jobs = [arrival(f"j{number}", number, spec(gpus=2), 4000) for number in range(8)]
    total = [
        {
            sample.at_ns
            for sample in run(workload(NODES, *part), costs, rules=elastic()).samples
            if sample.gpus_total_millis < 10_000
        }
        for part in (jobs, jobs[:4])
    ]
    begun = [min(times) for times in total]
    assert begun[0] == begun[1] > 0
    assert begun[0] % SECOND  # it is no time at which a pass happened to be made
