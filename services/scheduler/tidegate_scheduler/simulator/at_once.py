"""How many jobs worked at once while there was demand, counted so that nobody who waits counts.

A job works while it is in a phase that it was granted, with what that phase needs. It does not while it stands in the
queue, starts, saves, or waits for a phase, though it is placed then. There is demand while some job of those that were
submitted does not work: who is alone in the end says nothing of how many could work beside each other.
"""

from __future__ import annotations

from fractions import Fraction

import msgspec

from tidegate_scheduler.simulator.run import Run


class AtOnce(msgspec.Struct, frozen=True):
    """The mean number of jobs that worked, while there was demand, and for how long there was (nanoseconds)."""

    jobs: Fraction
    demand_ns: int


def at_once(run: Run) -> AtOnce:
    """Return it of a run; no jobs where there never was demand."""
    worked = demand_ns = 0
    for sample, later in zip(run.samples, run.samples[1:], strict=False):
        if sample.waiting or sample.placed > sample.working:
            worked += sample.working * (later.at_ns - sample.at_ns)
            demand_ns += later.at_ns - sample.at_ns
    return AtOnce(Fraction(worked, demand_ns) if demand_ns else Fraction(0), demand_ns)
