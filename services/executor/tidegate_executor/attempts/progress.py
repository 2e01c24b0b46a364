"""When the progress that a job reports becomes a fact: where it moved enough, up or down, and not too often. Pure.

The fact is a hint about the time that is left, so a fall is told as well as a rise: what is known is never more than
one move above what the job said, as long as it may tell at all.
"""

from __future__ import annotations

import msgspec

MOVE_MILLIS = 50
TOLD_MAX = 20
"""Facts of one attempt: a job that goes from 0 to 1 needs no more, one whose progress swings is not heard for ever."""


class ProgressState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was told of the attempt's progress, in thousandths of the whole; nothing while `told` is 0."""

    millis: int = 0
    told: int = 0


def millis_of(progress: float) -> int:
    """Return whole thousandths, rounded down: nobody is further than they said."""
    return int(progress * 1000)


def is_news(state: ProgressState, millis: int) -> bool:
    """Say whether this progress becomes a fact. The first one does: the attempt before may have got further."""
    if state.told >= TOLD_MAX:
        return False
    return state.told == 0 or abs(millis - state.millis) >= MOVE_MILLIS


def tell(state: ProgressState, millis: int) -> ProgressState:
    """Return the state after it was put as a fact."""
    return ProgressState(millis=millis, told=state.told + 1)
