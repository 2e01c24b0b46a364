"""What a stack may leave behind, and proof that it did not: processes, mounts, cgroups, ports, shared memory.

Looking is separate from sweeping on purpose: the list is what the kernel says, not what the sweeper believes.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from tidegate_local import plan, postgres
from tidegate_local.home import HOME_VARIABLE, LOOPBACK, Home
from tidegate_local.topology import EXECUTOR, Process

SWEEP_SECONDS_MAX = 60.0
SETTLE_SECONDS_MAX = 5.0
SETTLE_POLL_SECONDS = 0.1
CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_DEPTH_MAX = 6
PROC = Path("/proc")
LISTENING = "0A"


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that should be gone."""

    kind: Literal["process", "mount", "cgroup", "port", "memory", "sweep"]
    what: str


async def sweep(options: plan.StackOptions) -> list[Leftover]:
    """Let the command of each node's agent end every sandbox of an ended stack; return what it could not do.

    What a killed database server leaves in shared memory is removed, too.
    """
    await _release_memory(Home(options.home))
    agents = options.topology.processes(EXECUTOR)
    return [left for found in await asyncio.gather(*(_sweep(agent, options) for agent in agents)) for left in found]


async def _sweep(agent: Process, options: plan.StackOptions) -> list[Leftover]:
    process = await asyncio.create_subprocess_exec(
        plan.console_script("tidegate-executor"),
        "sweep",
        env={**plan.common_env(options), **plan.executor_env(agent, options)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(SWEEP_SECONDS_MAX):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return [Leftover(kind="sweep", what=f"`tidegate-executor sweep` did not end in {SWEEP_SECONDS_MAX:.0f} s")]
    if process.returncode:
        text = output.decode(errors="replace").strip()[-1000:]
        return [Leftover(kind="sweep", what=f"`tidegate-executor sweep` exited {process.returncode}: {text}")]
    return []


async def _release_memory(home: Home) -> None:
    """Remove the segment of a killed database server as soon as its last process, which the kernel ends, is gone."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLE_SECONDS_MAX
    while (segment := postgres.shared_memory(home)) is not None:
        if not segment.attached:
            postgres.remove(segment)
        elif loop.time() > deadline:
            return  # a process lives on, and is found and named
        await asyncio.sleep(SETTLE_POLL_SECONDS)


async def find_settled(home: Home, ports: dict[str, int]) -> list[Leftover]:
    """Return what is left after a bounded wait: the kernel takes a moment to bury killed processes."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLE_SECONDS_MAX
    while True:
        left = find(home, ports)
        if not left or loop.time() > deadline:
            return left
        await asyncio.sleep(SETTLE_POLL_SECONDS)


def find(home: Home, ports: dict[str, int]) -> list[Leftover]:
    """Return everything of the stack that the kernel still knows of."""
    return [*_processes(home), *_mounts(home), *_cgroups(home), *_ports(home, ports), *_memory(home)]


def _processes(home: Home) -> Iterator[Leftover]:
    """Processes of the stack name its home in their environment; sandboxed ones sit in its cgroup or mounts.

    Those of the database show their state where the environment was, but work in their data directory.
    """
    own = _ancestors(os.getpid())
    inside = f"{home.root}/".encode()
    data = postgres.data_dir(home)
    for directory in PROC.iterdir():
        if not directory.name.isdigit() or int(directory.name) in own:
            continue
        try:
            if _is_zombie(directory):
                continue
            is_ours = (
                inside in (directory / "environ").read_bytes()
                or f"/{home.cgroup_name}".encode() in (directory / "cgroup").read_bytes()
                or inside in (directory / "mountinfo").read_bytes()
                or (directory / "cwd").readlink() == data
            )
            if is_ours:
                command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                yield Leftover(kind="process", what=f"{directory.name} {command[:120]}")
        except (FileNotFoundError, ProcessLookupError, PermissionError, OSError):
            continue  # gone meanwhile, or another user's


def _is_zombie(directory: Path) -> bool:
    return (directory / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] in {"Z", "X"}


def _ancestors(pid: int) -> set[int]:
    found = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        pid = int(fields[1])
    return found


def _mounts(home: Home) -> Iterator[Leftover]:
    for line in (PROC / "self" / "mountinfo").read_text().splitlines():
        target = line.split()[4].encode().decode("unicode_escape")
        if target.startswith(f"{home.root}/"):
            yield Leftover(kind="mount", what=target)


def cgroup_directories(name: str) -> Iterator[Path]:
    """Yield the cgroups called `name`, or that and one node's, in every hierarchy."""
    pending = [(CGROUP_ROOT, 0)]
    while pending:
        directory, depth = pending.pop()
        try:
            children = [entry for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue  # gone meanwhile, or not ours to read
        for child in children:
            if child.name == name or child.name.startswith(f"{name}-"):
                yield Path(child.path)
            elif depth < CGROUP_DEPTH_MAX:
                pending.append((Path(child.path), depth + 1))


def _cgroups(home: Home) -> Iterator[Leftover]:
    for directory in cgroup_directories(home.cgroup_name):
        yield Leftover(kind="cgroup", what=str(directory))


def _ports(home: Home, ports: dict[str, int]) -> Iterator[Leftover]:
    for name, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                if not _belongs_to_another_stack(home, port):
                    yield Leftover(kind="port", what=f"{name} {LOOPBACK}:{port}")


def _belongs_to_another_stack(home: Home, port: int) -> bool:
    """Say whether another stack took the port since: all of them prefer the same one for the gateway."""
    homes = {_home_in_environment(pid) for pid in _holders(port)}
    return bool(homes) and not homes & {b"", os.fsencode(home.root)}


def _holders(port: int) -> Iterator[Path]:
    """Yield the processes that have a socket listening at the port, as far as we may see them."""
    rows = [line.split() for line in (PROC / "net" / "tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == LISTENING and row[1].endswith(f":{port:04X}")}
    for directory in PROC.iterdir():
        if directory.name.isdigit():
            try:
                if any(str(entry.readlink()) in sockets for entry in (directory / "fd").iterdir()):
                    yield directory
            except OSError:
                continue  # gone meanwhile, or another user's


def _home_in_environment(directory: Path) -> bytes:
    try:
        variables = (directory / "environ").read_bytes().split(b"\0")
    except OSError:
        return b""
    prefix = HOME_VARIABLE.encode() + b"="
    return next((variable.removeprefix(prefix) for variable in variables if variable.startswith(prefix)), b"")


def _memory(home: Home) -> Iterator[Leftover]:
    if (segment := postgres.shared_memory(home)) is not None:
        yield Leftover(kind="memory", what=f"System V segment {segment.number}, {segment.attached} attached")
