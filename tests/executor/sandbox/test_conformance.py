"""What every sandbox backend must do, whatever its isolation."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tidegate_executor.sandbox.base import (
    CommandNotStartableError,
    InfrastructureError,
    Limits,
    Mount,
    ReplicaExited,
    ReplicaStarted,
    RequestRefusedError,
    ResizeRefusedError,
    SandboxEnded,
    SandboxReady,
)

from tests.executor.sandbox.conftest import (
    LIMITS,
    PYTHON,
    World,
    exit_of,
    left_over,
    output_of,
    require_limits,
    wait_output,
)

SLEEP = "import time\nprint('up')\ntime.sleep(600)"
DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\ntime.sleep(600)"
POLITE = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(7))\nprint('up')\ntime.sleep(600)"


async def test_exit_code_and_output_are_reported(world: World) -> None:
    sandbox = await world.create()
    exited, output = await world.run(sandbox, world.process("sh", "-c", "echo out; echo err >&2; exit 3"))
    assert (exited.exit_code, exited.signal, exited.oom, exited.stopping) == (3, None, False, False)
    lines = output.splitlines()
    if world.probe.backend == "docker":  # an engine has two streams, and keeps the order within each
        lines.sort(reverse=True)
    assert lines == ["out", "err"]


async def test_death_by_signal_is_not_an_exit_code(world: World) -> None:
    sandbox = await world.create()
    await sandbox.start(world.python(SLEEP))
    await wait_output(sandbox, "up\n")
    await sandbox.signal("main", 0, signal.SIGUSR1)
    exited = await exit_of(sandbox)
    assert (exited.exit_code, exited.signal, exited.oom) == (None, signal.SIGUSR1, False)


async def test_history_is_ordered_and_resumes_at_an_offset(world: World) -> None:
    sandbox = await world.create()
    await world.run(sandbox, world.process("true"))
    await sandbox.stop(0)
    history = [recorded async for recorded in sandbox.events()]
    assert [type(recorded.event) for recorded in history] == [
        SandboxReady,
        ReplicaStarted,
        ReplicaExited,
        SandboxEnded,
    ]
    resumed = [recorded async for recorded in sandbox.events(history[1].next_offset)]
    assert resumed == history[2:]


async def test_a_command_that_cannot_start_is_the_jobs_own_failure(world: World) -> None:
    sandbox = await world.create()
    with pytest.raises(CommandNotStartableError, match="no-such-command"):
        await sandbox.start(world.process("no-such-command"))
    with pytest.raises(CommandNotStartableError):
        await sandbox.start(world.process("true", cwd="/no/such/directory"))
    exited, _ = await world.run(sandbox, world.process("true"))
    assert exited.exit_code == 0


async def test_misuse_is_refused_and_changes_nothing(world: World) -> None:
    sandbox = await world.create()
    await sandbox.start(world.python(SLEEP))
    with pytest.raises(RequestRefusedError, match="runs already"):
        await sandbox.start(world.python(SLEEP))
    with pytest.raises(RequestRefusedError, match="exists already"):
        await world.create()
    with pytest.raises(RequestRefusedError, match="cpu_millis"):
        await sandbox.start(world.python(SLEEP, replica=1, limits=Limits(cpu_millis=0, memory_mib=64, pids=8)))
    with pytest.raises(RequestRefusedError, match="replica"):
        await sandbox.start(world.python(SLEEP, replica=-1))
    with pytest.raises(RequestRefusedError, match="does not run"):
        await sandbox.resize("learner", 0, LIMITS)
    with pytest.raises(RequestRefusedError, match="id"):
        await world.create("../escape")
    for given in ({"cwd": "/work\0space"}, {"env": {"A": "\0"}}, {"secret_env": {"\0": ""}}, {"cwd": "/\ud800"}):
        with pytest.raises(RequestRefusedError, match="without NUL"):
            await sandbox.start(world.process("true", component="other", **given))
    assert [replica.component for replica in (await sandbox.stats()).replicas] == ["main"]


async def test_the_environment_is_exactly_what_was_given(world: World) -> None:
    sandbox = await world.create()
    given = {"A": "1", "HOME": "/", "HOSTNAME": "h", "PATH": "/bin"}  # a container runtime sets these where missing
    process = world.process("/usr/bin/env", env=given, secret_env={"TOKEN": "abcdefgh-secret"})
    _, output = await world.run(sandbox, process)
    assert sorted(output.split()) == ["A=1", "HOME=/", "HOSTNAME=h", "PATH=/bin", "TOKEN=[redacted]"]


async def test_a_replica_ends_with_everything_it_started(world: World) -> None:
    sandbox = await world.create()
    await world.run(sandbox, world.process("sh", "-c", "sleep 600 & sleep 600 & exit 0"))
    assert (await sandbox.stats()).replicas == ()
    exited, output = await world.run(sandbox, world.process("sh", "-c", "ps -e -o args | grep -c '[s]leep 600'; true"))
    assert exited.exit_code == 0
    assert output.split()[-1] == "0"


async def test_replicas_run_side_by_side_and_may_start_again(world: World) -> None:
    sandbox = await world.create()
    for replica in range(3):
        await sandbox.start(world.python(SLEEP, component="simulator", replica=replica))
    stats = await sandbox.stats()
    assert sorted(found.replica for found in stats.replicas) == [0, 1, 2]
    await sandbox.signal("simulator", 1, signal.SIGKILL)
    exited = await exit_of(sandbox, "simulator", 1)
    assert exited.signal == signal.SIGKILL
    assert not exited.oom
    started = await sandbox.start(world.python(SLEEP, component="simulator", replica=1))
    assert started.pid != next(found.pid for found in stats.replicas if found.replica == 1)


async def test_no_replica_has_a_descriptor_of_another_or_of_who_started_it(world: World) -> None:
    if not world.isolated:
        pytest.skip("what is not isolated sees what its user sees")
    sandbox = await world.create()
    code = "import os\nhas = []\nfor number in range(3, 256):\n    try:\n        os.fstat(number)\n"
    code += "        has.append(os.readlink(f'/proc/self/fd/{number}'))\n    except OSError:\n        continue\n"
    code += "print('has', has, flush=True)\nimport time\ntime.sleep(600)"
    for number in range(3):  # those before it run on
        await sandbox.start(world.python(code, replica=number))
        assert await wait_output(sandbox, "\n", replica=number) == "has []\n"


async def test_stop_lets_the_polite_end_and_kills_the_deaf(world: World) -> None:
    sandbox = await world.create()
    await sandbox.start(world.python(POLITE, component="polite"))
    await sandbox.start(world.python(DEAF, component="deaf"))
    await wait_output(sandbox, "up", "polite")
    await wait_output(sandbox, "up", "deaf")
    # A guest behind an engine is signalled by a program that enters it, which takes longer on a busy machine.
    grace_seconds = 6 if world.name == "docker-guarded" else 2
    exits = {exited.component: exited for exited in await sandbox.stop(grace_seconds)}
    assert (exits["polite"].exit_code, exits["polite"].stopping) == (7, True)
    assert (exits["deaf"].signal, exits["deaf"].stopping, exits["deaf"].oom) == (signal.SIGKILL, True, False)
    with pytest.raises(InfrastructureError):
        await sandbox.start(world.python(SLEEP))


async def test_stop_is_idempotent_and_a_shorter_grace_wins(world: World) -> None:
    sandbox = await world.create()
    await sandbox.start(world.python(DEAF))
    await wait_output(sandbox, "up\n")
    async with asyncio.TaskGroup() as group:
        patient = group.create_task(sandbox.stop(3600))
        await asyncio.sleep(0.05)
        impatient = group.create_task(sandbox.stop(0))
    assert patient.result() == impatient.result() == await sandbox.stop(0)


async def test_only_the_component_over_its_memory_is_killed(world: World) -> None:
    require_limits(world)
    sandbox = await world.create()
    await sandbox.start(world.python(SLEEP, component="bystander"))
    hungry = "import time\ntime.sleep(0.2)\nheld = []\nwhile True: held.append(bytearray(b'x' * (4 << 20)))"
    exited, _ = await world.run(sandbox, world.python(hungry, component="hungry"))
    assert (exited.signal, exited.exit_code, exited.oom) == (signal.SIGKILL, None, True)
    assert [found.component for found in (await sandbox.stats()).replicas] == ["bystander"]


async def test_a_replica_dies_whole_when_its_child_runs_out_of_memory(world: World) -> None:
    require_limits(world)
    sandbox = await world.create()
    parent = (
        "import subprocess, sys, time\n"
        "subprocess.run([sys.executable, '-I', '-S', '-c', \"h=[]\\nwhile True: h.append(b'x' * (4 << 20))\"])\n"
        "time.sleep(600)"
    )
    exited, _ = await world.run(sandbox, world.python(parent))
    assert (exited.signal, exited.oom) == (signal.SIGKILL, True)


async def test_a_fork_bomb_is_stopped_by_its_limit(world: World) -> None:
    require_limits(world)
    sandbox = await world.create()
    bomb = (
        "import os, time\n"
        "made = 0\n"
        "try:\n"
        "    while made < 500:\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(600)\n"
        "        made += 1\n"
        "except OSError as error:\n"
        "    print('stopped after', made, error.errno)\n"
    )
    limits = Limits(cpu_millis=1000, memory_mib=256, pids=16)
    exited, output = await world.run(sandbox, world.python(bomb, limits=limits))
    assert exited.exit_code == 0
    assert output == "stopped after 15 11\n"


async def test_resize_shows_in_the_kernel_and_in_behaviour(world: World) -> None:
    require_limits(world)
    sandbox = await world.create()
    grower = "import sys, time\nprint('up')\nheld = b'x' * (90 << 20)\nprint('grown')\ntime.sleep(600)\n"
    start = Limits(cpu_millis=100, memory_mib=128, pids=32)
    await sandbox.start(world.python(grower, limits=start))
    await wait_output(sandbox, "grown")
    with pytest.raises(ResizeRefusedError, match="in use"):
        await sandbox.resize("main", 0, Limits(cpu_millis=50, memory_mib=32, pids=32))
    assert (await sandbox.stats()).replicas[0].limits == start
    wanted = Limits(cpu_millis=1500, memory_mib=512, pids=32 if world.name == "docker-guarded" else 48)
    assert await sandbox.resize("main", 0, wanted) == wanted
    assert (await sandbox.stats()).replicas[0].limits == wanted
    less = Limits(cpu_millis=400, memory_mib=256, pids=wanted.pids)
    assert await sandbox.resize("main", 0, less) == less


async def test_more_processes_are_let_in_by_a_resize(world: World) -> None:
    require_limits(world)
    sandbox = await world.create()
    bomb = (
        "import os, signal, sys, time\n"
        "def grow(*_):\n"
        "    made = 0\n"
        "    try:\n"
        "        while made < 200:\n"
        "            if os.fork() == 0: time.sleep(600)\n"
        "            made += 1\n"
        "    except OSError: print('made', made)\n"
        "signal.signal(signal.SIGUSR1, grow)\n"
        "print('up')\n"
        "while True: time.sleep(1)\n"
    )
    before = Limits(cpu_millis=1000, memory_mib=256, pids=16)
    after = Limits(cpu_millis=1000, memory_mib=256, pids=24)
    await sandbox.start(world.python(bomb, limits=before))
    await wait_output(sandbox, "up")
    if world.name == "docker-guarded":
        with pytest.raises(ResizeRefusedError, match="keeps its 16 processes"):
            await sandbox.resize("main", 0, after)
        return
    assert await sandbox.resize("main", 0, after) == after
    await sandbox.signal("main", 0, signal.SIGUSR1)
    await wait_output(sandbox, "made 23\n")


async def test_more_cpu_is_more_work(world: World) -> None:
    require_limits(world)
    sandbox = await world.create()
    busy = "while True: pass"
    await sandbox.start(world.python(busy, limits=Limits(cpu_millis=50, memory_mib=64, pids=8)))

    async def share() -> float:
        """CPU time per wall time, from the sandbox's own counters."""
        before = await sandbox.stats()
        await asyncio.sleep(1)
        after = await sandbox.stats()
        return (after.replicas[0].cpu_usec - before.replicas[0].cpu_usec) * 1000 / (after.at_ns - before.at_ns)

    before = await share()
    assert before < 0.15
    await sandbox.resize("main", 0, Limits(cpu_millis=1000, memory_mib=64, pids=8))
    assert await share() > 2 * before


