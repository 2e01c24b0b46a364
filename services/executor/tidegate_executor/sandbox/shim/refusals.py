"""What the system call filter denies a replica is denied by the shim, so that somebody knows (seccomp_unotify(2)).

The filter asks whoever holds its listener, and the caller waits for the answer, which is always no. Of each call the
first is told, then ever fewer, with how many there were; who makes many is held up. When the shim is gone the kernel
says no by itself.
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


class _Told:
    """When a call may be told again."""

    def __init__(self) -> None:
        self.times = 0
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
        self.total += 1
        if not told.due(now):
            return None
        times, told.times = told.times, 0
        return Refusal(call, times, *by)

    def rest(self) -> list[Refusal]:
        """What was not told yet."""
        return [Refusal(call, told.times, 0, "") for call, told in self._told.items() if told.times]


class Refusals:
    """Those of one replica, `total` in number. `listener` is ours, a descriptor that polls readable when one waits."""

    def __init__(self, listener: int) -> None:
        self.listener = listener
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._machine = os.uname().machine
        self._tally = Tally()
        self._second = 0
        self._answered = 0

    @property
    def total(self) -> int:
        return self._tally.total

    def pause_seconds(self, now: float) -> float:
        """How long nobody is answered, because so many were."""
        full = self._second == int(now) and self._answered >= PER_SECOND_MAX
        return self._second + 1 - now if full else 0.0

    def answer(self, now: float) -> list[Refusal]:
        """Say no to those that wait, at this monotonic time; return what is to be told of it."""
        if self._second != int(now):
            self._second, self._answered = int(now), 0
        found = []
        for _ in range(min(AT_ONCE_MAX, PER_SECOND_MAX - self._answered)):
            asked = self._receive()
            if asked is None:
                break
            self._answered += 1
            refusal = self._refuse(asked, now)
            if refusal is not None:
                found.append(refusal)
        return found

    def rest(self) -> list[Refusal]:
        """What was not told yet, at the end."""
        return self._tally.rest()

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
        return self._tally.count(seccomp.name_of(self._machine, number, arguments), now, (pid, command))


def _command(pid: int) -> str:
    """The name that a process has given itself."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as reading:
            return reading.read().decode(errors="replace").strip()
    except OSError:  # it was killed meanwhile
        return ""
