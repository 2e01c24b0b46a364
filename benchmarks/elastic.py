"""Elastic against static quotas on the synthetic agent workload: how many jobs work at once, and what that costs each.

Both are the same simulator, the same core and the same jobs; a static job holds the peak of its phases for life. Prints
one JSON line for each scaling of the phases (thousandths of sampling and of learning), progress on stderr:

    python benchmarks/elastic.py                      # as drawn, and with phases half as long, and half as long again
    python benchmarks/elastic.py --scale 1000,1000    # as drawn only

`jobs_at_once_*`: the mean number of jobs that work, while some job does not (`simulator/at_once.py`). `slowdown_p99`:
the completion of a job beside as many others as fit by their peaks, over its completion alone, elastic both times.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence

from tidegate_scheduler.simulator import rules
from tidegate_scheduler.simulator.at_once import at_once
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.engine import simulate
from tidegate_scheduler.simulator.measures import of
from tidegate_scheduler.simulator.run import JobRun, Run
from tidegate_scheduler.simulator.traces import agents
from tidegate_scheduler.simulator.traces.agents import AgentJob

SCALES = ((1000, 1000), (500, 500), (1500, 1500), (500, 1500), (1500, 500))
"""Thousandths of the sampling and of the learning phases."""

COSTS = Costs()
PERCENT = 99

Scale = tuple[int, int]


def run_of(jobs: Sequence[AgentJob], *, elastic: bool) -> Run:
    """Simulate the jobs, all there from the beginning."""
    return simulate(agents.workload(jobs, elastic=elastic), rules.elastic(), COSTS)


def numbers(run: Run) -> dict[str, float]:
    """Return what is said of one run."""
    measured, worked = of(run), at_once(run)
    whole_s = sum(job.work_seconds for job in run.jobs)
    if measured.completed != len(run.jobs):
        raise SystemExit(f"{len(run.jobs) - measured.completed} jobs did not complete: nothing is compared")
    return {
        "jobs_at_once": round(float(worked.jobs), 2),
        "makespan_s": measured.makespan_s,
        "work_over_makespan": round(whole_s / measured.makespan_s, 2),
        "avg_jct_s": measured.completion.avg_s,
        "p99_jct_s": measured.completion.p99_s,
        "gpu_idle": round(1 - measured.gpu_utilization, 4),
        "moves": sum(decided.kind == "PreemptRequested" for decided in run.decided),
    }


def completion_ns(job: JobRun) -> int:
    """Return how long a job took."""
    if job.ended_ns is None:
        raise SystemExit(f"{job.job} did not end: nothing is compared")
    return job.ended_ns - job.submitted_ns


def slowdowns(jobs: Sequence[AgentJob]) -> Iterator[float]:
    """Yield for each job how much longer it takes in a set whose peaks fit than alone."""
    alone_ns = {job.name: completion_ns(run_of((job,), elastic=True).jobs[0]) for job in jobs}
    for together in agents.sets_that_fit(jobs):
        for found in run_of(together, elastic=True).jobs:
            yield completion_ns(found) / alone_ns[found.job]


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that so many of a hundred do not exceed (nearest rank)."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


def compare(scale: Scale, count: int, seed: int) -> dict[str, object]:
    """Return the line of one scaling."""
    jobs = agents.scaled(agents.draw(count, seed), *scale)
    static, elastic = numbers(run_of(jobs, elastic=False)), numbers(run_of(jobs, elastic=True))
    if not static["jobs_at_once"] or not elastic["jobs_at_once"]:
        raise SystemExit(
            f"{count} jobs all work at once all the time, so nothing is compared; accepted are more of them"
        )
    slower = list(slowdowns(jobs))
    sets = agents.sets_that_fit(jobs)
    return {
        "trace": "agents",
        "seed": seed,
        "jobs": count,
        "sampling_permille": scale[0],
        "learning_permille": scale[1],
        **{f"{name}_static": value for name, value in static.items() if name != "moves"},
        **{f"{name}_elastic": value for name, value in elastic.items() if name != "moves"},
        "ratio": round(elastic["jobs_at_once"] / static["jobs_at_once"], 3),
        "makespan_ratio": round(static["makespan_s"] / elastic["makespan_s"], 3),
        "bound": round(agents.most_at_once(jobs), 2),
        "moves": elastic["moves"],
        "slowdown_p99": round(percentile(slower, PERCENT), 4),
        "slowdown_max": round(max(slower), 4),
        "sets_that_fit": [len(each) for each in sets],
    }


def positive(text: str) -> int:
    """Return how many jobs are asked for. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit()) or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is refused; accepted is a whole number from 1 on")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", action="append", metavar="SAMPLING,LEARNING", help="thousandths; may be repeated")
    parser.add_argument("--jobs", type=positive, default=agents.JOBS)
    parser.add_argument("--seed", type=int, default=agents.SEED)
    asked = parser.parse_args(arguments)
    scales = [tuple(map(int, each.split(","))) for each in asked.scale or ()] or list(SCALES)
    for sampling, learning in scales:
        began = time.monotonic()
        line = compare((sampling, learning), asked.jobs, asked.seed)
        print(json.dumps(line), flush=True)
        print(f"{sampling},{learning}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
