"""Secrets of tenants: one file per secret below the secrets directory, read when a sandbox starts.

A value must never reach an event, a log line, an argument list or the agent's own files: it is handed to the sandbox
port and forgotten.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

SECRET_BYTES_MAX = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")


class SecretError(Exception):
    """A secret cannot be given to the job; the text names it and never its value."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def read(directory: Path, tenant: str, references: dict[str, str]) -> dict[str, str]:
    """Return environment variable -> value for a spec's `secrets` (variable -> name). Raises SecretError."""
    return {variable: _read_one(directory, tenant, name) for variable, name in references.items()}


def _read_one(directory: Path, tenant: str, name: str) -> str:
    if not (_NAME.match(tenant) and _NAME.match(name)):
        raise SecretError("SecretNameRefused", f"secret {tenant}/{name}: names hold letters, digits and _ . - only")
    path = directory / tenant / name
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SecretError(
            "SecretMissing", f"secret {tenant}/{name} cannot be read on this node: {error.strerror}"
        ) from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
            raise SecretError(
                "SecretExposed",
                f"secret {tenant}/{name} has mode {stat.S_IMODE(status.st_mode):04o}: "
                "a regular file that only its owner can read (0600) is accepted",
            )
        data = file.read(SECRET_BYTES_MAX + 1)
    if len(data) > SECRET_BYTES_MAX:
        raise SecretError("SecretTooLarge", f"secret {tenant}/{name} is longer than {SECRET_BYTES_MAX} bytes")
    try:
        value = data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise SecretError("SecretNotText", f"secret {tenant}/{name} is not UTF-8 text") from error
    if "\0" in value or not value:
        raise SecretError("SecretNotText", f"secret {tenant}/{name} is empty or holds a NUL byte")
    return value
