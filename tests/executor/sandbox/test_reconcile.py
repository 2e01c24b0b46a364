"""The agent dies, the shim dies, process 1 dies: who finds what, and what is left in the end."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import msgspec
import pytest
from tidegate_executor.cgroups.detect import driver_from
from tidegate_executor.sandbox import client
from tidegate_executor.sandbox.base import (
    ReplicaExited,
    ReplicaStarted,
    SandboxEnded,
    SandboxLostError,
    SandboxStoppingError,
)
from tidegate_executor.sandbox.shim.processes import start_ticks
from tidegate_executor.sandbox.state import StateDirectory, remove_tree

from tests.executor.sandbox.conftest import BACKENDS, World, exit_of, output_of, wait_output

SLEEP = "import time\nprint('up')\ntime.sleep(600)"

AGENT = Path(__file__).with_name("short_lived_agent.py")


async def begin_and_kill_agent(world: World, code: str) -> None:
    """Another process creates a sandbox, starts `code` in it, and is killed by SIGKILL."""
    request = json.dumps(
        {
            "name": world.name,
            "backend": world.probe.backend,
            "level": world.backend.level,
            "directory": str(world.directory),
            "settings": msgspec.to_builtins(world.settings),
        }
    )
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        str(AGENT),
        request,
        code,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
    )
    assert agent.stdout is not None
    assert (await agent.stdout.readline()) == b"started\n"
    agent.kill()
    assert await agent.wait() == -signal.SIGKILL


async def test_a_killed_agent_kills_no_job(world: World) -> None:
    code = (
        "import os, time\n"
        "print('up')\n"
        "while not os.path.exists('go'): time.sleep(0.02)\n"
        "print('on')\n"
        "raise SystemExit(5)"
    )
    await begin_and_kill_agent(world, code)
    (found,) = await world.backend.list()
    assert (found.condition, found.sandbox.id) == ("running", "job.1.0")
    await wait_output(found.sandbox, "up")
    follower = asyncio.ensure_future(exit_of(found.sandbox))
    await open_gate(world)
    exited = await follower
    assert (exited.exit_code, exited.stopping) == (5, False)
    assert await output_of(found.sandbox) == "up\non\n"
    assert {exit.component: exit.exit_code for exit in await found.sandbox.stop(0)} == {"main": 5, "opener": 0}
    (ended,) = await world.backend.list()
    assert ended.condition == "ended"


async def test_an_exit_between_two_agents_is_in_the_history(world: World) -> None:
    await begin_and_kill_agent(world, "raise SystemExit(9)")
    (found,) = await world.backend.list()
    assert (await exit_of(found.sandbox)).exit_code == 9


async def test_nothing_the_agent_holds_open_reaches_the_job(world: World) -> None:
    await begin_and_kill_agent(world, "import os\nprint(sorted(int(n) for n in os.listdir('/proc/self/fd')))")
    (found,) = await world.backend.list()
    await exit_of(found.sandbox)
    assert await output_of(found.sandbox) == "[0, 1, 2, 3]\n"  # the last is the listing itself


async def test_a_dead_shim_means_lost_and_is_swept(world: World) -> None:
    sandbox = await world.create()
    started = await sandbox.start(world.python(SLEEP))
    await wait_output(sandbox, "up\n")
    shim = StateDirectory(world.settings.sandboxes_dir, sandbox.id).shim()
    assert shim is not None
    os.kill(shim.pid, signal.SIGKILL)
    for _ in range(500):
        if (await world.backend.list())[0].condition == "lost":
            break
        await asyncio.sleep(0.01)
    assert (await world.backend.list())[0].condition == "lost"
    seen: list[type] = []

    async def follow() -> None:
        async for recorded in sandbox.events():
            seen.append(type(recorded.event))

    with pytest.raises(SandboxLostError):
        await follow()
    assert ReplicaStarted in seen
    assert await gone(started.pid), "its room is not free before nothing of it runs"
    with pytest.raises(SandboxLostError):
        await sandbox.stats()
    assert await world.backend.sweep({"another"}) == ("job.1.0",)
    assert await gone(started.pid)
    assert await world.backend.list() == ()


async def test_a_shim_that_cannot_be_reached_for_a_while_is_not_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await world.create()
    await sandbox.start(world.python("import time\ntime.sleep(1)\nraise SystemExit(7)"))
    real, failures = client.open_socket, iter(range(2))

    def short_of_descriptors(state: StateDirectory) -> socket.socket:
        if next(failures, None) is not None:
            raise OSError(errno.EMFILE, "too many open files")
        return real(state)

    monkeypatch.setattr(client, "open_socket", short_of_descriptors)
    assert (await exit_of(sandbox)).exit_code == 7
    failures = iter(range(1))
    assert [exited.exit_code for exited in await sandbox.stop(5)] == [7], "nor is a stop forgotten"


async def test_an_end_that_comes_while_it_is_looked_at_is_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StateDirectory(str(tmp_path), "j.1.0")
    state.path.mkdir()

    def dies_now(self: StateDirectory) -> None:
        (self.path / "events.jsonl").write_text('{"type":"ended","at_ns":1,"reason":"stopped"}\n')

    monkeypatch.setattr(StateDirectory, "shim", dies_now)
    assert state.condition() == "ended"


@pytest.mark.parametrize("record", [None, b""])
async def test_what_a_power_cut_left_without_a_record_is_found_and_removed(world: World, record: bytes | None) -> None:
    cut = Path(world.settings.sandboxes_dir) / "cut.1.0"
    cut.mkdir(parents=True)
    if record is not None:
        (cut / "sandbox.json").write_bytes(record)
        (cut / "shim.json").write_bytes(record)
    (found,) = await world.backend.list()
    assert (found.condition, found.sandbox.id) == ("lost", "cut.1.0")
    await found.sandbox.destroy()
    assert not cut.exists()


async def test_nothing_starts_in_a_sandbox_that_is_being_stopped_and_that_is_nobodys_failure(world: World) -> None:
    sandbox = await world.create()
    await sandbox.start(world.python("import signal, time\nsignal.signal(15, lambda *_: None)\n" + SLEEP))
    await wait_output(sandbox, "up\n")
    stopping = asyncio.ensure_future(sandbox.stop(2))
    await asyncio.sleep(0.3)
    with pytest.raises(SandboxStoppingError):
        await sandbox.start(world.python(SLEEP, component="late"))
    await stopping


def test_a_tree_that_the_job_closed_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tmp_path / "tree"
    (top / "a" / "b" / "c").mkdir(parents=True)
    (top / "a" / "link").symlink_to(tmp_path)
    closed = [top / "a" / "b" / "c", top / "a" / "b", top / "a"]
    for path in closed:
        path.chmod(0)
    real = shutil.rmtree

    def as_a_user(path: Path) -> None:
        """Root may do everything: refuse what any other user is refused."""
        if any(each.stat().st_mode & 0o700 == 0 for each in closed):
            raise PermissionError(errno.EACCES, "closed")
        real(path)

    monkeypatch.setattr(shutil, "rmtree", as_a_user)
    remove_tree(top)
    assert not top.exists()
    assert list(tmp_path.iterdir()) == []


async def test_sweep_keeps_what_it_is_told_to(world: World) -> None:
    kept = await world.create("kept.1.0", uid_slot=1)
    await kept.start(world.python(SLEEP, cwd="/"))
    await world.create("gone.1.0", uid_slot=2)
    assert await world.backend.sweep({"kept.1.0"}) == ("gone.1.0",)
    (found,) = await world.backend.list()
    assert (found.condition, found.sandbox.id) == ("running", "kept.1.0")


async def test_sweep_removes_groups_without_a_sandbox(world: World) -> None:
    if world.probe.limits == "none":
        pytest.skip("no control groups here")
    sandbox = await world.create()
    record = StateDirectory(world.settings.sandboxes_dir, sandbox.id).record()
    assert record is not None
    assert record.cgroup is not None
    stray = driver_from(record.cgroup).group("stray.1.0")
    stray.create()
    assert "stray.1.0" in await world.backend.sweep({sandbox.id})
    assert not stray.exists()


async def test_the_nodes_failure_is_not_the_jobs(cell: World) -> None:
    sandbox = await cell.create()
    started = await sandbox.start(cell.python(SLEEP))
    await wait_output(sandbox, "up\n")
    os.kill(process_one_of(started.pid), signal.SIGKILL)
    async with asyncio.timeout(10):
        events = [recorded.event async for recorded in sandbox.events()]
    assert isinstance(events[-1], SandboxEnded)
    assert events[-1].reason == "collapsed"
    assert not any(isinstance(event, ReplicaExited) for event in events)


def process_one_of(pid: int) -> int:
    """The host pid of process 1 in the pid namespace of `pid`."""
    namespace = os.readlink(f"/proc/{pid}/ns/pid")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                same = os.readlink(entry / "ns" / "pid") == namespace
                inner = (entry / "status").read_text().split("NSpid:")[1].split("\n")[0].split()[-1]
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if same and inner == "1":
                return int(entry.name)
    raise AssertionError(f"no process 1 beside {pid}")


async def open_gate(world: World) -> None:
    """Make /workspace/go appear, as another replica of the same sandbox does it."""
    (found,) = await world.backend.list()
    exited, _ = await world.run(found.sandbox, world.python("open('go', 'w')", component="opener"))
    assert exited.exit_code == 0


async def gone(pid: int) -> bool:
    for _ in range(500):
        if start_ticks(pid) is None:
            return True
        await asyncio.sleep(0.01)
    return False


async def test_two_agents_of_one_machine_may_have_sandboxes_of_the_same_name(world: World, tmp_path: Path) -> None:
    sandbox = await world.create()
    await sandbox.start(world.python(SLEEP))
    settings = msgspec.structs.replace(
        world.settings,
        sandboxes_dir=str(tmp_path / "other" / "sandboxes"),
        cgroup_name=f"{world.settings.cgroup_name}-other",
    )
    other = World(BACKENDS[world.name](settings), settings, world.probe, world.name, tmp_path / "other")
    await other.create()
    assert await other.backend.sweep(set()) == ("job.1.0",)
    await other.backend.release()
    assert [found.component for found in (await sandbox.stats()).replicas] == ["main"]
    exited, _ = await world.run(sandbox, world.process("true", component="another"))
    assert exited.exit_code == 0
