"""One attempt of a job in the model: its sandboxes start, work together through what the job really does, and end.

The members of a gang go through the phases together, at the pace of the slowest. Nothing here decides: what decisions
ask for becomes facts, at the times that they take.
"""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_events.spec import DEFAULT_PHASE, phase_need

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.policy.sharing import quota_millis
from tidegate_scheduler.simulator.leaving import Leaving
from tidegate_scheduler.simulator.sandbox import Sandbox
from tidegate_scheduler.simulator.work import FULL, MILLI_NS, Pace, share, slower
from tidegate_scheduler.state import Job

DWELL_NS = 200 * MILLI_NS
"""Who waits for a phase for longer than an agent's dwell is in none meanwhile: it has left the one that it was in."""


class Attempt(Leaving):
    """An attempt that starts, works, and changes its phases."""

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
