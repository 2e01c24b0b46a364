"""A nats-server whose store lies on a small disk of its own, which a test can fill up for real.

The disk is a tmpfs in a mount namespace that nothing else sees. A process that waits for the end of its input holds the
namespace, so that the disk outlives the server's processes and never the test's.
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.nats import NatsServer, free_port

DISK_MIB = 64
READY_LINE = b"mounted\n"
CHUNKS_BYTES = (64 * 1024, 1)


def need_mounts() -> None:
    """Skip where this process may not mount, but never on CI."""
    if os.geteuid() != 0:
        reason = "needs root, to mount a small disk in a namespace of its own"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


class SmallDisk:
    """A disk of DISK_MIB at `path`, for processes that `enter` starts; `seen` is where this process sees it."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        mount = f'mount -t tmpfs -o size={DISK_MIB}m tmpfs "$0" && echo mounted && exec cat'
        self._holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", mount, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == READY_LINE
        self.seen = Path(f"/proc/{self._holder.pid}/root{path}")
        self.enter = ["nsenter", "-m", "-t", str(self._holder.pid), "--"]
        self._filler = self.seen / "filler"

    def fill(self) -> None:
        """Take all room there is, to the last byte."""
        with self._filler.open("ab", buffering=0) as file:
            for size_bytes in CHUNKS_BYTES:
                try:
                    while True:
                        file.write(b"x" * size_bytes)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def make_room(self) -> None:
        """Give back what was taken."""
        self._filler.unlink()

    def close(self) -> None:
        """Let the disk go, when nobody uses it any more."""
        self._holder.communicate()


class SmallDiskServer(NatsServer):
    """A server on a small disk."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.disk = SmallDisk(directory / "jetstream")
        monitor = free_port()
        self.monitor_url = f"http://127.0.0.1:{monitor}"
        self._config.write_text(f'{self._config.read_text()}http: "127.0.0.1:{monitor}"\n')
        self._argv = [*self.disk.enter, *self._argv]

    def close(self) -> None:
        """Stop the server and let the disk go."""
        self.stop()
        self.disk.close()
