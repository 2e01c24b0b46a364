"""What the system call filter denies a replica is denied by the shim, so that somebody knows (seccomp_unotify(2)).

The filter asks whoever holds its listener, and the caller waits for the answer, which is always no. Of each call the
first is told, then ever fewer, with how many there were; a sandbox that makes many is held up. When the shim is gone
the kernel says no by itself.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
from typing import NamedTuple

from tidegate_executor.sandbox import seccomp

NOTIF_BYTES, ARGUMENTS = 80, 6  # struct seccomp_notif of linux/seccomp.h
RECEIVE, SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND
AT_ONCE_MAX = 64  # answered before anything else has its turn
PER_SECOND_MAX = 1000
TELL_SECONDS, TELL_SECONDS_MAX = 1.0, 3600.0


class Refusal(NamedTuple):
    """A call that was denied so many times since it was last told, at last by a process with this pid of the host."""

    call: str
    times: int
    pid: int
    command: str


class Pace:
    """How many are answered in one second, all replicas of a sandbox together: an answer costs the node a processor."""

    def __init__(self) -> None:
        self._second = 0
        self._answered = 0

    def left(self, now: float) -> int:
        """Return how many more may be."""
        if self._second != int(now):
            self._second, self._answered = int(now), 0
        return PER_SECOND_MAX - self._answered

    def count(self) -> None:
        """Note that one was."""
        self._answered += 1

    def pause_seconds(self, now: float) -> float:
        """Return how long nobody is answered, because so many were."""
        return 0.0 if self.left(now) > 0 else self._second + 1 - now


class _Told:
    """When a call may be told again."""

    def __init__(self) -> None:
        self.times = 0
        self.by = (0, "")
        self.next_at = 0.0
        self.seconds = TELL_SECONDS

    def due(self, now: float) -> bool:
        if now < self.next_at:
            return False
        self.next_at = now + self.seconds
        self.seconds = min(2 * self.seconds, TELL_SECONDS_MAX)
        return True


class Tally:
    """Counts refusals by the name of their call, and says when one is to be told."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}
        self.total = 0

    def count(self, call: str, now: float, by: tuple[int, str]) -> Refusal | None:
        """Count one, made `by` a process (pid of the host, its name); return what is to be told now."""
        told = self._told.setdefault(call, _Told())
        told.times += 1
        told.by = by
        self.total += 1
        return self._tell(call, told) if told.due(now) else None

    def due_at(self) -> float | None:
        """Return when something is to be told that nobody was told of; None: all was."""
        return min((told.next_at for told in self._told.values() if told.times), default=None)

    def overdue(self, now: float) -> list[Refusal]:
        """Return what is to be told by now, though no more came."""
        return [self._tell(call, told) for call, told in self._told.items() if told.times and told.due(now)]

    def rest(self) -> list[Refusal]:
        """What was not told yet."""
        return [self._tell(call, told) for call, told in self._told.items() if told.times]

    def _tell(self, call: str, told: _Told) -> Refusal:
        times, told.times = told.times, 0
        return Refusal(call, times, *told.by)


class Refusals:
    """Those of one replica, `tally` in number. `listener` is ours, a descriptor that polls readable when one waits."""

    def __init__(self, listener: int, pace: Pace) -> None:
        self.listener = listener
        self.tally = Tally()
        self._pace = pace
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._machine = os.uname().machine

    def pause_seconds(self, now: float) -> float:
        """How long nobody is answered, because so many were."""
        return self._pace.pause_seconds(now)

    def answer(self, now: float) -> list[Refusal]:
        """Say no to those that wait, at this monotonic time; return what is to be told of it."""
        found = []
        for _ in range(min(AT_ONCE_MAX, self._pace.left(now))):
            asked = self._receive()
            if asked is None:
                break
            self._pace.count()
            refusal = self._refuse(asked, now)
            if refusal is not None:
                found.append(refusal)
        return found

    def rest(self) -> list[Refusal]:
        """What was not told yet, at the end."""
        return self.tally.rest()

    def close(self) -> None:
        os.close(self.listener)

    def _receive(self) -> bytes | None:
        """Return the next that waits; None where none does."""
        if not self._poll.poll(0):
            return None
        asked = bytearray(NOTIF_BYTES)
        return bytes(asked) if self._ioctl(RECEIVE, asked) else None

    def _ioctl(self, request: int, argument: bytearray) -> bool:
        """Say whether it was done; else the process that waits was killed meanwhile. Python repeats no ioctl itself."""
        while True:
            try:
                fcntl.ioctl(self.listener, request, argument)
            except InterruptedError:
                continue
            except FileNotFoundError:
                return False
            return True

    def _refuse(self, asked: bytes, now: float) -> Refusal | None:
        number_of_it, pid, _, number = struct.unpack_from("<QIIi", asked)
        arguments = struct.unpack_from(f"<{ARGUMENTS}Q", asked, 32)
        command = _command(pid)  # while it waits, so the pid is its own
        no = seccomp.errno_of(self._machine, number, arguments)
        self._ioctl(SEND, bytearray(struct.pack("<QqiI", number_of_it, 0, -no, 0)))
        return self.tally.count(seccomp.name_of(self._machine, number, arguments), now, (pid, command))


def _command(pid: int) -> str:
    """The name that a process has given itself."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as reading:
            return reading.read().decode(errors="replace").strip()
    except OSError:  # it was killed meanwhile
        return ""
