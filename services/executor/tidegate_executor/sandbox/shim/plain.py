"""Level `unisolated`: plain processes of the agent's user. It must never be mistaken for a boundary."""

from __future__ import annotations

from tidegate_executor.sandbox.shim import syscalls


class PlainLauncher:
    """Nothing to enter and nothing to drop; orphans come to the shim, so that it can end them."""

    clones = False

    def open(self) -> int | None:
        syscalls.become_subreaper()
        return None

    def fork_inside(self) -> int:
        return 0

    def enter(self) -> None:
        """Stay where we are."""

    def confine(self) -> None:
        syscalls.forbid_new_privileges()

    def close(self) -> None:
        """The replicas' trees are ended one by one."""
