"""Random histories of a small cluster, told by the scheduler's real core, and the spans that they give."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st
from tidegate_events import events as e
from tidegate_events.journal.base import Recorded
from tidegate_events.spec import JobSpec
from tidegate_gateway.traces.derive import SpanDeriver
from tidegate_gateway.traces.span import Span
from tidegate_gateway.view.projection import View

from tests.support.cluster import Cluster, spec

Action = tuple[str, int, str]

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("submit", "cancel", "join", "lost", "start", "start", "exit", "exit", "reject", "save", "save"),
                *("verify", "broken", "phase", "phase", "applied", "slow", "wait", "late"),
            ]
        ),
        st.integers(0, 5),
        st.sampled_from(["completed", "suspended", "failed", "stopped", "lost"]),
    ),
    min_size=5,
    max_size=60,
)


class Telling:
    """A cluster that does what the actions say; `frames` is its journal."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.incarnations = {"n1": 1, "n2": 1}
        for node in self.incarnations:
            self.cluster.node(node, cpu=2000, memory=2048)

    @property
    def frames(self) -> list[Recorded]:
        return self.cluster.frames

    def act(self, action: str, pick: int, outcome: str) -> None:
        cluster = self.cluster
        cluster.now += 700_000_000
        live = list(cluster.state.jobs)
        job = live[pick % len(live)] if live else ""
        if action == "submit":
            cluster.submit(self.spec(pick))
            cluster.settle()
        elif action == "join":
            self.join(f"n{pick % 2 + 1}", pick)
        elif action == "lost":
            node = f"n{pick % 2 + 1}"
            incarnation = self.incarnations[node]
            event = e.NodeLost(id=f"lost-{len(self.frames)}", at_ns=cluster.now, node=node, incarnation=incarnation)
            cluster.append("scheduler", "s1", event)
        elif action == "wait":
            cluster.advance(40)
        elif job:
            self.on_job(action, job, pick, outcome)

    def spec(self, pick: int) -> JobSpec:
        return spec(500 + 150 * pick, priority=pick * 10, gang=1 + pick % 2, attempts=2)

    def join(self, node: str, pick: int) -> None:
        cluster = self.cluster
        held = [
            e.HeldSandbox(job=job.id, attempt=job.attempt, rank=member.rank)
            for job in cluster.state.jobs.values()
            for member in job.members
            if member.node == node
        ]
        self.incarnations[node] += 1
        cluster.node(node, cpu=2000, memory=2048, incarnation=self.incarnations[node], held=held[: pick % 3])
        cluster.settle()

    def on_job(self, action: str, job: str, pick: int, outcome: str) -> None:
        cluster = self.cluster
        if action == "cancel":
            cluster.cancel(job)
            cluster.settle()
            return
        if not (members := cluster.members(job)):
            return
        member = members[pick % len(members)]
        if action == "start":
            cluster.start(job)
        elif action == "exit":
            acknowledged = outcome == "suspended"
            cluster.exit(job, outcome, ranks=[member.rank], acknowledged=acknowledged, last_step=pick)
        elif action == "reject":
            cluster.reject(job)
        elif action == "save":
            cluster.save(job, len(self.frames))
        elif action == "phase":
            name = ("sampling", "learning")[pick % 2]
            cluster.node_fact(job, member, e.PhaseChanged, phase=name, step=pick, _node=False)
            cluster.settle()
        elif action == "applied":
            cluster.node_fact(job, member, e.QuotaApplied, quotas=member.quotas)
        elif action == "late":
            # Facts of the attempt before, or by a clock that runs behind.
            about = {"at_ns": cluster.now - 10_000_000_000, "tenant": "t", "job": job,
                     "attempt": cluster.job(job).attempt - pick % 2}  # fmt: skip
            event = e.PhaseChanged(id=f"late-{len(self.frames)}", rank=member.rank, phase="learning", **about)  # type: ignore[arg-type]
            failed = e.CheckpointFailed(
                id=f"full-{len(self.frames)}", stage="save", reason=e.Reason(code="Disk"), **about,  # type: ignore[arg-type]
            )  # fmt: skip
            cluster.append("node", member.node, event, failed)
        else:
            self.on_checkpoint(action, job)

    def on_checkpoint(self, action: str, job: str) -> None:
        cluster, known = self.cluster, self.cluster.job(job).checkpoints
        about = {
            "id": f"{action}-{len(self.frames)}", "at_ns": cluster.now, "tenant": "t", "job": job,
            "attempt": cluster.job(job).attempt,
        }  # fmt: skip
        if action == "slow":
            low = e.StepRateLow(**about, rate_millis=1, target_millis=5, window_seconds=10)  # type: ignore[arg-type]
            cluster.append("metrics", "m1", low)
        elif known and action == "verify":
            verified = e.CheckpointVerified(**about, checkpoint_id=known[0].id, size_bytes=9)  # type: ignore[arg-type]
            cluster.append("checkpoint", "c1", verified)
        elif known and action == "broken":
            reason = e.Reason(code="Hash", detail="other bytes")
            failed = e.CheckpointFailed(**about, stage="verify", reason=reason, checkpoint_id=known[0].id)  # type: ignore[arg-type]
            cluster.append("checkpoint", "c1", failed)

    def finish(self) -> None:
        """Bring every job to its end."""
        cluster = self.cluster
        for _ in range(200):
            if not cluster.state.jobs:
                return
            cluster.advance(60)
            for job in list(cluster.state.jobs):
                if job in cluster.state.jobs:
                    cluster.cancel(job)
                    cluster.exit(job, "stopped")
        raise AssertionError(f"jobs that do not end: {list(cluster.state.jobs)}")


def told(actions: Sequence[Action], *, to_the_end: bool = False) -> list[Recorded]:
    """Return the journal of a history."""
    telling = Telling()
    for action in (("submit", 1, ""), *actions):
        telling.act(*action)
    if to_the_end:
        telling.finish()
    return telling.frames


def counted(frames: Iterable[Recorded]) -> list[tuple[Recorded, tuple[bool, ...]]]:
    """Return each frame with what of it counts."""
    view = View()
    return [(frame, view.apply(frame)) for frame in frames]


def derived(frames: Iterable[Recorded], deriver: SpanDeriver | None = None) -> list[Span]:
    """Return all spans of a journal."""
    deriver = deriver or SpanDeriver()
    return [span for frame, counts in counted(frames) for span in deriver.apply(frame, counts)]


def by_name(spans: Iterable[Span], job: str) -> dict[str, list[Span]]:
    """Return the spans of a job by their names."""
    found: dict[str, list[Span]] = {}
    for span in spans:
        if span.job == job:
            found.setdefault(span.name, []).append(span)
    return found
