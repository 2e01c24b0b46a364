"""What deciding one scheduling pass costs, on a small cluster and on a large one.

Prints one JSON line. What a pass costs through the journal, `journal.py` measures.

Run: python benchmarks/scheduler_pass.py
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tidegate_scheduler.decide import decide

from tests.support.cluster import Cluster, spec

PASSES = 200


def cluster_of(nodes: int, jobs: int) -> Cluster:
    """Return a settled cluster whose nodes are full and whose queue is as long as what runs."""
    cluster = Cluster()
    for number in range(nodes):
        cluster.node(f"n{number:03d}", 4000)
    for _ in range(jobs):
        cluster.submit(spec(1000))
    cluster.settle()
    return cluster


def decide_ms(nodes: int, jobs: int) -> tuple[float, float]:
    """Return the median and the 99th percentile of passes in which one job ends and one is placed, in ms."""
    cluster = cluster_of(nodes, jobs)
    took: list[float] = []
    for _ in range(PASSES):
        running = next(job for job in cluster.state.jobs.values() if job.stage == "placed")
        for member in running.members:
            member.status = "completed"
        started = time.perf_counter()
        decide(cluster.state, cluster.now)
        took.append((time.perf_counter() - started) * 1000)
        for member in running.members:
            member.status = "ordered"
    return statistics.median(took), statistics.quantiles(took, n=100)[98]


def main() -> None:
    """Measure and print."""
    small = decide_ms(1, 8)
    large = decide_ms(100, 800)
    result = {
        "pass_p50_ms": round(small[0], 3),
        "pass_p99_ms": round(small[1], 3),
        "pass_100_nodes_800_jobs_p50_ms": round(large[0], 3),
        "pass_100_nodes_800_jobs_p99_ms": round(large[1], 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
