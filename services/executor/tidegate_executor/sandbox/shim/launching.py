"""What a launcher need not say: replicas are plain children of the shim, in the group that they were given."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate_executor.cgroups.base import Group, Quota

if TYPE_CHECKING:
    from tidegate_executor.sandbox.shim.guest_trace import GuestRefusals
    from tidegate_executor.sandbox.shim.spawn import Process


class NotReadyError(Exception):
    """What was built ahead cannot be used."""


class Launching:
    """The steps of a replica's life beside its process; a launcher overrides those that mean something to it.

    `name` is "component.number". All but `translate` happen in the shim.
    """

    holder = 0
    clones = False
    program = -1

    def ground(self) -> None:
        """Put into its group what needs not know the sandbox."""

    def lay_out(self) -> None:
        """Have the files of the sandbox, which is known now, laid out beside what else is to do."""

    def adopt(self, late: list[list[str]], meanwhile: Callable[[], None]) -> None:
        """Give the sandbox, which was built for nobody, what its job is known to need now: mounts, name, network.

        `meanwhile` is called once, when only others have something to do for it.
        """
        raise NotReadyError("what has no place of its own is never built ahead")

    def join(self, holder: int) -> None:
        """In a fresh child: know the place, which may not have stood when the child was forked."""

    def fork_inside(self) -> int:
        return 0

    def enter(self) -> None:
        """Stay where we are."""

    def confine(self) -> int:
        """Keep what we have."""
        return -1

    def group(self, group: Group) -> Group:
        """The control group of a replica, as this launcher's limits mean it."""
        return group

    def prepare(self, group: Group) -> bool:
        """Make ready for the first replica, before it is known, in this group; say whether its process can wait too."""
        return self.clones

    def prepared_for(self, name: str) -> bool:
        """Whether what was made ready, the process that waits included, fits this replica, which begins."""
        return True

    def begin(self, name: str, group: Group | None, quota: Quota) -> None:
        """Make ready for a replica, whose group stands. Raises SpawnError."""

    def complete(self, process: Process) -> Process:
        """In the shim: the process with what its place would say wrongly of itself."""
        return process

    def translate(self, process: Process) -> Process:
        """What is really executed, in the child that becomes it."""
        return process

    def confirm(self, name: str, pid: int) -> None:
        """Return when the command of this child runs. Raises SpawnError when it cannot."""

    def refusals(self, name: str) -> GuestRefusals | None:
        """What the place of a replica that runs tells of what it refuses, where it tells."""
        return None

    def signal(self, name: str, pid: int, number: int) -> None:
        os.kill(pid, number)

    def unchangeable(self, before: Quota, after: Quota) -> str:
        """Why limits cannot change so; empty where they can."""
        return ""

    def resizing(self, name: str, quota: Quota) -> None:
        """Its control group will have less CPU: what lies below it there may not have more by then."""

    def resized(self, name: str, quota: Quota) -> None:
        """Its control group has new limits."""

    def ending(self, name: str, code: int) -> int:
        """Exit code of the command (negative: the signal), from that of the child."""
        return code

    def broke(self, name: str) -> bool:
        """Whether the place of a replica whose child ended went, rather than its command."""
        return False

    def ended(self, name: str) -> None:
        """Nothing of the replica runs any more."""
