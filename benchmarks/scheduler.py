"""What the elastic policy costs at scale: one JSON line for each size of the cluster and of its queue.

A cluster of GPU nodes below switches is filled from a queue of some hundred shapes of jobs (twenty tenants, three
priorities, gangs among them, half of the jobs elastic in their phases), and then kept full: before each pass some of
those who run end. Passes are made as the service makes them, `decide` on the folded state and `evolve` of what it
decided, and timed in CPU time, so that others beside it count less.

- `placements_per_s`: jobs placed over the time of deciding, folding and collecting garbage, while the cluster fills.
- `pass_p50_ms`, `pass_p99_ms`: `decide` alone, of all passes with a full queue, each at most 100 decisions, as many as
  `decisions_per_pass_max` lets a pass make.
  They do not contain collecting garbage, which a scheduler does between two passes: whoever waits for the next pass
  waits for that too.
- `collecting_p99_ms`: that collecting, after each of these passes, where there is enough of it; most take nothing.
- `pass_and_collecting_p99_ms`: the 99th percentile of both together, of each pass and the collecting after it.
- `settled_pass_p50_ms`: a pass in which nothing changed.
- `pass_over_half_queue`: the median pass over that with half of the queue, of the same run: 1 where the queue's length
  costs nothing.
- `submissions_folded_per_s`: the largest of all events, folded on one core; `decisions_folded_per_s`: placements.
- `lines`: how many lines of jobs that are alike wait. With `--shapes 8000` hardly two jobs are: the worst case, as
  a pass looks at each line.
- `loop_ms`: what a fixed loop in Python takes, to compare machines and moments by (50 to 60 where this was written).

Run: python benchmarks/scheduler.py [--nodes 1000 10000] [--queued 10000 100000] [--shapes 0]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections import deque
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec
from tidegate_events import events as e
from tidegate_events.resources import GpuDevice, Resources
from tidegate_events.spec import Component, JobSpec, ResourceRange
from tidegate_scheduler.decide import decide
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.heap import Heap
from tidegate_scheduler.policy.elastic.pipeline import index_of
from tidegate_scheduler.policy.parameters import Parameters, as_values
from tidegate_scheduler.state import Job, State

from tests.support.framing import framed

SECOND = 1_000_000_000
BEGAN_NS = 1_700_000_000 * SECOND
NODES_PER_SWITCH = 32
GPUS_PER_NODE = 8
TENANTS = 20
ENDED_PER_PASS = 40
LEAVES_AFTER_NS = SECOND
STEADY_PASSES = 150
SETTLED_PASSES = 20
FILL_PASSES_MAX = 1000
LOOP_COUNT = 1_000_000
POLICY = 2


class Core:
    """The pure core, driven as the shell drives it, timed."""

    def __init__(self) -> None:
        self.state = State()
        self.now_ns = BEGAN_NS
        self.deciding: list[float] = []
        self.folding = 0.0
        self.tidying: list[float] = []
        self.waiting = 0
        self._heap: Heap | None = None
        self._placed: list[str] = []
        """A heap of those who were placed, whose names are in the order of submission. Nothing here looks at all jobs:
        no service does between two passes, and what a pass needs would leave the processor's caches."""

        self._asked: deque[tuple[int, str]] = deque()
        """Who was asked to leave, and when: it has saved and left after `LEAVES_AFTER_NS`."""

        self._written: dict[str, int] = {}
        self._say("scheduler", "s1", e.LeaderElected(id="1-leader", at_ns=BEGAN_NS, epoch=1, instance="s1"))
        values = as_values(Parameters())
        self._say("scheduler", "s1", e.PolicyChanged(id="1-policy", at_ns=BEGAN_NS, policy=POLICY, parameters=values))

    def _say(self, service: str, instance: str, *events: e.AnyEvent) -> None:
        number = self._written[instance] = self._written.get(instance, -1) + 1
        recorded = framed(self.state.seq + 1, service, instance, number, events)
        started = time.process_time()
        evolve(self.state, recorded)
        self.folding += time.process_time() - started

    def join(self, number: int) -> None:
        """Let a node join."""
        gpus = tuple(GpuDevice(index, f"gpu-{number}-{index}", "H", 80_000) for index in range(GPUS_PER_NODE))
        self._say(
            "node",
            f"n{number:05d}",
            e.NodeJoined(
                id=f"join-{number}",
                at_ns=self.now_ns,
                node=f"n{number:05d}",
                incarnation=1,
                capacity=Resources(96_000, 1_000_000, GPUS_PER_NODE, 80_000),
                levels=("trusted",),
                images={"host": "b3:00"},
                gpus=gpus,
                switch=f"switch-{number // NODES_PER_SWITCH:04d}",
            ),
        )

    def submit(self, number: int, shapes: int) -> None:
        """Let a job be submitted."""
        spec = spec_of(number, shapes)
        event = e.JobSubmitted(id=f"s-{number}", at_ns=self.now_ns, tenant=spec.tenant, job=f"j{number:07d}", spec=spec)
        self._say("gateway", "g1", event)
        self.waiting += 1

    def decide(self) -> list[e.AnyEvent]:
        """Decide once and fold it."""
        self.now_ns += SECOND // 20
        started = time.process_time()
        result = decide(self.state, self.now_ns)
        self.deciding.append(time.process_time() - started)
        if result.events:
            self._say("scheduler", "s1", *result.events)
        for event in result.events:
            if isinstance(event, e.JobPlaced):
                heappush(self._placed, event.job)
                self.waiting -= 1
            elif isinstance(event, e.PreemptRequested):
                self._asked.append((self.now_ns, event.job))
        self._tidy()
        return list(result.events[1:])

    def begin(self) -> None:
        """Make the tables, and set aside what there is, as a scheduler does when it starts."""
        decide(self.state, self.now_ns)
        self._heap = Heap(time.process_time())

    def _tidy(self) -> None:
        """Let garbage be collected, as a scheduler does between two passes."""
        assert self._heap is not None, "it has begun"
        started = time.process_time()
        self._heap.tidy(started)
        self.tidying.append(time.process_time() - started)

    def let_leave(self) -> None:
        """Let those go who were asked to, and have saved by now."""
        while self._asked and self.now_ns >= self._asked[0][0] + LEAVES_AFTER_NS:
            job = self.state.jobs.get(self._asked.popleft()[1])
            if job is not None and job.stage == "preempting":
                self._exit(job, "suspended")
                self.waiting += 1

    def end(self, count: int) -> None:
        """Let those who were submitted first of all who are placed complete, each member by a frame of its node."""
        ended = 0
        while ended < count and self._placed:
            job = self.state.jobs.get(heappop(self._placed))
            if job is None or job.stage not in ("placed", "running"):
                continue  # it was asked to leave, or left before and was placed again since
            ended += 1
            self._exit(job, "completed")

    def _exit(self, job: Job, outcome: Literal["completed", "suspended"]) -> None:
        for member in list(job.members):
            about: dict[str, Any] = {
                "at_ns": self.now_ns,
                "tenant": job.tenant,
                "job": job.id,
                "attempt": job.attempt,
                "rank": member.rank,
                "node": member.node,
            }
            started = e.SandboxStarted(id=f"a-{job.id}-{job.attempt}-{member.rank}", level="trusted", **about)
            acknowledged = outcome == "suspended"
            exited = e.SandboxExited(
                id=f"x-{job.id}-{job.attempt}-{member.rank}", outcome=outcome, acknowledged=acknowledged, **about
            )
            self._say("node", member.node, started, exited)


