"""When a job counts as too slow: a state machine with hysteresis, so that a rate near its target does not flap.

It turns low after whole windows below the target, and back only after whole windows above the target by a margin.
Pure: a window's rate comes as an argument.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Signal = Literal["low", "recovered"]


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """`windows` whole windows in a row turn the state; `margin_percent` is how far above the target is recovered."""

    windows: int = 3
    margin_percent: int = 5


class RateState(msgspec.Struct, frozen=True):
    """Whether the job is low, and how many windows in a row spoke for the other state."""

    low: bool = False
    streak: int = 0


def advance(
    state: RateState, rate_millis: int | None, target_millis: int, thresholds: Thresholds
) -> tuple[RateState, Signal | None]:
    """Return the state after one window, and the signal to give; a window of unknown rate (None) breaks a row."""
    if rate_millis is None:
        return RateState(state.low), None
    if state.low:
        turns = rate_millis * 100 >= target_millis * (100 + thresholds.margin_percent)
    else:
        turns = rate_millis < target_millis
    streak = state.streak + 1 if turns else 0
    if streak < thresholds.windows:
        return RateState(state.low, streak), None
    return RateState(not state.low), "recovered" if state.low else "low"
