"""What the leader's shell costs at scale beside deciding: one JSON line, with what doubling the cluster does to it.

A cluster of nodes that each run a few jobs, and a queue behind them; then twice as many of all. Each number is the
median CPU time of a step as the service makes it, and each ratio is that of the larger cluster over the smaller one: 1
where the step costs what changed and not what there is.

- `wake_ms`: one job ends; whom that concerns is found, and gets its orders, encoded for the bus.
- `quiet_wake_ms`: nothing changed.
- `resend_node_ms`: one node gets its whole orders again, in its turn.
- `look_ms`: who is silent, a second after everybody was heard; `heartbeat_us`: one heartbeat.
- `joined_ms`, `lost_ms`: folding that an agent joined again, and that a node was lost.
- `takeover_seconds`: a new leader tells every node what is wanted of it, in all of its turns together.

Run: python benchmarks/scheduler_shell.py [--nodes 5000] [--queued 50000]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tidegate_events import events as e
from tidegate_events import orders as wire
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, ResourceRange
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.heap import Heap
from tidegate_scheduler.liveness import Liveness
from tidegate_scheduler.order_book import OrderBook
from tidegate_scheduler.orders import in_parts
from tidegate_scheduler.state import State

from tests.support.framing import framed

BEGAN_NS = 1_700_000_000_000_000_000
JOBS_PER_NODE = 8
STEPS = 200
RESEND_SECONDS = 2.0
RESENDS_PER_SECOND = 500.0
SILENCE_SECONDS = 5.0
NEED = Resources(1000, 1024)


class Cell:
    """A state with running and waiting jobs, folded from events."""

    def __init__(self, nodes: int, queued: int) -> None:
        self.state = State()
        self._written: dict[str, int] = {}
        self.running = nodes * JOBS_PER_NODE
        self.say("scheduler", "s1", e.LeaderElected(id="leader", at_ns=BEGAN_NS, epoch=1, instance="s1"))
        self.say("scheduler", "s1", e.PolicyChanged(id="policy", at_ns=BEGAN_NS, policy=2, parameters={}))
        for number in range(nodes):
            self.join(number, incarnation=1)
        for number in range(self.running + queued):
            self._submit(number)
            if number < self.running:
                self._place(number, number // JOBS_PER_NODE)

    def say(self, service: str, instance: str, event: e.AnyEvent) -> float:
        """Fold one event; return the seconds that it took."""
        number = self._written[instance] = self._written.get(instance, -1) + 1
        recorded = framed(self.state.seq + 1, service, instance, number, (event,))
        began = time.process_time()
        evolve(self.state, recorded)
        return time.process_time() - began

    def join(self, number: int, incarnation: int) -> float:
        """Let a node join, with what runs there."""
        name = f"n{number:05d}"
        held = [e.HeldSandbox(job=job.id, attempt=job.attempt, rank=0) for job in self.state.seats.on(name)]
        joined = e.NodeJoined(
            id=f"join-{number}",
            at_ns=BEGAN_NS,
            node=name,
            incarnation=incarnation,
            capacity=Resources(96_000, 1_000_000),
            levels=("trusted",),
            images={"host": "b3:00"},
            sandboxes=tuple(held),
        )
        return self.say("node", name, joined)

    def lose(self, number: int) -> float:
        """Let a node be lost."""
        incarnation = self.state.nodes[f"n{number:05d}"].incarnation
        lost = e.NodeLost(id=f"lost-{number}", at_ns=BEGAN_NS, node=f"n{number:05d}", incarnation=incarnation)
        return self.say("scheduler", "s1", lost)

    def end(self, number: int) -> None:
        """Let a running job end."""
        job = self.state.jobs[f"j{number:07d}"]
        about: dict[str, Any] = {"at_ns": BEGAN_NS, "tenant": job.tenant, "job": job.id, "attempt": 1}
        node = job.members[0].node
        self.say("node", node, e.SandboxExited(id="x", rank=0, node=node, outcome="completed", **about))
        self.say("scheduler", "s1", e.JobCompleted(id="c", revision=job.revision, **about))

    def _submit(self, number: int) -> None:
        component = Component(name="main", command=("true",), resources={"default": ResourceRange(minimum=NEED)})
        spec = JobSpec(name="job", tenant="t", submitter="u", components=(component,))
        job = f"j{number:07d}"
        self.say("gateway", "g1", e.JobSubmitted(id=job, at_ns=BEGAN_NS, tenant="t", job=job, spec=spec))

    def _place(self, number: int, node: int) -> None:
        quota = e.Quota(component="main", cpu_millis=1000, memory_mib=1024)
        placement = e.MemberPlacement(rank=0, node=f"n{node:05d}", incarnation=1, quotas=(quota,), gpu_indices=())
        about: dict[str, Any] = {"at_ns": BEGAN_NS, "tenant": "t", "job": f"j{number:07d}"}
        placed = e.JobPlaced(id="p", revision=0, attempt=1, members=(placement,), resume=None, **about)
        self.say("scheduler", "s1", placed)


def turn(book: OrderBook, now: float) -> int:
    """Make one turn as the shell does, without the bus; return how many nodes were told something."""
    told = 0
    for name in book.due(now):
        orders = book.orders(name)
        if orders is not None:
            for part in in_parts(orders):
                wire.encode(part)
            book.told(orders, now)
            told += 1
    return told


def timed(step: Callable[[], object]) -> float:
    """Return the seconds that the step took."""
    began = time.process_time()
    step()
    return time.process_time() - began


def measure(nodes: int, queued: int) -> dict[str, float]:
    """Return what each step takes in a cluster of that size."""
    cell = Cell(nodes, queued)
    Heap(0.0)
    book = OrderBook(cell.state, resend_seconds=float("inf"), resends_per_second=1.0)
    took = {"takeover_seconds": 0.0}
    while book.behind:
        took["takeover_seconds"] += timed(lambda: turn(book, 0.0))
    wakes, quiet = [], []
    for step in range(STEPS):
        cell.end(step * (cell.running // STEPS))
        wakes.append(timed(lambda: turn(book, 1.0)))
        quiet.append(timed(lambda: turn(book, 1.0)))
    took |= {"wake_ms": _median_ms(wakes), "quiet_wake_ms": _median_ms(quiet)}
    book.close()
    took |= _resending(cell.state) | _listening(cell.state)
    took["joined_ms"] = _median_ms([cell.join(number, incarnation=2) for number in range(STEPS)])
    took["lost_ms"] = _median_ms([cell.lose(number) for number in range(STEPS)])
    return took


def _resending(state: State) -> dict[str, float]:
    book = OrderBook(state, resend_seconds=RESEND_SECONDS, resends_per_second=RESENDS_PER_SECOND)
    while book.behind:
        turn(book, 0.0)
    told, seconds = 0, 0.0
    for second in range(3, 8):
        began = time.process_time()
        told += turn(book, float(second))
        seconds += time.process_time() - began
    book.close()
    return {"resend_node_ms": seconds / told * 1000}


def _listening(state: State) -> dict[str, float]:
    liveness = Liveness(state, SILENCE_SECONDS, 0.0)
    looks, hearing = [], 0.0
    for second in range(1, 12):
        now = float(second)
        hearing += timed(lambda now=now: [liveness.hear(name, now) for name in state.nodes])  # type: ignore[misc]
        looks.append(timed(lambda now=now: liveness.observe(now + 0.5, 0)))  # type: ignore[misc]
    return {"look_ms": statistics.mean(looks) * 1000, "heartbeat_us": hearing / 11 / len(state.nodes) * 1e6}


def _median_ms(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1000


def main() -> None:
    """Measure twice and print."""
    parser = argparse.ArgumentParser(description="What the leader's shell costs at scale, as a line of JSON.")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--queued", type=int, default=50_000)
    arguments = parser.parse_args()
    half = measure(arguments.nodes, arguments.queued)
    whole = measure(2 * arguments.nodes, 2 * arguments.queued)
    result: dict[str, Any] = {"nodes": 2 * arguments.nodes, "queued": 2 * arguments.queued}
    result |= {name: round(value, 4) for name, value in whole.items()}
    result["over_half"] = {name: round(value / half[name], 2) for name, value in whole.items()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
