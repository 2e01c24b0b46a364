"""Start of the shim: `python -I -S main.py`, the sandbox's configuration on standard input, one line of answer.

The configuration holds secrets: it must never be written down.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tidegate_executor.sandbox.shim import syscalls
from tidegate_executor.sandbox.shim.processes import start_ticks
from tidegate_executor.sandbox.shim.server import Server

IDENTITY_NAME = "shim.json"
LOG_NAME = "shim.log"


def main() -> None:
    # Not every event loop closes its own descriptors in what it starts; none may reach the job.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    config = json.loads(sys.stdin.buffer.read())
    if os.fork():
        os._exit(0)  # the agent waits for us only; what stays behind is nobody's child
    os.setsid()
    os.umask(0o022)
    syscalls.make_undumpable()
    answer = os.dup(1)
    os.set_inheritable(answer, False)
    _detach(config["state_dir"])
    _identify(config["state_dir"])
    server = _open(config, answer)
    server.run()


def _open(config: dict[str, Any], answer: int) -> Server:
    """Build the sandbox and tell the agent how it went."""
    try:
        server = Server(config)
        server.open()
    except BaseException as error:
        os.write(answer, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        raise
    os.write(answer, b'{"ok":true}')
    os.close(answer)
    return server


def _detach(state_dir: str) -> None:
    """Nothing of the agent's stays open; our own complaints go to a file."""
    null = os.open("/dev/null", os.O_RDWR)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(os.path.join(state_dir, LOG_NAME), flags, 0o600)
    for target, source in ((0, null), (1, null), (2, log)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)


def _identify(state_dir: str) -> None:
    """Leave behind who we are, so that whoever finds the sandbox can tell whether we live."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    text = json.dumps({"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "boot": boot})
    path = Path(state_dir, IDENTITY_NAME)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.rename(path)


if __name__ == "__main__":
    main()
