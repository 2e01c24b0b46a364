"""Elastic against static quotas for real: cartpole jobs on the local stack, first with static quotas, then elastic.

Both are the same jobs with the same seeds. A static job tells its phases and holds the peak of them for life; an
elastic one asks for them, holds next to nothing in between, and is lent what nobody needs. Each has a stack of its own,
in turn. Prints one JSON line; exit code 0 only if every job learnt bit for bit the same both times, every decision was
recomputed and equal, and nothing was left behind. Needs what `tidegate up` needs, and torch for the example:

    python benchmarks/elastic_real.py --jobs 4

`jobs_at_once_*`: the mean number of jobs that work, from the first submission to the last end, by what the journal
says: who waits to be placed, starts, or waits for a phase does not work.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tidegate_local.demo.observed import Entry

from tests.e2e.running import EXAMPLE, RunningStack

NODE_CPU_MILLIS = 2000
JOBS = (2, 8)
STEPS = 1024
UPDATES = 10
SIMULATORS = 4
SECONDS_MAX = 1800.0
SECOND_NS = 1_000_000_000
RESULT = ("weights_digest", "mean_return", "steps", "updates")
WORKING_PHASES = ("sampling", "learning")
KINDS = ("JobSubmitted", "PhaseRequested", "PhaseChanged", "SandboxExited", "JobCompleted")

IDLE_MILLIS = {"simulator": 10, "learner": 20}
"""What a process of an elastic job has between its phases at least."""

NEED_MILLIS = {
    "sampling": {"simulator": 160, "learner": 200},
    "learning": {"simulator": 10, "learner": 200},
}
"""What one process needs in each phase, static and elastic. A job needs 840 while it samples, 240 while it learns:
two fit by their peaks; of four, two may sample while one learns, or one while three do."""

MOST_MILLIS = {"simulator": 350, "learner": 1000}
"""What one process of an elastic job can use of what is lent."""

JsonObject = dict[str, Any]


class Side(msgspec.Struct, frozen=True):
    """What came of the jobs with one kind of quotas."""

    jobs_at_once: float
    wall_s: float
    avg_completion_s: float
    results: tuple[JsonObject, ...]
    decisions: int
    left: int


def spec_of(number: int, updates: int, *, elastic: bool, level: str) -> JsonObject:
    """Return the job of the example with that seed, which samples and learns so many times."""
    spec: JsonObject = json.loads((EXAMPLE / "job.json").read_text())
    for component in spec["components"]:
        kind, memory_mib = component["name"], component["resources"]["default"]["minimum"]["memory_mib"]
        default = IDLE_MILLIS[kind] if elastic else NEED_MILLIS["sampling"][kind]
        phases = {"default": default, **{phase: need[kind] for phase, need in NEED_MILLIS.items()}}
        component["resources"] = {
            phase: {
                "minimum": {"cpu_millis": millis, "memory_mib": memory_mib},
                **({"maximum": {"cpu_millis": max(millis, MOST_MILLIS[kind])}} if elastic else {}),
            }
            for phase, millis in phases.items()
        }
    learner = ("learner.py", "--quick", "--max-updates", str(updates), "--steps", str(STEPS))
    spec["components"][-1]["command"] = ["python", *learner, "--connect-seconds", "600"]
    spec |= {"name": f"cartpole-{number}", "seed": number, "isolation": level, "time_limit_seconds": None}
    del spec["expected_seconds"]
    return spec | ({"phase_entry": "asked", "borrows": True} if elastic else {})


def play(root: Path, jobs: int, updates: int, *, elastic: bool) -> Side:
    """Run the jobs on a stack of their own, from the submission of all to the end of the last."""
    stack = RunningStack.start(root / ("elastic" if elastic else "static"), "--cpu-millis", str(NODE_CPU_MILLIS))
    try:
        names = [
            stack.client.submit(
                spec_of(number, updates, elastic=elastic, level=stack.record.level), workdir=EXAMPLE
            ).job_id
            for number in range(1, jobs + 1)
        ]
        stack.until(lambda: all(_ended(stack, name) for name in names), "all jobs ended", SECONDS_MAX)
        ended = stack.completed(*names)
        entries = [entry for entry in stack.events(*KINDS) if entry.job_id in names]
        verified = stack.verify()
    finally:
        left = stack.end()
    submitted = {entry.job_id: entry.at_ns for entry in entries if entry.kind == "JobSubmitted"}
    completed = {entry.job_id: entry.at_ns for entry in entries if entry.kind == "JobCompleted"}
    took_ns = [completed[name] - submitted[name] for name in names]
    return Side(
        jobs_at_once=round(at_once(entries), 2),
        wall_s=round((max(completed.values()) - min(submitted.values())) / SECOND_NS, 1),
        avg_completion_s=round(sum(took_ns) / len(took_ns) / SECOND_NS, 1),
        results=tuple({name: job["result"][name] for name in RESULT} for job in ended),
        decisions=verified["decisions_verified"],
        left=len(left),
    )


def _ended(stack: RunningStack, job: str) -> bool:
    state = stack.client.job(job)["state"]
    if state in {"failed", "cancelled", "rejected"}:
        raise SystemExit(f"{job} is {state}: nothing is compared\n{stack.story()}")
    return bool(state == "completed")


def at_once(entries: Sequence[Entry]) -> float:
    """Return how many jobs worked on average, from the first submission to the last end."""
    working: set[str] = set()
    ordered = sorted(entries, key=lambda each: (each.at_ns, each.seq, each.index))
    worked_ns, since_ns = 0, ordered[0].at_ns
    for entry in ordered:
        worked_ns += len(working) * (entry.at_ns - since_ns)
        since_ns = entry.at_ns
        phase = entry.data.get("phase", "")
        if entry.kind == "PhaseChanged" and phase in WORKING_PHASES:
            working.add(entry.job_id)
        elif entry.kind != "PhaseRequested" or phase:
            working.discard(entry.job_id)  # it has left its phase: for none, for one that it waits for, or for good
    return worked_ns / (since_ns - ordered[0].at_ns)


def main() -> int:
    """Run both, print the line, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=4, choices=range(JOBS[0], JOBS[1] + 1), metavar="2..8")
    parser.add_argument("--updates", type=int, default=UPDATES, help="how often each job samples and learns")
    parser.add_argument("--home", type=Path, help="where the stacks' data directories are kept; else a temporary one")
    arguments = parser.parse_args()
    root = arguments.home or Path(tempfile.mkdtemp(prefix="tidegate-elastic-"))
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o711)  # sandboxes pass through it
    try:
        static = play(root, arguments.jobs, arguments.updates, elastic=False)
        print(f"static: {static.wall_s} s", file=sys.stderr, flush=True)
        elastic = play(root, arguments.jobs, arguments.updates, elastic=True)
        print(f"elastic: {elastic.wall_s} s", file=sys.stderr, flush=True)
    finally:
        if not arguments.home:
            shutil.rmtree(root, ignore_errors=True)
    same = static.results == elastic.results
    line = {
        "jobs": arguments.jobs,
        "updates": arguments.updates,
        "node_cpu_millis": NODE_CPU_MILLIS,
        "jobs_at_once_static": static.jobs_at_once,
        "jobs_at_once_elastic": elastic.jobs_at_once,
        "ratio": round(elastic.jobs_at_once / static.jobs_at_once, 2),
        "wall_static_s": static.wall_s,
        "wall_elastic_s": elastic.wall_s,
        "avg_completion_static_s": static.avg_completion_s,
        "avg_completion_elastic_s": elastic.avg_completion_s,
        "same_results": same,
        "weights_digests": [result["weights_digest"][:12] for result in elastic.results],
        "decisions_verified": static.decisions + elastic.decisions,
        "leftovers": static.left + elastic.left,
    }
    print(json.dumps(line), flush=True)
    return 0 if same and not static.left + elastic.left else 1


if __name__ == "__main__":
    sys.exit(main())
