"""One term: appending on `tg.decision`, every frame guarded by the last sequence there.

The lease says who may try; the guard makes sure that whoever was deposed writes nothing, whatever they believe.
"""

from __future__ import annotations

from collections.abc import Callable

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
    """This term is over: another scheduler leads, or the lease has ended. Nothing more is written in it."""


class Leadership:
    """One term of one scheduler: `epoch`, for as long as `holds_lease` says so and no later term was folded."""

    def __init__(self, journal: Journal, fold: Fold, writer: tuple[str, int], holds_lease: Callable[[], bool]) -> None:
        """`writer` is who leads: the instance, and the term's epoch."""
        self._journal = journal
        self._fold = fold
        self._instance, self.epoch = writer
        self._holds_lease = holds_lease
        self._next_seq = 0

    async def begin(self, now_ns: int) -> None:
        """Append LeaderElected and fold to it. Raises DeposedError if the journal has this or a later term already."""
        elected = LeaderElected(id=f"{self.epoch}-leader", at_ns=now_ns, epoch=self.epoch, instance=self._instance)
        for _ in range(ELECTION_TRIES_MAX):
            if self._fold.state.header.epoch >= self.epoch:
                raise DeposedError(f"epoch {self._fold.state.header.epoch} was elected before epoch {self.epoch}")
            self._check_lease()
            answer = await self._append((elected,))
            if isinstance(answer, Appended):
                await self._fold.reach(answer.seq)
                self.check()
                log.info("leads", epoch=self.epoch, seq=answer.seq)
                return
            await self._fold.reach(answer.actual)
        raise DeposedError(f"not elected in {ELECTION_TRIES_MAX} tries: others append on {DECISION}")

    async def set_policy(self, parameters: Parameters, now_ns: int) -> None:
        """Journal the policy and its parameters, if the state has others."""
        header = self._fold.state.header
        values = as_values(parameters)
        if header.policy != POLICY_VERSION or header.parameters != values:
            changed = PolicyChanged(id=f"{self.epoch}-policy", at_ns=now_ns, policy=POLICY_VERSION, parameters=values)
            await self.append((changed,))

    def check(self) -> None:
        """Raise DeposedError if the folded history has a later term than this one, or the lease has ended.

        The guard alone does not say so: it is the last sequence that was *folded*, the successor's election included.
        """
        elected = self._fold.state.header.epoch
        if elected != self.epoch:
            raise DeposedError(f"epoch {elected} leads, not {self.epoch}")
        self._check_lease()

    async def append(self, events: tuple[AnyEvent, ...]) -> int:
        """Append one frame and fold it back; return its sequence. Raises DeposedError when this term is over."""
        self.check()
        answer = await self._append(events)
        if isinstance(answer, Conflict):
            raise DeposedError(f"{DECISION} is at {answer.actual}, not at {answer.expected}: another one leads")
        await self._fold.reach(answer.seq)
        return answer.seq

    def _check_lease(self) -> None:
        if not self._holds_lease():
            raise DeposedError(f"the lease for epoch {self.epoch} has ended")

    async def _append(self, events: tuple[AnyEvent, ...]) -> Appended | Conflict:
        writer = Writer("scheduler", self._instance, self.epoch, self._next_seq)
        self._next_seq += 1
        frame = Frame(writer, events)
        return await self._journal.append(DECISION, frame, expected_last=self._fold.state.decision_seq)
