"""How often the room that is kept for a job changes: so many times in a row, then it rests.

Policy 2 decides by many rules for whom room is kept, and each looks at what is kept for the others. Whatever they do to
one another, passes come to rest: what changed so often is left as it is for a while.
"""

from __future__ import annotations

from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job

ROOM_CHANGES_MAX = 8
"""Changes that follow each other within the time below; far more than the rules need among themselves."""

ROOM_RESTS_NS = 10 * SECOND_NS
"""After how much time without one the changes are counted anew."""


def count_change(job: Job, at_ns: int) -> None:
    """Count that room is kept for the job elsewhere, or from another time on, than before."""
    in_a_row = job.room_changes and at_ns < job.room_changed_ns + ROOM_RESTS_NS
    job.room_changes = job.room_changes + 1 if in_a_row else 1
    job.room_changed_ns = at_ns


def rests_until_ns(job: Job, now_ns: int) -> int | None:
    """Return until when the room of the job is left as it is, None where it may change."""
    until_ns = job.room_changed_ns + ROOM_RESTS_NS
    return until_ns if job.room_changes >= ROOM_CHANGES_MAX and now_ns < until_ns else None