def spec_of(number: int, shapes: int) -> JobSpec:
    """Return the job of that number; a few hundred shapes in all, or about as many times more as `shapes` says."""
    gpus = (1, 1, 1, 2, 2, 4, 8, 0)[number % 8]
    gang = 4 if number % 97 == 0 else 1
    cpu = 1000 * (1 + (number * 7) % 12)
    more_mib = number % shapes if shapes else 0
    need = Resources(cpu, 1024 * (4 + number % 5) + more_mib, gpus)
    ranges = {"default": ResourceRange(minimum=need)}
    if number % 2:  # an agent that samples on more CPU than it is guaranteed, and learns on less
        ranges["sampling"] = ResourceRange(minimum=need, maximum=msgspec.structs.replace(need, cpu_millis=2 * cpu))
        ranges["learning"] = ResourceRange(minimum=msgspec.structs.replace(need, cpu_millis=cpu // 2))
    component = Component(name="main", command=("true",), resources=ranges)
    return JobSpec(
        name="job",
        tenant=f"lab-{number % TENANTS:02d}",
        submitter="u",
        components=(component,),
        priority=(0, 0, 0, 5, 10)[number % 5],
        gang_size=gang,
        communication="intensive" if gang > 1 and number % 2 else "loose",
        expected_seconds=600 * (1 + number % 6),
    )


def filled(nodes: int, queued: int, shapes: int) -> tuple[Core, dict[str, float]]:
    """Return a full cluster with so many in its queue, and what filling it took."""
    core = Core()
    for number in range(nodes):
        core.join(number)
    core.folding = 0.0
    submitted = queued + nodes * GPUS_PER_NODE * 2 // 3
    for number in range(submitted):
        core.submit(number, shapes)
    took = {"submissions_folded_per_s": submitted / core.folding}
    core.begin()
    core.deciding.clear()
    core.folding, placed = 0.0, 0
    for _ in range(FILL_PASSES_MAX):
        decided = core.decide()
        placed += sum(isinstance(event, e.JobPlaced) for event in decided)
        if not decided or core.waiting <= queued:
            break
    took["placed"] = placed
    took["placements_per_s"] = placed / (sum(core.deciding) + core.folding + sum(core.tidying))
    took["decisions_folded_per_s"] = placed / core.folding
    return core, took


def loop_ms() -> float:
    """Return what a fixed loop takes now."""
    started = time.process_time()
    sum(each * each for each in range(LOOP_COUNT))
    return (time.process_time() - started) * 1000


def measure(nodes: int, queued: int, shapes: int) -> dict[str, Any]:
    """Fill a cluster, keep it full, and say what passes cost."""
    loops = [loop_ms()]
    core, took = filled(nodes, queued, shapes)
    loops.append(loop_ms())
    both = list(core.deciding)
    full = steady(core)
    both += full
    until_next = [deciding + tidying for deciding, tidying in zip(both, core.tidying, strict=True)]
    collecting = list(core.tidying)
    left = core.waiting
    settled = settled_pass(core)
    lines = len(index_of(core.state).lines)
    loops.append(loop_ms())
    half = statistics.median(steady(filled(nodes, queued // 2, shapes)[0]))
    return {
        "nodes": nodes,
        "queued": left,
        "lines": lines,
        "placements_per_s": round(took["placements_per_s"]),
        "pass_p50_ms": round(statistics.median(both) * 1000, 3),
        "pass_p99_ms": p99_ms(both),
        "collecting_p99_ms": p99_ms(collecting),
        "pass_and_collecting_p99_ms": p99_ms(until_next),
        "steady_pass_p50_ms": round(statistics.median(full) * 1000, 3),
        "settled_pass_p50_ms": round(settled * 1000, 3),
        "pass_over_half_queue": round(statistics.median(full) / half, 3),
        "submissions_folded_per_s": round(took["submissions_folded_per_s"]),
        "decisions_folded_per_s": round(took["decisions_folded_per_s"]),
        "loop_ms": [round(each) for each in loops],
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def p99_ms(seconds: list[float]) -> float:
    """Return the 99th percentile."""
    return round(sorted(seconds)[int(len(seconds) * 0.99)] * 1000, 3)


def steady(core: Core) -> list[float]:
    """Return the seconds of passes in which some end and others take their room."""
    core.deciding.clear()
    for _ in range(STEADY_PASSES):
        core.end(ENDED_PER_PASS)
        core.let_leave()
        core.decide()
    return list(core.deciding)


def settled_pass(core: Core) -> float:
    """Return the median seconds of a pass in which nothing changed."""
    while core.decide():
        pass
    core.deciding.clear()
    for _ in range(SETTLED_PASSES):
        core.decide()
    return statistics.median(core.deciding)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the elastic policy costs at scale, as lines of JSON.")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--queued", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--shapes", type=int, default=0, help="how many needs of memory jobs have beside all else")
    arguments = parser.parse_args()
    for nodes in arguments.nodes:
        for queued in arguments.queued:
            print(json.dumps(measure(nodes, queued, arguments.shapes)), flush=True)


if __name__ == "__main__":
    main()
