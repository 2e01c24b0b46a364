"""The members of one attempt as the model has them: what all that happens to an attempt is made of.

Nothing here decides, and nothing here says when: `leaving` and `attempt` do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tidegate_events import events as e
from tidegate_events.spec import JobSpec

from tidegate_scheduler.leasing import asks
from tidegate_scheduler.simulator.agenda import Act, Entry
from tidegate_scheduler.simulator.sandbox import Ground, Sandbox, forget_plans
from tidegate_scheduler.simulator.work import Work

_Fact = TypeVar("_Fact", bound=e.AttemptEvent)


class Members:
    """The sandboxes of the attempt `number` of a job, and what they say. `resumed`: it goes on from a checkpoint."""

    def __init__(self, ground: Ground, job: str, spec: JobSpec, work: Work, number: int) -> None:
        self.job = job
        self.spec = spec
        self.work = work
        self.number = number
        self.sandboxes: dict[int, Sandbox] = {}
        self.resumed = False
        self._ground = ground
        self._asks = asks(spec)
        self._broken = False
        """A member is gone that had not done its part, or the job was asked to leave: nobody works any more."""

        self._next: Entry | None = None
        self._overhead_ns: int | None = None
        """Since when the attempt restarts or saves, which is GPU time that comes to nothing."""

    def _there(self) -> Iterable[Sandbox]:
        return (sandbox for sandbox in self.sandboxes.values() if sandbox.there)

    def _plan(self, at_ns: int | None, act: Act) -> None:
        """Let this be what happens next to the attempt as a whole."""
        self._ground.agenda.cancel(self._next)
        self._next = None if at_ns is None else self._ground.agenda.at(at_ns, act)

    def _end_overhead(self, now_ns: int) -> None:
        if self._overhead_ns is not None:
            first = self.sandboxes[min(self.sandboxes)]  # they are in their phases together
            self._ground.tally.lost(self.job, now_ns - self._overhead_ns, first.phase)
            self._overhead_ns = None

    def _rest(self, now_ns: int) -> None:
        """Count what was done until now, and work no more for the time being."""
        self._ground.agenda.cancel(self._next)
        self._next = None
        self.work.stop(now_ns)
        self._ground.tally.rests(self.job, now_ns)

    def _save(self, now_ns: int) -> None:
        first = self.sandboxes[min(self.sandboxes)]
        if not first.there:
            return
        step = self.work.step
        checkpoint = e.CheckpointRef(
            id=f"{self.job}-{self.number}-{self.work.done_ns}", step=step, attempt=self.number, directory=f"{step}"
        )
        self.work.save(checkpoint.id)
        self._say(first, self._said(e.CheckpointSaved, first, now_ns, node=first.node, checkpoint=checkpoint))

    def _end_asking(self, sandbox: Sandbox, now_ns: int) -> None:
        if sandbox.asked:
            self._ground.tally.asked(self.job, sandbox.asked, now_ns - sandbox.asked_ns)
            sandbox.asked = ""

    def _gone(self, sandbox: Sandbox, now_ns: int, outcome: str) -> None:
        forget_plans(self._ground, sandbox)
        self._end_asking(sandbox, now_ns)
        sandbox.status = "gone"
        self._ground.tally.left(self.job, sandbox.rank, now_ns, outcome)

    def _close_if_empty(self) -> None:
        """Once nobody is there, what was done and not saved is lost, and is done again another time."""
        if any(sandbox.there for sandbox in self.sandboxes.values()):
            return
        self._broken = True
        for phase, lost_ns in self.work.lost_in():
            self._ground.tally.lost(self.job, lost_ns, phase)
        self.work.drop()

    def _said(self, kind: Callable[..., _Fact], sandbox: Sandbox, now_ns: int, **fields: Any) -> _Fact:
        return kind(
            id=self._ground.nodes.scribe.next_id(),
            at_ns=now_ns,
            tenant=self.spec.tenant,
            job=self.job,
            attempt=self.number,
            rank=sandbox.rank,
            **fields,
        )

    def _say(self, sandbox: Sandbox, *events: e.AnyEvent) -> None:
        self._ground.nodes.say(sandbox.node, *events)
