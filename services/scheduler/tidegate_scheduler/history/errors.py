"""What a question about history can fail of, with the exit code that a program sees."""

from __future__ import annotations

from tidegate.cli import exits
from tidegate.cli.exits import CommandError


class NotInHistoryError(CommandError):
    """What was asked for is not in the history that is being read."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy, exits.NOT_FOUND)


class UsageError(CommandError):
    """What was given on the command line cannot be used."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy, exits.USAGE)


class HistoryMissingError(CommandError):
    """There is nothing to read: no file, no stack, no bus, or not the version of the code that it needs."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy, exits.ENVIRONMENT)


class RefusedError(CommandError):
    """Nothing was changed, because it would have done harm."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy, exits.REFUSED)
