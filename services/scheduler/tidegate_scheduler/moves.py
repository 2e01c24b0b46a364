"""How long a borrower stays where it is before it moves to where its phase is granted: twice as long each time.

What a move costs is a small part of the shortest stay. Whoever moved and waits again soon is moved less and less often,
whatever the reason is that moving does not help it.
"""

from __future__ import annotations

from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job

STAYS_NS = 600 * SECOND_NS
"""How long who has not moved before, or long ago, stays where it is."""

DOUBLINGS_MAX = 6


def count_rebalanced(job: Job, at_ns: int) -> None:
    """Count that the job is asked to move: in a row, if that is soon after it might."""
    again = job.moves and at_ns < job.moved_ns + 2 * _rest_ns(job)
    job.moves = min(job.moves + 1, DOUBLINGS_MAX) if again else 1
    job.moved_ns = at_ns


def stays_until_ns(job: Job) -> int:
    """Return until when the job, which runs, is not asked to move."""
    return max(job.started_ns + STAYS_NS, job.moved_ns + _rest_ns(job) if job.moves else 0)


def _rest_ns(job: Job) -> int:
    return STAYS_NS << job.moves
