"""The process that becomes bubblewrap, forked before it is known which sandbox it will build.

So a shim that waits for its configuration has all of its forks behind it. If none comes it ends, and this process too.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
from typing import Any

from tidegate_executor.sandbox import seccomp
from tidegate_executor.sandbox.shim.hold import executable
from tidegate_executor.sandbox.shim.layout import Layout, hosts_text
from tidegate_executor.sandbox.shim.memory import memory_file
from tidegate_executor.sandbox.shim.staging import Mapping

SETUP_SECONDS_MAX = 20.0
INFO_BYTES_MAX = 65536
COMPLAINT_BYTES_MAX = 2000
LENGTH = "<I"
NEEDED = ("state_dir", "uid", "bwrap", "plan", "hostname", "ready")  # of the configuration, by who becomes bubblewrap


class SetupError(Exception):
    """The sandbox could not be built; the text holds bubblewrap's complaint."""


class Bubblewrap:
    """One bubblewrap; its descriptors are ours until `close`."""

    def __init__(self) -> None:
        self.alive, alive_write = os.pipe()
        self._info, info_write = os.pipe()
        self._complaint = os.memfd_create("bwrap-stderr", os.MFD_CLOEXEC)
        self._files = {
            "hold": memory_file("hold", executable(os.uname().machine)),
            "seccomp": memory_file("seccomp", seccomp.program(os.uname().machine)),
            "hosts": memory_file("hosts", b""),
        }
        self._mapping = Mapping()
        tell_read, self._tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._tell)
            self._become(tell_read, (alive_write, info_write))
        for descriptor in (tell_read, alive_write, info_write):
            os.close(descriptor)

    def prepare(self, config: dict[str, Any]) -> None:
        """Have it prepare to build this sandbox."""
        Layout(config).prepare()
        hosts = hosts_text(config["hostname"], config["network"])
        os.pwrite(self._files["hosts"], hosts, 0)
        text = json.dumps({name: config[name] for name in NEEDED if name in config}).encode()
        data = struct.pack(LENGTH, len(text)) + text
        try:
            while data:
                data = data[os.write(self._tell, data) :]
        except BrokenPipeError:
            return  # its complaint says why

    def build(self) -> None:
        """Have it build the sandbox; it is in its control group by now."""
        try:
            os.write(self._tell, b"\1")
        except BrokenPipeError:
            return  # its complaint says why
        finally:
            self._let_go()

    def await_standing(self) -> int:
        """Wait for process 1's byte; return its host pid. Raises SetupError."""
        ready, _, _ = select.select([self.alive], [], [], SETUP_SECONDS_MAX)
        if not ready or os.read(self.alive, 1) != b"\1":
            os.lseek(self._complaint, 0, os.SEEK_SET)
            text = os.read(self._complaint, COMPLAINT_BYTES_MAX).decode(errors="replace").strip()
            raise SetupError(text or f"bubblewrap did not finish in {SETUP_SECONDS_MAX} s")
        return int(json.loads(os.read(self._info, INFO_BYTES_MAX))["child-pid"])

    def close(self) -> None:
        """Close what is still open here."""
        self._let_go()
        for descriptor in (self._info, self._complaint, self.alive):
            if descriptor >= 0:
                os.close(descriptor)
        self._info = self._complaint = self.alive = -1

    def _let_go(self) -> None:
        """Of what only its process needs."""
        if self._tell >= 0:
            os.close(self._tell)
            self._tell = -1
            self._mapping.close()
            for descriptor in self._files.values():
                os.close(descriptor)

    def _become(self, tell: int, outputs: tuple[int, int]) -> None:
        alive_write, info_write = outputs
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            (size,) = struct.unpack(LENGTH, _hear(tell, struct.calcsize(LENGTH)))
            layout = Layout(json.loads(_hear(tell, size)), self._mapping)
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.dup2(alive_write, 1)
            os.dup2(self._complaint, 2)
            for descriptor in (info_write, *self._files.values()):
                os.set_inheritable(descriptor, True)
            layout.stage()
            layout.drop_to_sandbox_uid()
            arguments = layout.arguments(info_write, self._files)
            _hear(tell, 1)  # last: moving us takes as long as all of this
            os.execve(arguments[0], arguments, {})
        except BaseException as error:  # noqa: BLE001 - the report is the only way out of a forked child
            os.write(self._complaint, f"before bubblewrap: {error}".encode())
        finally:
            os._exit(127)


def _hear(tell: int, size: int) -> bytes:
    heard = b""
    while len(heard) < size:
        part = os.read(tell, size - len(heard))
        if not part:
            os._exit(127)  # the shim has ended
        heard += part
    return heard
