"""Who attaches mounts for a user without root: one process cannot both gather them and enter the sandbox then.

To gather takes a user namespace of one's own, out of which no other is entered. So whoever gathers has forked this
process before, which stays where the sandbox can be entered from, and hands it the mounts, which are attached nowhere.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from tidegate_executor.sandbox.shim.descriptors import receive
from tidegate_executor.sandbox.shim.processes import end_child


class Gathered(NamedTuple):
    """One mount that is attached nowhere yet."""

    target: str
    tree: int
    is_directory: bool
    writable: bool


Attach = Callable[[dict[str, Any], list[Gathered]], None]

MOUNTS_MAX = 250  # descriptors in one message (SCM_MAX_FD is 253)
MESSAGE_BYTES_MAX = 1 << 20
COMPLAINT_BYTES_MAX = 2000
DONE = b"\1"


class Hands:
    """See the module; `attach` is what the process does with what it is handed, once."""

    def __init__(self, attach: Attach) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES_MAX)
        self._child = os.fork()
        if self._child == 0:
            self._ours.close()
            _be_hands(theirs, attach)
        theirs.close()

    def attach(self, config: dict[str, Any], gathered: list[Gathered]) -> None:
        """Have it attach these. Raises OSError with what went wrong there."""
        if len(gathered) > MOUNTS_MAX:
            raise OSError(f"{len(gathered)} mounts cannot come late at once; accepted: {MOUNTS_MAX}")
        described = [(each.target, each.is_directory, each.writable) for each in gathered]
        text = json.dumps({"config": config, "mounts": described}).encode()
        socket.send_fds(self._ours, [text], [each.tree for each in gathered])
        complaint = self._ours.recv(COMPLAINT_BYTES_MAX)
        self._ours.close()
        end_child(self._child)
        if complaint != DONE:
            raise OSError(complaint.decode(errors="replace") or "what attaches mounts ended early")


def _be_hands(asked: socket.socket, attach: Attach) -> NoReturn:
    try:
        text, trees = receive(asked, MESSAGE_BYTES_MAX, MOUNTS_MAX)
        if text:
            message = json.loads(text)
            mounts = zip(message["mounts"], trees, strict=True)
            attach(
                message["config"],
                [Gathered(target, tree, is_dir, writable) for (target, is_dir, writable), tree in mounts],
            )
            asked.send(DONE)
    except BaseException as error:  # noqa: BLE001 - the report is the only way out of a forked child
        asked.send(f"{type(error).__name__}: {error}".encode()[:COMPLAINT_BYTES_MAX])
    finally:
        os._exit(0)
