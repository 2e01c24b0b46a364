"""One history that has everything in it, for tests of how traces are kept, served and exported."""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_events.journal.base import Recorded

from tests.gateway.traces.telling import Telling
from tests.support.cluster import Cluster, spec

LOW, HIGH = "j-low", "j-high"


def preempted_and_resumed() -> list[Recorded]:
    """A job trains, makes room for another, resumes where it left, and fails by itself; the other one completes."""
    telling = Telling()
    cluster = telling.cluster
    telling.act("lost", 1, "")
    cluster.submit(spec(1500, priority=1), LOW)
    cluster.settle()
    cluster.advance(2)
    started(cluster, LOW)
    for name in ("sampling", "learning"):
        cluster.advance(1)
        cluster.phase(LOW, name)
    cluster.advance(1)
    saved = cluster.save(LOW, 10)
    cluster.advance(1)
    verified(cluster, saved)
    cluster.submit(spec(1500, priority=50), HIGH)
    cluster.advance(1)
    cluster.save(LOW, 12)
    cluster.advance(2)
    cluster.exit(LOW, "suspended", acknowledged=True, last_step=12)
    cluster.advance(1)
    started(cluster, HIGH)
    cluster.advance(5)
    cluster.exit(HIGH, "completed", exit_code=0, result={"mean_return": 1.5, "big": 2**63, "nothing": None})
    cluster.advance(1)
    started(cluster, LOW)
    cluster.advance(2)
    cluster.phase(LOW, "sampling")
    cluster.advance(1)
    cluster.exit(LOW, "failed", exit_code=3, detail="it printed a \x00")
    return cluster.frames


def started(cluster: Cluster, job: str) -> None:
    """Every member starts, after 800 ms of which 500 went into the image."""
    for member in cluster.members(job):
        cluster.node_fact(job, member, e.SandboxStarted, level="trusted", start_ms=800, prepare_ms=500)
    cluster.settle()


def verified(cluster: Cluster, checkpoint: str) -> None:
    """The checkpoint service read it back."""
    event = e.CheckpointVerified(
        id=f"v-{len(cluster.frames)}", at_ns=cluster.now, tenant="t", job=LOW, attempt=1, checkpoint_id=checkpoint,
        size_bytes=99,
    )  # fmt: skip
    cluster.append("checkpoint", "c1", event)