async def test_memory_given_back_above_the_working_set(world: World) -> None:
    require_limits(world)
    sandbox = await world.create()
    shrinker = (
        "import sys, time, signal\n"
        "held = [b'x' * (80 << 20)]\n"
        "signal.signal(signal.SIGUSR1, lambda *a: (held.clear(), print('freed')))\n"
        "print('grown')\n"
        "while True: time.sleep(1)\n"
    )
    await sandbox.start(world.python(shrinker))
    await wait_output(sandbox, "grown")
    await sandbox.signal("main", 0, signal.SIGUSR1)
    await wait_output(sandbox, "freed")
    seen = await sandbox.resize("main", 0, Limits(cpu_millis=1000, memory_mib=48, pids=64))
    assert seen.memory_mib == 48


async def test_a_frozen_sandbox_does_nothing_until_thawed(world: World) -> None:
    require_limits(world)
    sandbox = await world.create()
    await sandbox.start(world.python("n = 0\nwhile True: n += 1"))
    await sandbox.freeze()
    before = await sandbox.stats()
    await asyncio.sleep(0.3)
    after = await sandbox.stats()
    assert before.frozen
    assert after.replicas[0].cpu_usec == before.replicas[0].cpu_usec
    with pytest.raises(RequestRefusedError, match="frozen"):
        await sandbox.start(world.python(SLEEP, replica=1))
    await sandbox.thaw()
    assert not (await sandbox.stats()).frozen
    await sandbox.freeze()
    exits = await sandbox.stop(0)
    assert exits[0].signal is not None


