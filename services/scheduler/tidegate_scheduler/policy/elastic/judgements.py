"""What is so of the running jobs for all who might have them leave, kept from pass to pass: by job, and by row in the
order of their classes, until a job changes or the time has come at which something else is so of it.

So a plan looks at a row of which nobody may leave once, however many wait and at however many priorities; who is there
is looked at again where somebody came, changed or went, not in each pass. Like the index it is a cache, never a source.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidegate_scheduler.policy.elastic.holders import NEVER
from tidegate_scheduler.policy.elastic.sparing import Judged, judge
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.state import Job, State


class OnRow(msgspec.Struct, frozen=True, gc=False):
    """Who runs on a row, or is placed there, those of lower classes first; so from `since_ns` until `until_ns`.

    `soonest_ns` is, after each of them, when the first of those so far is spared no more by the time alone, `able` how
    many of those so far are spared by nothing.
    """

    standings: list[int]
    jobs: list[Job]
    judged: list[Judged]
    soonest_ns: list[int]
    able: list[int]
    since_ns: int
    until_ns: int


class Judgements:
    """The judgements of one index."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._by: tuple[int, ...] = ()
        """The parameters that count."""

        self._of: dict[str, Judged] = {}
        self._on: dict[int, OnRow] = {}
        self.made = 0
        """How many jobs were judged."""

    def begin_pass(self, parameters: Parameters) -> None:
        """Judge by these parameters from now on."""
        by = (
            parameters.ageing_seconds,
            parameters.preemptions_max,
            parameters.preemption_cooldown_seconds,
            parameters.protection_permille,
            parameters.overrun_permille,
        )
        if by != self._by:
            self._by = by
            self._of.clear()
            self._on.clear()

    def forget(self, job: str) -> None:
        """Judge a job anew that changed."""
        self._of.pop(job, None)

    def forget_row(self, row: int) -> None:
        """Look anew at who is on a row, as one of them changed, or came or went."""
        self._on.pop(row, None)

    def of(self, job: Job, now_ns: int, parameters: Parameters) -> Judged:
        """Return what is so of a job now."""
        known = self._of.get(job.id)
        if known is None or not known.since_ns <= now_ns < known.until_ns:
            self.made += 1
            known = self._of[job.id] = judge(self._state, job, now_ns, parameters)
        return known

    def on_row(self, row: int, names: Iterable[str], now_ns: int, parameters: Parameters) -> OnRow:
        """Return what is so now of those on the row who run, or are placed; `names` are all who are there."""
        known = self._on.get(row)
        if known is None or not known.since_ns <= now_ns < known.until_ns:
            known = self._on[row] = self._found(names, now_ns, parameters)
        return known

    def _found(self, names: Iterable[str], now_ns: int, parameters: Parameters) -> OnRow:
        jobs = [job for name in names if (job := self._state.jobs[name]).stage in ("placed", "running")]
        both = [(job, self.of(job, now_ns, parameters)) for job in jobs]
        both.sort(key=lambda each: each[1].standing)
        soonest_ns, able, until_ns = [NEVER], [0], NEVER
        for _, each in both:
            soonest_ns.append(min(soonest_ns[-1], each.spared_until_ns))
            able.append(able[-1] + (not each.why))
            until_ns = min(until_ns, each.until_ns)
        judged = [each for _, each in both]
        return OnRow(
            [each.standing for each in judged], [job for job, _ in both], judged, soonest_ns, able, now_ns, until_ns
        )
