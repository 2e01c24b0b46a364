"""Whose turn it is to have plans worked out: so many in one pass, half for those in front, half for all behind them.

A plan that looks at very many jobs counts as several, so that what a pass takes does not grow with how many jobs there
are on a node.
"""

from __future__ import annotations

from tidegate_scheduler.policy.parameters import SECOND_NS

PLANS_MAX = 8
"""Preemptions and new reservations that one pass works out; who is blocked behind them waits for the next. A job whose
turn it is has all of its plans worked out, so either half of them may be a few more."""

PLANS_AT_REST_MAX = 24
"""How many more a pass works out that decides nothing else: it has the time, and the next may come later for it."""

PLANS_ON_TRIAL_MAX = 80
"""How many are worked out for others, from the front, where a pass is tried to say what would become of a job."""

JOBS_PER_PLAN = 2048
"""A plan that looks at that many jobs, of those who might leave and of those whose leaving is tried, counts as two."""

FIRST_SCALE = 4
"""Among how many of those who ask the smallest part of the round is; each next one is twice as large."""

EVEN, EVEN_BITS = 0xD0A6EC179556585E, 64
"""A fraction, in so many bits, of which the multiples lie evenly, be it each of them or each 2nd, 5th, 10th or 60th."""


def round_begins_at(now_ns: int, lines: int) -> int:
    """Return how many of those who are behind the front, and ask, go without in a pass at that time.

    A pass that decides nothing leaves nothing behind that could say whose turn it was: it is the time that says. Passes
    come at any interval, as their leader or an operator has it, so it is a fraction of which the multiples lie evenly
    whichever of them are looked at.

    Nor does a pass know beforehand how many will ask, only that they are no more than there are lines. So the round
    begins as often among the first four as among the next eight, or the sixteen behind these, up to all lines: who is
    twice as far behind waits twice as long, and those who do not ask count by the logarithm of their number alone.
    """
    parts = ((max(lines, 1) - 1) // FIRST_SCALE + 1).bit_length()
    place = (now_ns // SECOND_NS * EVEN % (1 << EVEN_BITS)) * parts
    part, within = place >> EVEN_BITS, place % (1 << EVEN_BITS)
    begin = FIRST_SCALE * ((1 << part) - 1)
    size = max(1, min(FIRST_SCALE << part, lines - begin))
    return begin + (size * within >> EVEN_BITS)


def rest_begins_at(now_ns: int, count: int) -> int:
    """Return with which of so many, who all have their turn by and by, a pass at that time begins."""
    return (now_ns // SECOND_NS * EVEN % (1 << EVEN_BITS)) * count >> EVEN_BITS


class Round:
    """The turns of one pass.

    A job on trial always has its turn, whatever the second in which it is asked for, and takes none from others. Those
    in front of it are many and the second says nothing about them, so all their turns are of the front then.
    """

    def __init__(self, now_ns: int, lines: int, on_trial: str) -> None:
        self._on_trial = on_trial
        self._in_front, self._goes_round = (PLANS_ON_TRIAL_MAX, 0) if on_trial else (PLANS_MAX // 2, PLANS_MAX // 2)
        self._begins = round_begins_at(now_ns, lines)
        self._asks, self._front, self._its_turn, self._behind = "", False, False, 0

    def comes_to(self, job: str) -> bool:
        """Say whether one more plan may be worked out for the job: as many as it asks for, or none in this pass.

        Half of all are for those who ask first. The other half goes round, so that those whom no plan helps keep nobody
        behind them from theirs.
        """
        its_turn = self.would_come_to(job)
        if its_turn and job != self._on_trial:
            if self._front:
                self._in_front -= 1
            else:
                self._goes_round -= 1
        return its_turn

    def charge(self, jobs: int) -> None:
        """Count the plan that was worked out as several, by how many jobs it has looked at."""
        if self._on_trial:
            return
        if self._front:
            self._in_front -= jobs // JOBS_PER_PLAN
        else:
            self._goes_round -= jobs // JOBS_PER_PLAN

    def would_come_to(self, job: str) -> bool:
        """Say whether plans may be worked out for the job, before any is."""
        if job == self._on_trial:
            return True
        if job != self._asks:
            self._asks, self._front = job, self._in_front > 0
            self._its_turn = self._front or (self._goes_round > 0 and self._behind >= self._begins)
            self._behind += not self._front
        return self._its_turn

    def rest(self) -> None:
        """Give the turns of a pass that decides nothing else, to those who went without in it."""
        self._in_front, self._goes_round, self._asks = PLANS_AT_REST_MAX, 0, ""
