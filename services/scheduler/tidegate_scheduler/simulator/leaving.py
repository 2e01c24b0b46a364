"""How an attempt ends: its members are asked to leave, told to stop, lost with their node, refused, or done."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate_events import events as e

from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.simulator.members import Members
from tidegate_scheduler.simulator.sandbox import Sandbox, forget_plans
from tidegate_scheduler.simulator.work import MILLI_NS


class Leaving(Members):
    """An attempt that can end."""

    def leave(self, deadline_ns: int, now_ns: int, *, worked: bool = False) -> None:
        """Save and leave by the deadline; whoever has nothing to save leaves at once, and some never save.

        `worked`: it has something to save, of the time before the simulation began.
        """
        hangs = self._broken
        self._halt(now_ns)
        saved_ns = now_ns + self._ground.costs.checkpoint_seconds * SECOND_NS
        unsaved_ms = self.work.truth.leaves_in_ms
        if not hangs and unsaved_ms is None and not self.work.lost_ns and not worked:
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
