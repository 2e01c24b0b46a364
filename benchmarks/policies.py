"""Policies measured against each other on public traces, in one simulator that costs all of them the same.

Prints one JSON line for each row (`trace, policy, knows_durations, avg_jct_s, p99_jct_s, makespan_s, gpu_utilization,
gpu_allocation_pct, preemptions, lost_gpu_s`); what has no meaning in a row is null. Rows of openb say beside it what
the study of FGD has for the same policy and seed (`known_allocation_pct`), where its results lie with the traces. Every
row can be run alone, and says how much time of a core it took; `--jobs` takes the first jobs of a trace only.

Run: python benchmarks/policies.py --traces DIR [--trace muri|philly|openb] [--policy NAME ...] [--list]
     [--jobs N] [--nodes 64x8] [--seeds 10] [--pass-interval-ms 1000]
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.simulator import measures
from tidegate_scheduler.simulator.choice import Choice, rules_for
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.engine import simulate
from tidegate_scheduler.simulator.run import Run
from tidegate_scheduler.simulator.traces import find, nodespec, openb
from tidegate_scheduler.simulator.workload import Arrival, Workload, whole

COSTS = Costs()


class Trace(msgspec.Struct, frozen=True):
    """A trace of jobs: its file, the nodes, and how far rounds of passes are apart at least, for every policy."""

    file: str
    nodes: str
    pass_interval_ms: int


TRACES = {
    "muri": Trace("muri_trace1_pr.csv", "8x8", 10_000),
    "philly": Trace("chronus_philly_mix1.csv", "128x8", 5_000),
}
"""Traces of jobs by the name of their rows. In 250 days ten seconds mean nothing, and in jobs of a minute little."""

OPENB_PODS, OPENB_NODES = "openb_pod_list_default.csv", "openb_node_list_gpu_node.csv"
OPENB_KNOWN, OPENB_WORKLOAD = "fgd_expected_alloc_pct.csv", "openb_pod_list_default"
OPENB_KNOWN_AS = {"best_fit": "05-BestFit", "fgd": "06-FGD"}
"""The results that the study of FGD published, by seed, and what it calls the policies that are compared here too."""

OPENB_DEMAND_PERMILLE = 1300
OPENB_FIRST_SEED = 42
"""As in the study of FGD: pods are drawn until they ask for 130% of all GPUs, ten times, by the seeds 42 to 51."""

UNGUARDED = {
    "ageing_seconds": 0,
    "protection_permille": 0,
    "preemptions_max": 1_000_000,
    "preemption_cooldown_seconds": 0,
    "reservations_max": 0,
}
"""What policy 2 promises to those who run and to those who wait, taken away: only the order counts."""

GUARDED = {"ageing_seconds": 30 * 24 * 3600}
"""Its promises as they are by themselves, but for ageing: by an hour of that, all who wait for days become equal."""

HOURLY = {"ageing_seconds": 0, "reservations_max": 0, "preemption_cooldown_seconds": 3600, "slice_steps": 3}
"""Protection and a budget of leaving, and whoever was placed stays for an hour; nobody comes first by waiting."""

PLACING = {"cpu_beside_gpu_millis": 10_000, "reservations_max": 0}
"""About what pods with one GPU ask for; and nothing is kept for those that do not fit, since nobody leaves."""


class Known(msgspec.Struct, frozen=True):
    """A line of the study's results: the percentage of GPUs given away when as much was asked for as there is."""

    workload: str
    sc_policy: str
    tune: str
    seed: int
    given: float = msgspec.field(name="100")


class Policy(msgspec.Struct, frozen=True):
    """One way to decide, by the name of its row. `one_tenant`: users do not share fairly, as for the baselines."""

    name: str
    choice: Choice
    traces: tuple[str, ...]
    one_tenant: bool = False


def _elastic(name: str, parameters: dict[str, int], *, estimates: bool, one_tenant: bool = False) -> Policy:
    return Policy(name, Choice("elastic", parameters, estimates=estimates), JOBS, one_tenant)


