"""What a simulation is given: nodes, jobs with the times at which they come, and what each of them really does.

A policy sees the specification of a job and what happens to it, as in the service. What it does not see is its `Truth`:
how long it works, in which phases, and whether it fails. Times are nanoseconds since the simulation began; where it
begins with a state of a journal, they are those of that journal.
"""

from __future__ import annotations

import msgspec
from tidegate_events.events import AnyEvent, NodeJoined
from tidegate_events.spec import DEFAULT_PHASE, JobSpec


class Span(msgspec.Struct, frozen=True, gc=False):
    """One phase that a job goes through, and what that takes when the phase has what it needs.

    It is `seconds` and `more_ms`, which recorded phases have. `cpu_bound`: with a part of the CPU that the phase may
    have at most, it takes as much longer.
    """

    phase: str
    seconds: int
    cpu_bound: bool = False
    more_ms: int = 0

    @property
    def work_ms(self) -> int:
        """Return the whole length, in milliseconds."""
        return self.seconds * 1000 + self.more_ms


class Truth(msgspec.Struct, frozen=True, gc=False):
    """What a job does, whoever schedules it: its phases, one after another, until it is done or fails.

    `saves_every_seconds`: how much work lies between two checkpoints that it writes by itself (0: it writes none but
    when it is asked to leave); the first comes after `saves_first_ms` where that is not 0. `fails_after_seconds`: after
    so much work it ends as failed by its own fault, each time; `stumbles_ms` are where it fails once before that, in
    turn, and gets by the next time.
    `censored`: the recording ended before the job did, so it may have taken longer. `leaves_in_ms`: when it is asked to
    leave it saves nothing, and is gone after so long; None: it saves, and that takes what the costs say.
    """

    spans: tuple[Span, ...]
    saves_every_seconds: int = 0
    fails_after_seconds: int | None = None
    censored: bool = False
    leaves_in_ms: int | None = None
    stumbles_ms: tuple[int, ...] = ()
    saves_first_ms: int = 0

    @property
    def work_seconds(self) -> int:
        """Return how long the job takes alone, with all that it asks for."""
        return sum(span.work_ms for span in self.spans) // 1000


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A job, when it is submitted, and what it does.

    Of a job that stands in the state which a simulation begins with, it is what is left to do: nobody submits it.
    """

    at_ns: int
    job: str
    spec: JobSpec
    truth: Truth


class Workload(msgspec.Struct, frozen=True):
    """All that happens to a cluster from outside. Arrivals stand in the order of their times, then of their jobs.

    `nodes` are there from the beginning. `facts` happen at their own times, in this order: what operators ask for,
    nodes that go away (`NodeUnreachable`), are back (`NodeReachable`), or come and come again (`NodeJoined`).
    """

    name: str
    nodes: tuple[NodeJoined, ...]
    arrivals: tuple[Arrival, ...]
    facts: tuple[AnyEvent, ...] = ()


def whole(seconds: int) -> Truth:
    """Return the truth of a job that has no phases: it works for so long."""
    return Truth((Span(DEFAULT_PHASE, seconds),))
