"""Random histories: those of the scheduler's parity test, and facts that only readers care for."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from tidegate_events import events as e
from tidegate_events.frame import Frame, Writer, decode, encode
from tidegate_events.journal.base import Recorded
from tidegate_events.resources import Resources
from tidegate_gateway.view.projection import View

from tests.gateway.test_parity import ASKED, Both

_EXTRA = st.tuples(
    st.sampled_from(["phase", "applied", "progress", "queue", "verified", "broken", "duplicate", "forged", "odd"]),
    st.integers(0, 5),
    st.just(""),
)
_KINDS = ["submit", "cancel", "join", "lost", "unreachable", "start", "exit", "reject", "save", "fail", "pass", "late"]
_KINDS += [*ASKED, "drain", "cordon", "window", "forget"]
_OUTCOMES = st.sampled_from(["completed", "suspended", "failed", "stopped", "lost"])
_SCHEDULED = st.tuples(st.sampled_from([*_KINDS, "pass", "start"]), st.integers(0, 5), _OUTCOMES)

STORIES = st.lists(st.one_of(_SCHEDULED, _SCHEDULED, _EXTRA), min_size=5, max_size=60)
"""What happens, one after the other."""


class Story(Both):
    """A history with phases, limits read back, verdicts, late duplicates, forged frames, and values no column holds."""

    def act(self, action: str, pick: int, outcome: str) -> None:
        """Let one thing happen."""
        told = {"phase": self._phase, "applied": self._applied, "odd": self._odd}
        told |= {"progress": self._progress, "queue": self._queue}
        verdicts = {"verified": e.CheckpointVerified, "broken": e.CheckpointFailed}
        if action in told:
            told[action](pick)
        elif action in verdicts:
            self._verdict(verdicts[action], pick)
        elif action == "duplicate":
            self._append(self.frames[pick % len(self.frames)].frame, self.frames[pick % len(self.frames)].subject)
        elif action == "forged":
            self._append(Frame(Writer("gateway", "g1", 9, pick), self._events_of("scheduler")), "tg.fact.gateway.g1")
        else:
            super().act(action, pick, outcome)

    def _append(self, frame: Frame, subject: str) -> None:
        """Append a frame that the scheduler's own bookkeeping of numbers knows nothing of."""
        self.fold(Recorded(self.state.seq + 1, subject, decode(encode(frame))))

    def _events_of(self, service: str) -> Any:
        return next(each.frame.events for each in reversed(self.frames) if each.frame.writer.service == service)

    def _member(self, pick: int) -> tuple[dict[str, Any], Any] | None:
        if not (members := self.members()):
            return None
        job, member = members[pick % len(members)]
        return {"tenant": "t", "job": job.id, "attempt": job.attempt, "rank": member.rank}, member

    def _phase(self, pick: int) -> None:
        if (found := self._member(pick)) is not None:
            about, member = found
            self.write("node", member.node, e.PhaseChanged(**self.stamp(), **about, phase=f"p{pick}", step=pick))

    def _applied(self, pick: int) -> None:
        if (found := self._member(pick)) is not None:
            about, member = found
            applied = e.QuotaApplied(**self.stamp(), **about, node=member.node, quotas=member.quotas)
            self.write("node", member.node, applied)

    def _progress(self, pick: int) -> None:
        if (found := self._member(pick)) is not None:
            about, member = found
            told = e.ProgressReported(**self.stamp(), **about, progress_millis=pick * 200, step=pick or None)
            self.write("node", member.node, told)

    def _queue(self, pick: int) -> None:
        ceiling = Resources(gpus=pick, cpu_millis=2**62) if pick % 2 else None
        settings = {"weight": pick, "ceiling": ceiling, "stopped": pick == 3, "note": "\x00"}
        changed = e.QueueChanged(**self.stamp(), actor="olga", tenant=f"t{pick % 2}", **settings)
        self.write("gateway", "g1", changed)

    def _odd(self, pick: int) -> None:
        """Values that a journal may hold and a column may not."""
        if (found := self._member(pick)) is not None:
            about, member = found
            odd = {"rate": 1e22, "text": "a\x00b", "big": 2**63 - 1 if pick % 2 else -0.0}
            exited = e.SandboxExited(
                **self.stamp(), **about, node=member.node, outcome="failed", detail="\x00\u2028", result=odd
            )
            self.write("node", member.node, exited)

    def _verdict(self, kind: Any, pick: int) -> None:
        known = [(job, checkpoint) for job in self.view.jobs.values() for checkpoint in job.checkpoints]
        if not known:
            return
        job, checkpoint = known[pick % len(known)]
        about = {"tenant": "t", "job": job.id, "attempt": checkpoint.ref.attempt, "checkpoint_id": checkpoint.ref.id}
        more: dict[str, Any] = {"size_bytes": 7}
        if kind is e.CheckpointFailed:
            more = {"stage": "verify", "reason": e.Reason(code="Hash")}
        self.write("checkpoint", "c1", kind(**self.stamp(), **about, **more))


def snapshot(view: View, *, timelines: bool = True) -> dict[str, Any]:
    """Return everything that a view holds as plain values, order of dictionaries included where it matters."""
    jobs = {}
    for job in view.jobs.values():
        plain = {name: getattr(job, name) for name in job.__struct_fields__ if name != "timeline"}
        plain["quota_order"] = [list(member.desired) for attempt in job.attempts for member in attempt.members]
        if timelines and not job.ended:
            plain["timeline"] = (job.timeline.entries(), job.timeline.dropped)
        jobs[job.id] = plain
    return {
        "progress": view.progress,
        "jobs": jobs,
        "order": list(view.jobs),
        "forgotten": view.forgotten,
        "nodes": view.nodes,
        "queues": view.queues,
        "maintenance": view.maintenance,
        "writers": view.writers,
        "ended": list(view._ended),
        "encoded": msgspec.json.encode([job.result for job in view.jobs.values()]),
    }
