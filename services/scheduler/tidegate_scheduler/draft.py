"""The decisions of one pass while they are made: numbered, tied to revisions, never more than the pass may hold."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import msgspec
from tidegate_events.events import (
    AnyEvent,
    Decision,
    HandBackRequested,
    ImagePrefetchHinted,
    NodeCordoned,
    NodeForgotten,
    NodeLost,
    PreemptRequested,
    QuotaChanged,
    Reason,
)

from tidegate_scheduler.policy.parameters import SECOND_NS, Parameters, as_parameters
from tidegate_scheduler.state import Job, Node, State

PASS_BYTES_MAX = 200_000
"""A pass that has grown to this takes nothing more: with the largest decision on top it still is one frame."""

MOVES_NOTHING: tuple[type[Decision], ...] = (QuotaChanged, HandBackRequested)
"""Decisions about one member of an attempt: they move no job on, see their rules in `lifecycle` and `leasing`."""

_encoder = msgspec.json.Encoder()


class Draft:
    """Collects decisions on `state` at `now_ns`, why jobs wait, and when to look again at the latest.

    `on_trial` is the job of which is asked what would become of it, where nothing of the pass is kept.
    """

    def __init__(self, state: State, now_ns: int, *, on_trial: str = "") -> None:
        self.state = state
        self.now_ns = now_ns
        self.on_trial = on_trial
        self.parameters: Parameters = as_parameters(state.header.parameters)
        self.events: list[AnyEvent] = []
        self.waiting: MutableMapping[str, Reason] = {}
        self.leaving: set[str] = set()
        self.wake_at_ns: int | None = None
        self.cut = False
        self._bytes = 0
        self._prefix = f"{state.header.epoch}-{state.seq}"
        self._revisions: dict[str, int] = {}

    @property
    def full(self) -> bool:
        """Say whether the pass holds all it may; what is left is decided in the next one, at once."""
        return not self.has_room_for(1)

    def has_room_for(self, decisions: int) -> bool:
        """Say whether the pass takes that many more; where not, ask for the next one at once."""
        if self._bytes < PASS_BYTES_MAX and len(self.events) + decisions <= self.parameters.decisions_per_pass_max:
            return True
        self.wake_by(self.now_ns)
        self.cut = True
        return False

    def add(self, kind: type[Decision], job: Job, *reasons: Reason, **fields: Any) -> None:
        """Decide something about `job`, at the revision that it has after what was decided before in this pass."""
        revision = self._revisions.get(job.id, job.revision)
        if kind not in MOVES_NOTHING:
            self._revisions[job.id] = revision + 1
        event = kind(
            id=self._next_id(),
            at_ns=self.now_ns,
            cause=job.cause,
            tenant=job.tenant,
            job=job.id,
            traceparent=job.traceparent,
            revision=revision,
            reasons=reasons,
            **fields,
        )
        self._append(event)  # type: ignore[arg-type]

    def add_node_lost(self, node: Node) -> None:
        """Decide that `node` is lost."""
        self._append(NodeLost(id=self._next_id(), at_ns=self.now_ns, node=node.name, incarnation=node.incarnation))

    def add_node_cordoned(self, node: Node, reason: Reason) -> None:
        """Decide that nothing new goes to `node`."""
        self._append(
            NodeCordoned(
                id=self._next_id(),
                at_ns=self.now_ns,
                node=node.name,
                incarnation=node.incarnation,
                reasons=(reason,),
            )
        )

    def add_node_forgotten(self, node: Node) -> None:
        """Decide that nothing is kept of `node` any more."""
        self._append(NodeForgotten(id=self._next_id(), at_ns=self.now_ns, node=node.name, incarnation=node.incarnation))

    def add_prefetch_hint(self, node: Node, image: str) -> None:
        """Say that `image` will probably be needed on `node` next."""
        self._append(ImagePrefetchHinted(id=self._next_id(), at_ns=self.now_ns, node=node.name, image=image))

    def ask_to_leave(self, job: Job, reason: Reason, for_job: str = "", *, hold: bool = False) -> None:
        """Decide that the job saves and leaves within its grace period, for another one where that is named.

        With `hold` it is held then, as an operator suspended it.
        """
        grace = self.state.specs[job.id].preemption.grace_seconds
        self.add(
            PreemptRequested,
            job,
            reason,
            attempt=job.attempt,
            grace_seconds=grace,
            deadline_ns=self.now_ns + grace * SECOND_NS,
            for_job=for_job,
            hold=hold,
        )
        self.leaving.add(job.id)

    def wake_by(self, at_ns: int) -> None:
        """Ask to be called again no later than `at_ns`."""
        if self.wake_at_ns is None or at_ns < self.wake_at_ns:
            self.wake_at_ns = at_ns

    def _append(self, event: AnyEvent) -> None:
        self.events.append(event)
        self._bytes += len(_encoder.encode(event))

    def _next_id(self) -> str:
        return f"{self._prefix}-{len(self.events) + 1}"
