"""What `benchmarks/sandbox.py` compares with: bubblewrap and runc by hand, `docker run`, and a bare fork.

Each starts one command and returns the milliseconds until its first output, removing what it made afterwards.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from tidegate_executor.cgroups.base import CgroupError, Driver, Group, Quota
from tidegate_executor.sandbox import seccomp
from tidegate_executor.sandbox.bwrap import find_bwrap
from tidegate_executor.sandbox.shim.memory import memory_file
from tidegate_local.chaos import image

COMMAND = ("/bin/sh", "-c", "echo out")
QUOTA = Quota(cpu_millis=2000, memory_mib=128, pids=32)
TREE_MEMORY_MIB = 256
TREE_PIDS = 64
OUTPUT_SECONDS_MAX = 60.0
REMOVE_TRIES_MAX = 50


class Baseline(Protocol):
    """One way to start the command."""

    def first_output_ms(self) -> float: ...


class Started(NamedTuple):
    """What it took, and how it is removed."""

    first_output_ms: float
    remove: Callable[[], None]


class BareFork:
    """The command with no isolation at all."""

    def first_output_ms(self) -> float:
        return _first_output_ms([*COMMAND])


class RawBwrap:
    """bubblewrap as one would call it by hand: the same namespaces, overlays, control groups and system call filter."""

    def __init__(self, directory: Path, driver: Driver) -> None:
        self._directory = directory
        self._driver = driver
        self._numbers = itertools.count()
        (directory / "lower").mkdir(parents=True, exist_ok=True)

    def first_output_ms(self) -> float:
        started = self.start()
        started.remove()
        return started.first_output_ms

    def start(self) -> Started:
        """Return one that has said its first output, to be removed. May be called by many threads at once."""
        number = next(self._numbers)
        own = self._directory / str(number)
        began = time.perf_counter()
        for name in ("upper", "work"):
            (own / name).mkdir(parents=True)
        tree = self._driver.group(f"raw.{number}")
        tree.create()
        tree.bound(TREE_MEMORY_MIB, TREE_PIDS)
        group = tree.child("main.0")
        group.create()
        group.apply(QUOTA)
        rules = memory_file("seccomp", seccomp.program(os.uname().machine))
        read, write = os.pipe()
        gate_read, gate_write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.dup2(write, 1)
                os.set_inheritable(rules, True)
                os.read(gate_read, 1)
                arguments = self._arguments(rules, own)
                os.execv(arguments[0], arguments)
            finally:
                os._exit(127)
        os.close(write)
        group.add(child)
        os.write(gate_write, b"\1")
        first = os.read(read, 1)
        took_ms = (time.perf_counter() - began) * 1000

        def remove() -> None:
            _, status = os.waitpid(child, 0)
            for descriptor in (read, rules, gate_read, gate_write):
                os.close(descriptor)
            _remove(tree)
            if status or not first:
                raise SystemExit(f"raw bubblewrap failed: {os.waitstatus_to_exitcode(status)}")

        return Started(took_ms, remove)

    def _arguments(self, rules: int, own: Path) -> list[str]:
        binary, _ = find_bwrap()
        links = [item for name in ("bin", "lib", "lib64") for item in ("--symlink", f"usr/{name}", f"/{name}")]
        upper, work = str(own / "upper"), str(own / "work")
        return [
            binary, "--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000",
            "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv", "--seccomp", str(rules),
            "--overlay-src", "/usr", "--tmp-overlay", "/usr", *links,
            "--ro-bind", "/etc/ld.so.cache", "/etc/ld.so.cache",
            "--overlay-src", str(self._directory / "lower"), "--overlay", upper, work, "/workspace",
            "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--", *COMMAND,
        ]  # fmt: skip


class RawRunc:
    """`runc run` of a bundle whose root is the host's /usr, with limits, without an overlay."""

    def __init__(self, directory: Path) -> None:
        self._bundle = directory / "bundle"
        self._state = directory / "runc"
        self._numbers = itertools.count()
        root = self._bundle / "rootfs"
        for name in ("usr", "proc", "dev", "sys", "tmp"):
            (root / name).mkdir(parents=True, exist_ok=True)
        for name in ("bin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        subprocess.run(["runc", "spec"], cwd=self._bundle, check=True)
        path = self._bundle / "config.json"
        config = json.loads(path.read_text())
        config["process"] |= {"args": list(COMMAND), "terminal": False}
        config["mounts"].append({"destination": "/usr", "source": "/usr", "options": ["rbind", "ro"]})
        config["linux"]["resources"] |= {"memory": {"limit": QUOTA.memory_mib * 1024**2}, "pids": {"limit": QUOTA.pids}}
        path.write_text(json.dumps(config))

    def first_output_ms(self) -> float:
        name = f"tidegate-bench-{os.getpid()}-{next(self._numbers)}"
        return _first_output_ms(["runc", "--root", str(self._state), "run", "--bundle", str(self._bundle), name])


class DockerRun:
    """`docker run --rm` of an image made from a shell and its libraries, by the engine of DOCKER_HOST."""

    IMAGE = "tidegate-bench:start"

    def __init__(self, directory: Path) -> None:
        root = directory / "docker-root"
        image.build(root / "usr")
        (root / "usr" / "bin" / "sh").symlink_to("bash")
        for name in ("bin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        archive = subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE)
        with archive:
            subprocess.run(
                ["docker", "import", "-", self.IMAGE], stdin=archive.stdout, stdout=subprocess.DEVNULL, check=True
            )

    def first_output_ms(self) -> float:
        limits = ["--memory", f"{QUOTA.memory_mib}m", "--pids-limit", str(QUOTA.pids), "--network", "none"]
        return _first_output_ms(["docker", "run", "--rm", *limits, self.IMAGE, *COMMAND])

    def close(self) -> None:
        subprocess.run(["docker", "image", "rm", "--force", self.IMAGE], stdout=subprocess.DEVNULL, check=True)


def _remove(tree: Group) -> None:
    """The sandbox's process 1 may still be on its way out on a busy machine."""
    for _ in range(REMOVE_TRIES_MAX):
        try:
            tree.remove()
        except CgroupError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("a raw sandbox does not end")


def docker_answers() -> bool:
    """Whether there is an engine to compare with."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "version"], capture_output=True, timeout=30, check=False).returncode == 0


def _first_output_ms(arguments: list[str]) -> float:
    began = time.perf_counter()
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        took_ms = (time.perf_counter() - began) * 1000
        process.wait(OUTPUT_SECONDS_MAX)
    if process.returncode or not first:
        raise SystemExit(f"{arguments[0]} failed with {process.returncode}")
    return took_ms
