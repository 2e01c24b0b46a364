"""The exit codes of `tidegate` and what leads to each; docs/reference/cli.md states them for people."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from tidegate.errors import CorruptCheckpointError, TidegateError

OK = 0
FAILED = 1
"""The job, the wait or the check ended badly."""
USAGE = 2
ENVIRONMENT = 3
"""Something outside the command is missing: the stack, the gateway, a file, an installed part."""
NOT_FOUND = 4
REFUSED = 5
"""The gateway said no (422, 403, 409, 413): nothing was changed."""
INTERRUPTED = 130
BROKEN_PIPE = 141
"""What a shell shows for a program whose reader went away."""


class CommandError(TidegateError):
    """Ends a command with `exit_code`, a message and a remedy; plug-in commands may raise it as well."""

    def __init__(self, message: str, remedy: str = "", exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.exit_code = exit_code


def exit_code(error: TidegateError) -> int:
    """Return the exit code that stands for `error`."""
    if isinstance(error, CommandError):
        return error.exit_code
    # Imported here: a command that raises one of these has loaded the client already, `--help` has not.
    from tidegate import client  # noqa: PLC0415

    codes: Tuple[Tuple[Any, int], ...] = (
        (client.NotFound, NOT_FOUND),
        ((client.ValidationError, client.Conflict, client.Forbidden), REFUSED),
        ((client.JobEnded, client.WaitTimeout, CorruptCheckpointError), FAILED),
        ((client.SpecError, client.PackingError), USAGE),
    )
    for kinds, code in codes:
        if isinstance(error, kinds):
            return code
    return REFUSED if getattr(error, "status", None) == 413 else ENVIRONMENT


def described(error: TidegateError) -> Dict[str, Any]:
    """Return the error as the document that `--json` prints."""
    document: Dict[str, Any] = {
        "error": type(error).__name__,
        "message": getattr(error, "message", str(error)),
        "exit_code": exit_code(error),
    }
    for field in ("remedy", "code", "status", "problems", "job_id", "state"):
        value = getattr(error, field, None)
        if value:
            document[field] = value
    return document
