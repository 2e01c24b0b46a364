"""What all judgements share: who asks and why, what is refused, and how an event is left to be written.

A judgement returns None where what is asked for is so already: a request that is repeated writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from tidegate_events.events import AnyEvent

from tidegate_gateway.submission.problems import Problem
from tidegate_gateway.view.model import JobState

EventMaker = Callable[..., AnyEvent]
"""An event that lacks `id` and `at_ns`, which its writer adds."""


class Asked(msgspec.Struct, frozen=True):
    """Who asks, and why."""

    actor: str
    note: str = ""


class UnknownJobError(Exception):
    """There is no such job."""


class AlreadyEndedError(Exception):
    """The job of `tenant` ended before, in `state`."""

    def __init__(self, tenant: str, state: JobState) -> None:
        super().__init__(state)
        self.tenant = tenant
        self.state = state


class UnknownError(Exception):
    """There is no such node, queue or maintenance window: answered with 404 and with what is known."""

    def __init__(self, what: str, name: str, accepted: str) -> None:
        super().__init__(f"there is no {what} {name}")
        self.what = what
        self.accepted = accepted


class CannotError(Exception):
    """What is asked for cannot be as things stand: answered with 409."""

    def __init__(self, code: str, problem: str, accepted: str, **extra: Any) -> None:
        super().__init__(problem)
        self.body = {"code": code, "problem": problem, "accepted": accepted, **extra}


class WrongError(Exception):
    """A value that only the view shows to be wrong: answered with 422 and this problem."""

    def __init__(self, path: str, problem: str, accepted: str) -> None:
        super().__init__(problem)
        self.problem = Problem(path, problem, accepted)
