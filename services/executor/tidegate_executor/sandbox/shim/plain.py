"""Level `unisolated`: plain processes of the agent's user. It must never be mistaken for a boundary."""

from __future__ import annotations

from collections.abc import Callable

from tidegate_executor.sandbox.shim import syscalls
from tidegate_executor.sandbox.shim.launching import Launching


class PlainLauncher(Launching):
    """Nothing to enter and nothing to drop; orphans come to the shim, so that it can end them."""

    def open(self, meanwhile: Callable[[], None]) -> int | None:
        syscalls.become_subreaper()
        meanwhile()
        return None

    def confine(self) -> int:
        syscalls.forbid_new_privileges()
        return -1

    def close(self) -> None:
        """The replicas' trees are ended one by one."""
