"""What explanations ask of a policy about one state at one time: for people, never an input of a decision.

A policy decides in passes; whoever waits wants to know where in line, why, until when, and what each node means for it.
Each policy answers from what it decides by itself, so that its answers are true of it and of no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec
from tidegate_events.events import Reason

from tidegate_scheduler.state import Job

NOT_CONSIDERED = Reason(code="NotConsidered", detail="no pass has looked at it yet")
FITS = "Fits"

Basis = Literal["now", "backoff", "locality", "maintenance", "deadline", "expected", "limit"]
BASES: tuple[Basis, ...] = ("now", "backoff", "locality", "maintenance", "deadline", "expected", "limit")
"""What an earliest start rests on, from the firmest to the weakest."""

Counts = Counter[tuple[str, str]]
"""How many jobs wait, by tenant and by the code of the dominant reason."""


class Start(msgspec.Struct, frozen=True):
    """The earliest start that is known, and the weakest thing that it rests on."""

    at_ns: int
    basis: Basis


class Verdict(msgspec.Struct, frozen=True):
    """Why a node takes no member of the job, or that it does (`Fits`), with what is needed and what is free."""

    node: str
    code: str
    detail: str = ""
    numbers: dict[str, int] = {}


class Outlook(Protocol):
    """The answers of a policy. Nothing that is asked changes what is decided."""

    @property
    def total(self) -> int:
        """Return how many jobs wait."""
        ...

    def in_line(self, at_most: int) -> list[Job]:
        """Return the first jobs in line: those that would be asked, in that order, then those that are not asked."""
        ...

    def position(self, job: Job) -> int:
        """Return the job's place in that line, from 1; far behind it is counted by lines of jobs that are alike."""
        ...

    def reasons(self, job: Job, waiting: Mapping[str, Reason]) -> tuple[Reason, ...]:
        """Return why the job waits, by what the last pass said: the dominant reason, then what else is in its way."""
        ...

    def counts(self, waiting: Mapping[str, Reason]) -> Counts:
        """Return how many jobs wait, by tenant and by the code of the reason that `reasons` gives first."""
        ...

    def starts(self, at_most: int) -> dict[str, Start]:
        """Return the earliest starts that are known among the first in line, within a bound on the work."""
        ...

    def start(self, job: Job) -> Start | None:
        """Return the earliest start of one job by what is recorded of it alone, None where nothing is."""
        ...

    def never(self, job: Job) -> Reason | None:
        """Return why the job could not run here even if it were alone, None where it could."""
        ...

    def verdicts(self, job: Job) -> tuple[Verdict, ...]:
        """Return what every node means for the job when its turn comes, by the names of the nodes."""
        ...
