"""How often what is leased is recalled from a member, and left to it again: so many times in a row, then it rests.

Who is told to hand back, and told that it may stay, by whatever rules do that to one another, is told no more for a
while: it keeps what it was told last, to hand back, which is of use to whoever comes to wait for it.
"""

from __future__ import annotations

from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Member

RECALLS_MAX = 8
"""Recalls that follow each other within the time below; far more than who waits and thinks better of it needs."""

RECALLS_REST_NS = 10 * SECOND_NS
"""After how much time without one they are counted anew."""


def count_recall(member: Member, at_ns: int) -> None:
    """Count that the member was told to hand back."""
    in_a_row = member.recalls and at_ns < member.recalled_ns + RECALLS_REST_NS
    member.recalls = member.recalls + 1 if in_a_row else 1
    member.recalled_ns = at_ns


def stands_until_ns(member: Member, now_ns: int) -> int | None:
    """Return until when a recall of the member stands, whoever waits for it; None where it may be taken back."""
    until_ns = member.recalled_ns + RECALLS_REST_NS
    return until_ns if member.recalls >= RECALLS_MAX and now_ns < until_ns else None
