"""Start of the shim, in a fork of the zygote: the sandbox's configuration on a socket, one line of answer.

The configuration holds secrets: it must never be written down.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import traceback
from pathlib import Path
from typing import Any, NoReturn

from tidegate_executor.sandbox.shim import syscalls
from tidegate_executor.sandbox.shim.bubblewrap import Bubblewrap
from tidegate_executor.sandbox.shim.processes import start_ticks
from tidegate_executor.sandbox.shim.server import Server

IDENTITY_NAME = "shim.json"
LOG_NAME = "shim.log"
CONNECTION = 3  # to the agent, until the sandbox stands
READ_BYTES = 65536
AHEAD_SECONDS = 0.1  # before what is only made for later: a start that goes on has the processors until then
ISOLATED, PLAIN = b"i", b"p"  # what kind of sandbox the shim will be asked for


def begin(connection: int, kind: bytes) -> NoReturn:
    """In a fresh child of the zygote: read the configuration, build the sandbox, answer, serve it to its end.

    An end of the connection without one means that nobody needs us.
    """
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        gc.disable()  # until the sandbox stands, in forks of us too: looking at it all costs more than it finds
        select.select([connection], [], [], AHEAD_SECONDS)
        os.dup2(connection, CONNECTION, inheritable=False)
        os.closerange(CONNECTION + 1, os.sysconf("SC_OPEN_MAX"))
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.setsid()
        os.umask(0o022)
        syscalls.make_undumpable()
        identity = _identity()
        bubblewrap = Bubblewrap() if kind == ISOLATED else None
        if text := _read_all(CONNECTION):
            server = _open(json.loads(text), bubblewrap, identity)
            gc.enable()
            server.run()
        code = 0
    except BaseException:  # noqa: BLE001 - a forked child must not return into the zygote's loop
        traceback.print_exc()
    finally:
        os._exit(code)


def _open(config: dict[str, Any], bubblewrap: Bubblewrap | None, identity: str) -> Server:
    """Build the sandbox and tell the agent how it went."""
    try:
        _detach(config["state_dir"])
        _identify(config["state_dir"], identity)
        if bubblewrap is not None:
            bubblewrap.prepare(config)
        server = Server(config, bubblewrap)
        server.open()
    except BaseException as error:
        os.write(CONNECTION, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        raise
    os.write(CONNECTION, b'{"ok":true}\n')
    os.close(CONNECTION)
    return server


def _read_all(connection: int) -> bytes:
    parts = []
    while part := os.read(connection, READ_BYTES):
        parts.append(part)
    return b"".join(parts)


def _detach(state_dir: str) -> None:
    """Nothing of the agent's stays open; our own complaints go to a file."""
    null = os.open("/dev/null", os.O_RDWR)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(os.path.join(state_dir, LOG_NAME), flags, 0o600)
    for target, source in ((0, null), (1, null), (2, log)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)


def _identity() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return json.dumps({"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "boot": boot})


def _identify(state_dir: str, text: str) -> None:
    """Leave behind who we are, so that whoever finds the sandbox can tell whether we live."""
    path = Path(state_dir, IDENTITY_NAME)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.rename(path)
