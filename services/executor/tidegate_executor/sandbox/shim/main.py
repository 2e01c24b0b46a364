"""Start of the shim, in a fork of the zygote: the sandbox's configuration on a socket, a line each, and the answers.

One that says `ready` knows the image alone: the sandbox is built, and waits for the one that says whose it is.

The configuration holds secrets: it must never be written down.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from tidegate_executor.sandbox.shim import syscalls
from tidegate_executor.sandbox.shim.bubblewrap import Bubblewrap
from tidegate_executor.sandbox.shim.processes import start_ticks
from tidegate_executor.sandbox.shim.sandbox import ShimSandbox
from tidegate_executor.sandbox.shim.server import Server

IDENTITY_NAME = "shim.json"
LOG_NAME = "shim.log"
CONNECTION = 3  # to the agent, until the sandbox stands
READ_BYTES = 65536
AHEAD_SECONDS = 0.1  # before what is only made for later: a start that goes on has the processors until then
STANDS = b'{"ok":true}\n'
ISOLATED, PLAIN = b"i", b"p"  # what kind of sandbox the shim will be asked for


def begin(connection: int, message: bytes) -> NoReturn:
    """In a fresh child of the zygote: read the configuration, build the sandbox, answer, serve it to its end.

    An end of the connection without one means that nobody needs us. `message` is what came with the connection: the
    kind, and where the control group is to be if that is known.
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
        bubblewrap = Bubblewrap() if message[:1] == ISOLATED else None
        server = _make(json.loads(message[1:]), bubblewrap)
        if server is not None:
            gc.enable()
            server.run()
        code = 0
    except BaseException:  # noqa: BLE001 - a forked child must not return into the zygote's loop
        traceback.print_exc()
    finally:
        os._exit(code)


def _make(known: dict[str, Any], bubblewrap: Bubblewrap | None) -> Server | None:
    """Build the sandbox and tell the agent how it went; None if it was not needed, and nothing of it is left then."""
    hearing = Lines(CONNECTION)
    sandbox: ShimSandbox | None = None
    server: Server | None = None
    try:
        if known:
            sandbox = ShimSandbox(known, bubblewrap)
            sandbox.lay_ground()
        config = hearing.next()
        if config is not None and config.get("ready"):
            _settle(config["state_dir"])
            known.update(config)
            sandbox = sandbox or ShimSandbox(known, bubblewrap)
            sandbox.stand_ready()
            server = Server(sandbox, config["state_dir"])  # after all forks that last: none of them may listen
            os.write(CONNECTION, STANDS)
            config = hearing.next()
        elif config is not None:
            _settle(config["state_dir"])
            sandbox = sandbox or ShimSandbox(config, bubblewrap)
            server = Server(sandbox, config["state_dir"])
        if config is None:
            _abandon(sandbox)
            return None
        assert server is not None, "there is a configuration"
        server.open(config)
    except BaseException as error:
        with suppress(BrokenPipeError):  # whoever asked is gone
            os.write(CONNECTION, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        _abandon(sandbox)
        raise
    os.write(CONNECTION, STANDS)
    os.close(CONNECTION)
    return server


def _abandon(sandbox: ShimSandbox | None) -> None:
    if sandbox is not None:
        sandbox.abandon()


def _settle(state_dir: str) -> None:
    """From now on there is a place to complain in, and one who can be found."""
    _detach(state_dir)
    _identify(state_dir, _identity())


class Lines:
    """JSON documents from a connection, one a line."""

    def __init__(self, connection: int) -> None:
        self._connection = connection
        self._read = b""

    def next(self) -> dict[str, Any] | None:
        """The next; None when there is none."""
        while b"\n" not in self._read:
            part = os.read(self._connection, READ_BYTES)
            if not part:
                return None
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


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