JOBS = ("muri", "philly")
POLICIES = (
    Policy("fifo", Choice("fifo"), JOBS),
    Policy("static_priority", Choice("static_priority"), JOBS),
    Policy("easy-blind", Choice("easy"), JOBS),
    Policy("easy-estimates", Choice("easy", estimates=True), JOBS),
    Policy("tiresias", Choice("tiresias"), JOBS),
    Policy("tiresias-queues", Choice("tiresias_queues"), JOBS),
    Policy("srtf", Choice("srtf"), JOBS),
    Policy("srsf", Choice("srsf"), JOBS),
    _elastic("elastic-blind", {}, estimates=False),
    _elastic("elastic-estimates", {}, estimates=True),
    _elastic("elastic-slicing-blind", GUARDED | {"slice_steps": 3}, estimates=False),
    _elastic("elastic-slicing-estimates", GUARDED | {"slice_steps": 1}, estimates=True),
    _elastic("elastic-hourly-blind", HOURLY, estimates=False),
    _elastic("elastic-unguarded-blind", UNGUARDED | {"slice_steps": 3}, estimates=False, one_tenant=True),
    _elastic("elastic-unguarded-estimates", UNGUARDED | {"slice_steps": 1}, estimates=True, one_tenant=True),
    Policy("best_fit", Choice("best_fit"), (*JOBS, "openb")),
    Policy("fgd", Choice("fgd"), (*JOBS, "openb")),
    Policy("elastic", Choice("elastic", {"reservations_max": 0}), ("openb",)),
    Policy("elastic-placing", Choice("elastic", PLACING), ("openb",)),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rows that are asked for."""
    asked = _parsed(arguments)
    chosen = [
        (policy, trace)
        for policy in POLICIES
        for trace in policy.traces
        if (not asked.policy or policy.name in asked.policy) and (not asked.trace or trace in asked.trace)
    ]
    if not chosen:
        named = f"{', '.join(asked.policy)} for {', '.join(asked.trace)}"
        raise SystemExit(f"there is no row of {named}; --list says which rows there are")
    for policy, trace in chosen:
        if asked.list:
            print(trace, policy.name)
        elif trace == "openb":
            for row in _openb_rows(policy, asked.traces, asked.seeds):
                print(json.dumps(row), flush=True)
        else:
            print(json.dumps(_row(policy, trace, asked)), flush=True)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is refused; accepted is a whole number from 1 on")
    return int(text)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, help="the folder with the trace files")
    parser.add_argument("--trace", action="append", choices=[*TRACES, "openb"], help="only rows of this trace")
    parser.add_argument("--policy", action="append", choices=[each.name for each in POLICIES], help="only this one")
    parser.add_argument("--jobs", type=_positive, help="only so many jobs of muri or philly, the first ones")
    parser.add_argument("--nodes", help="other nodes for muri or philly, as in 64x8")
    parser.add_argument("--seeds", type=_positive, default=10, help="how often openb is drawn")
    parser.add_argument(
        "--pass-interval-ms", type=_positive, help="how far rounds of passes are apart, if not as by itself"
    )
    parser.add_argument("--list", action="store_true", help="say which rows there are, and run none")
    return parser.parse_args(arguments)


# ---- traces of jobs ----


def _row(policy: Policy, trace: str, asked: argparse.Namespace) -> dict[str, Any]:
    known, began = TRACES[trace], time.process_time()
    nodes = asked.nodes or known.nodes
    workload = find.read(asked.traces / known.file, nodespec.parse(nodes))
    arrivals = tuple(_together(each) if policy.one_tenant else each for each in workload.arrivals[: asked.jobs])
    workload = msgspec.structs.replace(workload, arrivals=arrivals)
    rules = rules_for(policy.choice, workload)
    costs = msgspec.structs.replace(COSTS, pass_interval_ms=asked.pass_interval_ms or known.pass_interval_ms)
    found = measures.of(simulate(workload, rules, costs))
    return {
        "trace": f"{trace} on {nodes}" + (f", first {asked.jobs} jobs" if asked.jobs else ""),
        "policy": policy.name,
        "knows_durations": rules.knows_durations,
        "avg_jct_s": found.completion.avg_s,
        "p99_jct_s": found.completion.p99_s,
        "makespan_s": found.makespan_s,
        "gpu_utilization": found.gpu_utilization,
        "gpu_allocation_pct": round(found.gpu_allocation * 100, 2),
        "preemptions": found.preemptions,
        "lost_gpu_s": found.lost_gpu_s,
        "jobs_completed": found.completed,
        "pass_interval_ms": costs.pass_interval_ms,
        "cpu_s": round(time.process_time() - began),
        "parameters": policy.choice.parameters,
    }


def _together(arrival: Arrival) -> Arrival:
    return msgspec.structs.replace(arrival, spec=msgspec.structs.replace(arrival.spec, tenant="all"))


# ---- how much of the GPUs can be given away ----


class Drawn(msgspec.Struct, frozen=True):
    """What one drawing came to: the part of the GPUs that was given away, and what that took."""

    given_percent: Fraction
    preemptions: int
    lost_gpu_ms: int
    took_s: float


def _openb_rows(policy: Policy, folder: Path, seeds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each seed, then their mean."""
    found: list[Drawn] = []
    every, known = range(OPENB_FIRST_SEED, OPENB_FIRST_SEED + seeds), known_percent(policy.name, folder)
    for seed in every:
        workload = drawn(folder, seed)
        began = time.process_time()
        run = simulate(workload, rules_for(policy.choice, workload), COSTS)
        given = Fraction(held_millis(run, workload) * 100, _capacity_millis(workload))
        took_s = time.process_time() - began
        lost_gpu_ms = sum(job.lost_gpu_ms for job in run.jobs)
        found.append(Drawn(given, sum(job.preemptions for job in run.jobs), lost_gpu_ms, took_s))
        yield _openb_row(policy, f"openb, seed {seed}", found[-1:], known.get(seed))
    told = [known[seed] for seed in every if seed in known]
    mean = sum(told) / len(told) if len(told) == seeds else None
    yield _openb_row(policy, f"openb, mean of {seeds} seeds", found, mean)


def known_percent(policy: str, folder: Path) -> dict[int, float]:
    """Return what the study of FGD has for a policy, by seed; nothing where it compares no such one, or is not here."""
    if policy not in OPENB_KNOWN_AS or not (folder / OPENB_KNOWN).exists():
        return {}
    with (folder / OPENB_KNOWN).open(newline="") as file:
        lines = [msgspec.convert(line, Known, strict=False) for line in csv.DictReader(file)]
    tune = str(OPENB_DEMAND_PERMILLE / 1000)
    asked = (OPENB_WORKLOAD, OPENB_KNOWN_AS[policy], tune)
    return {line.seed: line.given for line in lines if (line.workload, line.sc_policy, line.tune) == asked}


def _openb_row(policy: Policy, trace: str, found: list[Drawn], known: float | None) -> dict[str, Any]:
    nothing = dict.fromkeys(("avg_jct_s", "p99_jct_s", "makespan_s", "gpu_utilization"))
    count = len(found)
    return {
        "trace": trace,
        "policy": policy.name,
        "knows_durations": False,
        **nothing,
        "gpu_allocation_pct": round(float(sum(each.given_percent for each in found) / count), 2),
        "preemptions": round(sum(each.preemptions for each in found) / count, 2),
        "lost_gpu_s": round(sum(each.lost_gpu_ms for each in found) / count / 1000, 3),
        "known_allocation_pct": None if known is None else round(known, 2),
        "cpu_s": round(sum(each.took_s for each in found)),
        "parameters": policy.choice.parameters,
    }


def drawn(folder: Path, seed: int) -> Workload:
    """Return the pods that arrive, one a second, until they have asked for all GPUs: who came stays.

    All pods of the list and others drawn from it, to 130% of the GPUs, in an order that is drawn too.
    """
    nodes = nodespec.read(folder / OPENB_NODES)
    pods, draw = openb.pods(folder / OPENB_PODS), random.Random(seed)
    capacity = sum(len(node.gpus) for node in nodes) * WHOLE_MILLIS
    chosen, asked = list(pods), sum(_millis(pod) for pod in pods)
    while asked * 1000 < capacity * OPENB_DEMAND_PERMILLE:
        chosen.append(draw.choice(pods))
        asked += _millis(chosen[-1])
    draw.shuffle(chosen)
    asked, count = 0, 0
    while asked < capacity:
        asked += _millis(chosen[count])
        count += 1
    arrivals = [
        Arrival(number * SECOND_NS, f"pod-{number:05}", openb.spec_of(pod), whole(2 * count - number))
        for number, pod in enumerate(chosen[:count])
    ]
    return Workload(f"openb-{seed}", nodes, tuple(arrivals))


def held_millis(run: Run, workload: Workload) -> int:
    """Return what is held of the GPUs, in thousandths, when the last pod has come and nobody has left yet."""
    last_ns = workload.arrivals[-1].at_ns + 2 * SECOND_NS
    return max(sample.gpus_held_millis for sample in run.samples if sample.at_ns <= last_ns)


def _capacity_millis(workload: Workload) -> int:
    return sum(len(node.gpus) for node in workload.nodes) * WHOLE_MILLIS


def _millis(pod: openb.Pod) -> int:
    return pod.gpus * WHOLE_MILLIS + pod.gpu_millis


if __name__ == "__main__":
    sys.exit(main())
