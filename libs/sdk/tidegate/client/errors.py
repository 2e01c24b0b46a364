"""What a client call can end with: each error says what was refused, why, and what would be accepted."""

from __future__ import annotations

from typing import Dict, List, Optional

from tidegate.errors import TidegateError

Problem = Dict[str, str]
"""One finding about a specification: `path` into it, what the `problem` is, and what is `accepted`."""


class ClientError(TidegateError):
    """Base of everything the client raises; `remedy` says what to do about it."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".rstrip()


class NoGatewayError(ClientError):
    """Nothing says where the gateway is."""


class PackingError(ClientError):
    """The working directory cannot be packed; the message names the file and the rule."""


class SpecError(ClientError):
    """The specification is not readable JSON."""


class WaitTimeout(ClientError):
    """The job did not reach a wanted state in time; `state` is the last one seen."""

    def __init__(self, message: str, job_id: str, state: str) -> None:
        super().__init__(message, "It goes on; wait again, or cancel it.")
        self.job_id = job_id
        self.state = state


class ChecksumError(ClientError):
    """Bytes that came from the gateway do not have the digest that names them."""


class JobEnded(ClientError):
    """The job ended without reaching a wanted state; `state` is the one it ended in."""

    def __init__(self, message: str, job_id: str, state: str) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.state = state


class GatewayError(ClientError):
    """The gateway answered with an error.

    `status` is its HTTP status (None where there was no answer), `code` the gateway's own word for it.
    """

    def __init__(self, message: str, remedy: str = "", status: Optional[int] = None, code: str = "") -> None:
        super().__init__(message, remedy)
        self.status = status
        self.code = code


class ValidationError(GatewayError):
    """The request was refused before anything was taken (422); `problems` lists every finding."""

    def __init__(self, problems: List[Problem]) -> None:
        listed = "; ".join(f"{p['path']}: {p['problem']} (accepted: {p['accepted']})" for p in problems)
        super().__init__(f"The gateway refused the request: {listed}", status=422)
        self.problems = problems


class NotFound(GatewayError):
    """No such job, checkpoint, log or blob (404), or one so old that the gateway forgot it (410)."""


class Conflict(GatewayError):
    """The request contradicts what is already there (409): nothing was changed."""


class Forbidden(GatewayError):
    """Who asks may not do this (403): nothing was changed."""


class Unavailable(GatewayError):
    """The gateway could not be reached, or cannot take requests now; safe to try again later."""
