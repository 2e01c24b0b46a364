"""The process that shims are forked from: started once by the agent, it has imported everything they need.

A new Python costs some forty milliseconds, a fork of this one a single one, and what was read before the fork is shared
memory in hundreds of shims. Each message on standard input is one byte, the kind, and in JSON what may be made before
the sandbox is known, with one connected socket, for one shim; the agent's end, however it comes, is the end of this
process, and no shim's. It must never read a configuration: these hold secrets, and the next shim would inherit them.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tidegate_executor.sandbox import seccomp
from tidegate_executor.sandbox.shim import main
from tidegate_executor.sandbox.shim.descriptors import receive
from tidegate_executor.sandbox.shim.hold import executable

MESSAGE_BYTES_MAX = 65536


def run() -> None:
    """Fork a shim for each message until the agent is gone."""
    control = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, meant for the agent
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for shims: the kernel reaps those that end before us
    seccomp.program(os.uname().machine)  # assembled once, for all
    seccomp.program(os.uname().machine, told=True)
    executable(os.uname().machine)
    gc.collect()
    gc.freeze()
    while True:
        message, descriptors = receive(control, MESSAGE_BYTES_MAX, 1)
        if not message:
            return
        for connection in descriptors:
            if os.fork() == 0:
                main.begin(connection, message)
            os.close(connection)


if __name__ == "__main__":
    run()