async def test_logs_are_bounded_and_say_so(world: World) -> None:
    sandbox = await world.create(log_bytes_max=64 * 1024)
    code = "for n in range(20000): print(f'line {n:08d}')"
    await world.run(sandbox, world.python(code))
    output = await output_of(sandbox)
    assert output.startswith("line 00000000\n")
    assert output.endswith("line 00019999\n")
    assert "bytes of output were not kept]" in output
    assert sum(entry.stat().st_size for entry in os.scandir(world.spec().log_dir)) <= 64 * 1024
    tail = await sandbox.logs("main", 0, offset=-14)
    assert tail.data == b"line 00019999\n"


async def test_secrets_are_redacted_and_never_on_disk_or_in_argv(world: World) -> None:
    secret, other = "s3cr3t-value-of-the-job", "t0ken-in-the-spec"
    sandbox = await world.create(redact=(other,))
    code = (
        "import os, sys, time\n"
        "value = os.environ['API_KEY']\n"
        "print(len(value))\n"
        "for part in (value[:5], value[5:], '\\n'):\n"
        "    sys.stdout.write(part); sys.stdout.flush(); time.sleep(0.1)\n"
        "print('t0ken-in' + '-the-spec')\n"
        "print('shown')\n"
        "time.sleep(600)\n"
    )
    await sandbox.start(world.python(code, secret_env={"API_KEY": secret}))
    output = await wait_output(sandbox, "shown")
    assert output.splitlines()[:3] == [str(len(secret)), "[redacted]", "[redacted]"]
    for value in (secret, other):
        assert files_holding(value, world.settings.sandboxes_dir) == []
        assert files_holding(value, world.spec().log_dir) == []
        assert commands_holding(value) == []


