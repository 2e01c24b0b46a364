"""The synthetic agent workload: what its seed fixes, what a job holds static and elastic, and what is compared."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest
from blake3 import blake3
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec, member_floor, phase_need
from tidegate_scheduler.simulator import rules
from tidegate_scheduler.simulator.at_once import at_once
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.engine import simulate
from tidegate_scheduler.simulator.run import JobRun, Run, Sample
from tidegate_scheduler.simulator.traces import agents, nodespec
from tidegate_scheduler.simulator.traces.agents import AgentJob

SECOND = 1_000_000_000
DRAWN = "4068d9f6"
CYCLES = 6


def job(name: str, simulators: int, gpus: int, *cycles: tuple[int, int]) -> AgentJob:
    return AgentJob(name, simulators, gpus, cycles)


def short(count: int) -> list[AgentJob]:
    """Return the first of the jobs with a few cycles of each."""
    return [msgspec.structs.replace(each, cycles=each.cycles[:CYCLES]) for each in agents.draw()[:count]]


def run(*jobs: AgentJob, elastic: bool, nodes: str = "1x(cpu=8,gpus=2,memory=64G)") -> Run:
    workload = agents.workload(jobs, elastic=elastic, nodes=nodespec.parse(nodes))
    return simulate(workload, rules.elastic(), Costs())


def seconds(found: JobRun) -> float:
    assert found.ended_ns is not None
    return (found.ended_ns - found.submitted_ns) / SECOND


def test_the_seed_fixes_the_jobs() -> None:
    drawn = agents.draw()
    assert blake3(msgspec.json.encode(drawn)).hexdigest().startswith(DRAWN), "other jobs than what was reported of"
    assert drawn == agents.draw(seed=agents.SEED)
    assert drawn != agents.draw(seed=agents.SEED + 1)


def test_what_is_drawn_lies_within_its_bounds_and_reaches_them() -> None:
    drawn = agents.draw(400)
    cycles = [cycle for each in drawn for cycle in each.cycles]
    found = {
        "simulators": {each.simulators for each in drawn},
        "gpus": {each.gpus for each in drawn},
        "cycles": {len(each.cycles) for each in drawn},
        "sampling": {sampling for sampling, _ in cycles},
        "learning": {learning for _, learning in cycles},
    }
    assert {name: (min(each), max(each)) for name, each in found.items()} == {
        "simulators": (4, 16),
        "gpus": (1, 2),
        "cycles": (20, 60),
        "sampling": (60, 240),
        "learning": (30, 120),
    }
    assert len(agents.draw()) == 64


def test_scaling_changes_the_lengths_of_the_phases_and_nothing_else() -> None:
    (found,) = agents.scaled([job("a", 4, 1, (60, 30), (100, 50))], 500, 1500)
    assert found == job("a", 4, 1, (30, 45), (50, 75))


@pytest.mark.parametrize("each", agents.draw(8), ids=lambda each: each.name)
def test_a_static_job_holds_its_peak_and_an_elastic_one_little_but_its_memory(each: AgentJob) -> None:
    static, elastic = agents.static_spec(each), agents.elastic_spec(each)
    assert member_floor(static) == each.peak
    idle = (each.simulators + 1) * agents.IDLE_MILLIS
    assert member_floor(elastic) == Resources(idle, each.peak.memory_mib)
    for spec in (static, elastic):
        assert phase_need(spec, "sampling") == Resources(
            each.simulators * 1000 + agents.IDLE_MILLIS, each.peak.memory_mib
        )
        assert phase_need(spec, "learning") == Resources(
            each.simulators * agents.IDLE_MILLIS + 1000, each.peak.memory_mib, each.gpus
        )


def test_static_and_elastic_differ_in_nothing_but_asking() -> None:
    (one,) = agents.draw(1)
    static, elastic = agents.static_spec(one), agents.elastic_spec(one)
    differ = [name for name in JobSpec.__struct_fields__ if getattr(static, name) != getattr(elastic, name)]
    assert differ == ["phase_entry", "borrows"]


def test_sets_fit_node_by_node_and_keep_the_order() -> None:
    jobs = [
        job(name, simulators, gpus, (60, 30))
        for name, simulators, gpus in (("a", 5, 2), ("b", 5, 1), ("c", 5, 1), ("d", 4, 1), ("e", 7, 2))
    ]
    sets = agents.sets_that_fit(jobs, nodespec.parse("2x(cpu=8,gpus=2,memory=64G)"))
    assert [[each.name for each in found] for found in sets] == [["a", "b"], ["c", "d"], ["e"]]
    with pytest.raises(ValueError, match="large fits on no node"):
        agents.sets_that_fit([job("large", 9, 1, (60, 30))], nodespec.parse("2x(cpu=8,gpus=2,memory=64G)"))


def test_no_more_jobs_work_at_once_than_the_scarcest_resource_lets() -> None:
    nodes = nodespec.parse("1x(cpu=8,gpus=2,memory=64G)")
    cpu_bound, gpu_bound = job("a", 7, 1, (100, 100)), job("b", 1, 2, (100, 300))
    assert agents.most_at_once([cpu_bound], nodes) == pytest.approx(2)  # 400 CPU-seconds each 100 s of work, of 8 CPUs
    assert agents.most_at_once([gpu_bound], nodes) == pytest.approx(4 / 3)  # 600 GPU-seconds in 400 s, of 2 GPUs


def test_two_jobs_that_take_turns_do_beside_each_other_what_static_quotas_do_one_after_the_other() -> None:
    jobs = (job("a", 6, 2, (100, 100)), job("b", 6, 2, (100, 100)))
    static, elastic = run(*jobs, elastic=False), run(*jobs, elastic=True)
    assert [seconds(each) for each in static.jobs] == pytest.approx([201, 403], abs=3)
    assert [seconds(each) for each in elastic.jobs] == pytest.approx([201, 303], abs=6)
    assert at_once(static).jobs == pytest.approx(1, abs=0.02)
    assert sum(phase.asked_ns for phase in elastic.jobs[1].phases) >= 100 * SECOND, "it waits for the first to learn"


def test_jobs_whose_peaks_fit_are_as_fast_beside_each_other_as_alone() -> None:
    (together,) = agents.sets_that_fit(short(12))
    alone = {each.name: seconds(run(each, elastic=True, nodes=agents.NODES).jobs[0]) for each in together}
    for found in run(*together, elastic=True, nodes=agents.NODES).jobs:
        assert seconds(found) <= 1.1 * alone[found.job]


def test_more_jobs_work_at_once_than_with_static_quotas() -> None:
    jobs = short(16)
    nodes = "2x(cpu=32,gpus=4,memory=256G)"
    static, elastic = (run(*jobs, elastic=each, nodes=nodes) for each in (False, True))
    assert {each.outcome for found in (static, elastic) for each in found.jobs} == {"completed"}
    assert at_once(elastic).jobs > at_once(static).jobs * Fraction(5, 4)
    assert at_once(elastic).jobs <= agents.most_at_once(jobs, nodespec.parse(nodes))


# ---- who works, and when there is demand ----


def sampled(*samples: tuple[int, int, int, int]) -> Run:
    """A run of which only when, how many waited, were placed and worked is of interest."""
    return Run(
        workload="w",
        rules="r",
        seed=0,
        costs=Costs(),
        jobs=(),
        stays=(),
        samples=tuple(
            Sample(at_ns, waiting, placed, working, 0, 0, 0, 0) for at_ns, waiting, placed, working in samples
        ),
        decided=(),
        begin_ns=0,
        end_ns=samples[-1][0],
    )


def test_who_waits_counts_as_demand_and_not_as_working() -> None:
    found = at_once(sampled((0, 1, 2, 2), (10, 0, 3, 1), (30, 0, 2, 2), (90, 0, 0, 0)))
    assert (found.jobs, found.demand_ns) == (Fraction(2 * 10 + 1 * 20, 30), 30)


def test_without_demand_nothing_is_said() -> None:
    found = at_once(sampled((0, 0, 2, 2), (10, 0, 0, 0)))
    assert (found.jobs, found.demand_ns) == (0, 0)
