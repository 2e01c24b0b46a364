"""Appending on `tg.decision`, every frame guarded by the last sequence there: a deposed leader writes nothing."""

from __future__ import annotations

import structlog
from tidegate_events.events import AnyEvent, LeaderElected, PolicyChanged
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Appended, Conflict, Journal
from tidegate_events.subjects import DECISION

from tidegate_scheduler.fold import Fold
from tidegate_scheduler.policy.parameters import Parameters, as_values
from tidegate_scheduler.version import POLICY_VERSION

ELECTION_TRIES_MAX = 10

log = structlog.get_logger()


class DeposedError(Exception):
    """Another scheduler appended a decision: this one must fold anew before it may lead again."""


class Leadership:
    """One term of one scheduler."""

    def __init__(self, journal: Journal, fold: Fold, instance: str) -> None:
        self._journal = journal
        self._fold = fold
        self._instance = instance
        self._next_seq = 0
        self.epoch = 0

    async def begin(self, now_ns: int) -> None:
        """Append LeaderElected with the next epoch and fold to it; raise DeposedError if others keep winning."""
        for _ in range(ELECTION_TRIES_MAX):
            state = self._fold.state
            self.epoch = state.header.epoch + 1
            self._next_seq = 0
            elected = LeaderElected(id=f"{self.epoch}-leader", at_ns=now_ns, epoch=self.epoch, instance=self._instance)
            answer = await self._append((elected,))
            if isinstance(answer, Appended):
                await self._fold.reach(answer.seq)
                log.info("leads", epoch=self.epoch, seq=answer.seq)
                return
            await self._fold.reach(answer.actual)
        raise DeposedError(f"not elected in {ELECTION_TRIES_MAX} tries: other schedulers lead")

    async def set_policy(self, parameters: Parameters, now_ns: int) -> None:
        """Journal the policy and its parameters, if the state has others."""
        header = self._fold.state.header
        values = as_values(parameters)
        if header.policy != POLICY_VERSION or header.parameters != values:
            changed = PolicyChanged(id=f"{self.epoch}-policy", at_ns=now_ns, policy=POLICY_VERSION, parameters=values)
            await self.append((changed,))

    def check(self) -> None:
        """Raise DeposedError if the folded history has a later term than this one.

        The guard alone does not say so: it is the last sequence that was *folded*, the successor's election included.
        """
        elected = self._fold.state.header.epoch
        if elected != self.epoch:
            raise DeposedError(f"epoch {elected} leads, not {self.epoch}")

    async def append(self, events: tuple[AnyEvent, ...]) -> int:
        """Append one frame and fold it back; return its sequence. Raises DeposedError when this term is over."""
        self.check()
        answer = await self._append(events)
        if isinstance(answer, Conflict):
            raise DeposedError(f"{DECISION} is at {answer.actual}, not at {answer.expected}: another one leads")
        await self._fold.reach(answer.seq)
        return answer.seq

    async def _append(self, events: tuple[AnyEvent, ...]) -> Appended | Conflict:
        writer = Writer("scheduler", self._instance, self.epoch, self._next_seq)
        self._next_seq += 1
        frame = Frame(writer, events)
        return await self._journal.append(DECISION, frame, expected_last=self._fold.state.decision_seq)
