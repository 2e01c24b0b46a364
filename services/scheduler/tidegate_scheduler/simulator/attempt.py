"""One attempt of a job in the model: its sandboxes start, work together through what the job really does, and end.

The members of a gang go through the phases together, at the pace of the slowest. Nothing here decides: what decisions
ask for becomes facts, at the times that they take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tidegate_events import events as e
from tidegate_events.spec import DEFAULT_PHASE, JobSpec, phase_need

from tidegate_scheduler.leasing import asks
from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.policy.sharing import quota_millis
from tidegate_scheduler.simulator.agenda import Act, Entry
from tidegate_scheduler.simulator.sandbox import Ground, Sandbox, forget_plans
from tidegate_scheduler.simulator.work import FULL, MILLI_NS, Pace, Work, share, slower
from tidegate_scheduler.state import Job

_Fact = TypeVar("_Fact", bound=e.AttemptEvent)
DWELL_NS = 200 * MILLI_NS
"""Who waits for a phase for longer than an agent's dwell is in none meanwhile: it has left the one that it was in."""


class Attempt:
    """The attempt `number` of a job, with its sandboxes. `resumed`: it goes on from a checkpoint."""

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

    # ---- it starts ----

    def order(self, sandbox: Sandbox, starts_ns: int) -> None:
        """Let a member start then."""
        self.sandboxes[sandbox.rank] = sandbox
        sandbox.starting = self._ground.agenda.at(starts_ns, lambda now_ns: self._start(sandbox, now_ns))

    def _start(self, sandbox: Sandbox, now_ns: int) -> None:
        sandbox.status, sandbox.starting = "started", None
        said: list[e.AnyEvent] = [
            self._said(
                e.SandboxStarted,
                sandbox,
                now_ns,
                level=self.spec.isolation,
                node=sandbox.node,
                start_ms=self._ground.costs.start_ms,
            )
        ]
        if self._asks:
            said.append(self._said(e.QuotaApplied, sandbox, now_ns, node=sandbox.node, quotas=sandbox.quotas))
        self._say(sandbox, *said)
        self.begin(now_ns)

    def begin(self, now_ns: int) -> None:
        """Go on with the work once all members are there; one that resumes needs some time before."""
        if self._broken or any(sandbox.status == "ordered" for sandbox in self.sandboxes.values()):
            return
        if not self.resumed:
            self._go(now_ns)
            return
        self._overhead_ns = now_ns
        self._plan(now_ns + self._ground.costs.restart_seconds * SECOND_NS, self._restarted)

    def _restarted(self, now_ns: int) -> None:
        self._end_overhead(now_ns)
        self._go(now_ns)

    def go_on(self, job: Job, now_ns: int) -> None:
        """Go on with what members do already as the simulation begins."""
        self._broken = any(not member.active and member.status != "completed" for member in job.members)
        self.begin(now_ns)
        for member in job.members:
            sandbox = self.sandboxes[member.rank]
            if sandbox.status == "started" and member.granted:
                self.limit(sandbox, member.quotas, member.granted, now_ns)
            if sandbox.status == "started" and member.hand_back_ns:
                self.recall(sandbox, member.hand_back_ns, now_ns)

    # ---- it works ----

    def _go(self, now_ns: int) -> None:
        """Work in the span that comes next, or enter its phase first; what is done is done."""
        self._rest(now_ns)
        span = self.work.span
        if self._broken:
            return
        if span is None:
            self._complete(now_ns)
            return
        others = [each for each in self._there() if each.phase != span.phase]
        if others and self._asks and span.phase != DEFAULT_PHASE:  # to be in none needs no leave
            for sandbox in others:
                self._ask(sandbox, span.phase, now_ns)
            return
        for sandbox in others:
            self._enter(sandbox, span.phase, now_ns)
        self.work.go_on(now_ns, self._pace(span.phase) if span.cpu_bound else FULL)
        self._ground.tally.works(self.job, now_ns, span.phase, self._busy_millis(span.phase))
        self._plan(self.work.due_ns(), self._reached)

    def _rest(self, now_ns: int) -> None:
        """Count what was done until now, and work no more for the time being."""
        self._ground.agenda.cancel(self._next)
        self._next = None
        self.work.stop(now_ns)
        self._ground.tally.rests(self.job, now_ns)

    def _reached(self, now_ns: int) -> None:
        """A span ends, or the job saves or fails, by the work alone; or only its pace changes."""
        self._rest(now_ns)
        if self.work.fails:
            self._fail(now_ns)
            return
        if self.work.saves and self.work.span is not None:
            self._save(now_ns)
        self._go(now_ns)

    def _pace(self, phase: str) -> Pace:
        """Return the part of the CPU that the phase could use which the slowest member has."""
        most = sum(
            each.range_in(phase).ceiling.cpu_millis * max(each.replicas, each.replicas_max or 0)
            for each in self.spec.components
        )
        pace = FULL
        for sandbox in self._there():
            pace = slower(pace, share(quota_millis(self.spec, sandbox.quotas), most))
        return pace

    def _busy_millis(self, phase: str) -> int:
        need = phase_need(self.spec, phase)
        return (need.gpus * WHOLE_MILLIS + need.gpu_millis) * sum(1 for _ in self._there())

    # ---- it changes its phase and its limits ----

    def _ask(self, sandbox: Sandbox, phase: str, now_ns: int) -> None:
        if sandbox.asked == phase:
            return
        sandbox.asked, sandbox.asked_ns = phase, now_ns
        self._say(sandbox, self._said(e.PhaseRequested, sandbox, now_ns, phase=phase, step=self.work.step))
        if sandbox.phase != DEFAULT_PHASE:
            sandbox.idling = self._ground.agenda.at(now_ns + DWELL_NS, lambda at_ns: self._hand_back(sandbox, at_ns))

    def _enter(self, sandbox: Sandbox, phase: str, now_ns: int) -> None:
        self._end_asking(sandbox, now_ns)
        sandbox.phase = phase
        self._say(sandbox, self._said(e.PhaseChanged, sandbox, now_ns, phase=phase, step=self.work.step))

    def limit(self, sandbox: Sandbox, quotas: tuple[e.Quota, ...], granted: str, now_ns: int) -> None:
        """Give a member other limits, and the phase that it asked for, if it is granted."""
        sandbox.quotas = quotas
        if self._asks and sandbox.status == "started":
            self._ground.agenda.at(now_ns, lambda at_ns: self._apply(sandbox, quotas, at_ns))
        if granted and granted == sandbox.asked and sandbox.entering is None and not self._broken:
            self._ground.agenda.cancel(sandbox.idling)
            in_ns = now_ns + self._ground.costs.phase_change_ms * MILLI_NS
            sandbox.entering = self._ground.agenda.at(in_ns, lambda at_ns: self._granted(sandbox, granted, at_ns))
        span = self.work.span
        if self.work.running and span is not None and span.cpu_bound:
            self._plan(now_ns, self._reached)  # at another pace

    def _apply(self, sandbox: Sandbox, quotas: tuple[e.Quota, ...], now_ns: int) -> None:
        if sandbox.there and sandbox.quotas == quotas:
            self._say(sandbox, self._said(e.QuotaApplied, sandbox, now_ns, node=sandbox.node, quotas=quotas))

    def _granted(self, sandbox: Sandbox, phase: str, now_ns: int) -> None:
        sandbox.entering = None
        self._enter(sandbox, phase, now_ns)
        self._go(now_ns)

    def _end_asking(self, sandbox: Sandbox, now_ns: int) -> None:
        if sandbox.asked:
            self._ground.tally.asked(self.job, sandbox.asked, now_ns - sandbox.asked_ns)
            sandbox.asked = ""

    def recall(self, sandbox: Sandbox, deadline_ns: int, now_ns: int) -> None:
        """Have a member leave its phase by the deadline, after the step that it is in; 0: it need not any more."""
        if not deadline_ns:
            self._ground.agenda.cancel(sandbox.leaving)
            sandbox.leaving = None
        elif sandbox.leaving is None:
            in_it_ns = now_ns if sandbox.entering is None else sandbox.entering.at_ns
            leaves_ns = min(max(deadline_ns, in_it_ns), in_it_ns + self._ground.costs.phase_change_ms * MILLI_NS)
            sandbox.leaving = self._ground.agenda.at(leaves_ns, lambda at_ns: self._hand_back(sandbox, at_ns))

    def _hand_back(self, sandbox: Sandbox, now_ns: int) -> None:
        self._ground.agenda.cancel(sandbox.leaving)
        self._ground.agenda.cancel(sandbox.idling)
        sandbox.leaving = sandbox.idling = None
        if sandbox.phase != DEFAULT_PHASE and sandbox.entering is None:
            self._rest(now_ns)
            self._enter(sandbox, DEFAULT_PHASE, now_ns)
            self._go(now_ns)  # what is left of the span waits until its phase is granted anew

    # ---- it leaves ----

    def leave(self, deadline_ns: int, now_ns: int) -> None:
        """Save and leave by the deadline; whoever has nothing to save leaves at once, and some never save."""
        hangs = self._broken
        self._halt(now_ns)
        saved_ns = now_ns + self._ground.costs.checkpoint_seconds * SECOND_NS
        unsaved_ms = self.work.truth.leaves_in_ms
        if not hangs and unsaved_ms is None and not self.work.lost_ns:
            self._plan(now_ns, lambda at_ns: self._exit(self._there(), "suspended", at_ns))
            return
        self._overhead_ns = now_ns
        if not hangs and unsaved_ms is None and saved_ns <= deadline_ns:
            self._plan(saved_ns, self._leave_saved)
            return
        gone_ns = deadline_ns if hangs or unsaved_ms is None else min(deadline_ns, now_ns + unsaved_ms * MILLI_NS)
        self._plan(max(now_ns, gone_ns), lambda at_ns: self._exit(self._there(), "stopped", at_ns))

    def _leave_saved(self, now_ns: int) -> None:
        self._save(now_ns)
        self._exit(self._there(), "suspended", now_ns)

    def stop(self, now_ns: int) -> None:
        """End at once, with nothing saved."""
        self._halt(now_ns)
        self._plan(now_ns, lambda at_ns: self._exit(self._there(), "stopped", at_ns))

    def crash(self, node: str, now_ns: int) -> None:
        """What ran on the node is gone, and nobody says so; the other members hang until they are told to end.

        What was about to start there does so when the node is back, unless it is told otherwise.
        """
        on_it = [sandbox for sandbox in self._there() if sandbox.node == node]
        for sandbox in on_it:
            self._ground.agenda.cancel(sandbox.starting)
            sandbox.starting = None
        started = [sandbox for sandbox in on_it if sandbox.status == "started"]
        if not started:
            return
        leaving = self._broken and self._next is not None
        self._halt(now_ns)
        for sandbox in started:
            self._gone(sandbox, now_ns, "lost")
        if leaving:
            self._plan(now_ns, lambda at_ns: self._exit(self._there(), "stopped", at_ns))
        self._close_if_empty()

    def abandon(self, now_ns: int) -> None:
        """Be over: the scheduler counts nobody of it any more."""
        self._halt(now_ns)
        for sandbox in list(self._there()):
            self._gone(sandbox, now_ns, "lost")
        self._close_if_empty()

    def refuse(self, sandbox: Sandbox, reason: e.Reason, now_ns: int) -> None:
        """A node does not take the member: nothing was started there."""
        self.sandboxes[sandbox.rank] = sandbox

        def refused(at_ns: int) -> None:
            self._halt(at_ns)
            said = self._said(e.PlacementRejected, sandbox, at_ns, node=sandbox.node, reason=reason)
            self._gone(sandbox, at_ns, "rejected")
            self._say(sandbox, said)
            self._close_if_empty()

        sandbox.starting = self._ground.agenda.at(now_ns, refused)

    def _complete(self, now_ns: int) -> None:
        self.work.keep()
        self._exit(self._there(), "completed", now_ns)

    def _fail(self, now_ns: int) -> None:
        """The first member fails by its own fault; the others hang until they are told to end."""
        self._halt(now_ns)
        self.work.failed()
        first = min(self._there(), key=lambda sandbox: sandbox.rank)
        self._exit([first], "failed", now_ns)

    def _halt(self, now_ns: int) -> None:
        self._rest(now_ns)
        self._end_overhead(now_ns)
        self._broken = True
        for sandbox in self._there():
            forget_plans(self._ground, sandbox)

    def _exit(self, sandboxes: Iterable[Sandbox], outcome: e.Outcome, now_ns: int) -> None:
        self._end_overhead(now_ns)
        for sandbox in list(sandboxes):
            exited = self._said(
                e.SandboxExited,
                sandbox,
                now_ns,
                node=sandbox.node,
                outcome=outcome,
                exit_code={"completed": 0, "failed": 1}.get(outcome),
                acknowledged=outcome == "suspended",
                last_step=self.work.step,
            )
            self._gone(sandbox, now_ns, outcome)
            self._say(sandbox, exited)
        self._close_if_empty()

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

    # ---- what these share ----

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