def files_holding(value: str, place: str) -> list[Path]:
    files = [path for path in Path(place).rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    return [path for path in files if value.encode() in path.read_bytes()]


def commands_holding(value: str) -> list[str]:
    """Command lines of other processes that show `value`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if value.encode() in command:
                found.append(entry.name)
    return found


async def test_mounts_appear_where_the_backend_says(world: World) -> None:
    inputs, outputs = world.directory / "in", world.directory / "out"
    inputs.mkdir()
    outputs.mkdir()
    (inputs / "data").write_text("given")
    workdir = world.directory / "upload"
    (workdir / "package").mkdir(parents=True)
    (workdir / "package" / "module.py").write_text("value = 1\n")
    mounts = (
        Mount(source=str(inputs), target="/inputs/set"),
        Mount(source=str(outputs), target="/outputs/run", writable=True, take_ownership=True),
    )
    spec = world.spec(mounts=mounts, workdir=str(workdir))
    sandbox = await world.backend.create(spec)
    code = (
        f"data = open({world.backend.path_inside(spec, '/inputs/set/data')!r}).read()\n"
        f"open({world.backend.path_inside(spec, '/outputs/run/result')!r}, 'w').write(data + ' back')\n"
        "open('package/module.py', 'a').write('value = 2\\n')\n"
        "open('package/new.py', 'w').write('')\n"
        f"open({world.backend.path_inside(spec, '/home/job/note')!r}, 'w').write('')\n"
        f"open({world.backend.path_inside(spec, '/var/cache/job/note')!r}, 'w').write('')\n"
        f"open({world.backend.path_inside(spec, '/tmp/note')!r}, 'w').write('')\n"
        "print(open('package/module.py').read())\n"
    )
    exited, output = await world.run(sandbox, world.python(code))
    assert (exited.exit_code, output) == (0, "value = 1\nvalue = 2\n\n")
    assert (outputs / "result").read_text() == "given back"
    assert (workdir / "package" / "module.py").read_text() == "value = 1\n"
    assert not (workdir / "package" / "new.py").exists()


async def test_a_missing_source_is_refused_and_leaves_nothing(cell: World) -> None:
    with pytest.raises(RequestRefusedError, match="does not exist"):
        await cell.create(mounts=(Mount(source="/no/such/place", target="/inputs/x"),))
    assert await cell.backend.list() == ()
    assert left_over(cell) == []


async def test_destroy_is_idempotent_and_spares_the_logs(world: World) -> None:
    sandbox = await world.create()
    await sandbox.start(world.python(DEAF))
    await wait_output(sandbox, "up\n")
    await sandbox.destroy()
    await sandbox.destroy()
    assert await output_of(sandbox) == "up\n"
    assert left_over(world) == []
    assert await world.backend.list() == ()


async def test_python_is_the_one_of_the_image(world: World) -> None:
    sandbox = await world.create()
    exited, output = await world.run(
        sandbox, world.process(PYTHON, "-c", "import sys, json, ctypes; print(sys.prefix)")
    )
    assert exited.exit_code == 0, output


async def test_the_agents_socket_is_reached(world: World) -> None:
    place = world.directory / "agent"
    place.mkdir()
    heard: asyncio.Queue[bytes] = asyncio.Queue(1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard.put(await reader.readline())
        writer.write(b"answer\n")
        writer.close()

    server = await asyncio.start_unix_server(serve, place / "agent.sock")
    if (uid := world.backend.host_uid(0)) is not None:
        os.chown(place / "agent.sock", uid, uid)
    os.chmod(place / "agent.sock", 0o600)
    try:
        spec = world.spec(mounts=(Mount(source=str(place), target="/run/tidegate/agent"),))
        sandbox = await world.backend.create(spec)
        code = (
            "import socket\n"
            "asking = socket.socket(socket.AF_UNIX)\n"
            f"asking.connect({world.backend.path_inside(spec, '/run/tidegate/agent/agent.sock')!r})\n"
            "asking.sendall(b'question\\n')\n"
            "print(asking.recv(64).decode(), end='')\n"
        )
        exited, output = await world.run(sandbox, world.python(code))
        assert (exited.exit_code, output) == (0, "answer\n")
        assert heard.get_nowait() == b"question\n"
    finally:
        server.close()
