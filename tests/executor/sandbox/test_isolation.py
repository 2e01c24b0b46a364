"""What level `trusted` keeps a job from, tried from inside."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from tidegate_executor.sandbox.base import Limits, Mount

from tests.executor.sandbox.conftest import World, exit_of, wait_output

SLEEP = "import time\nprint('up')\ntime.sleep(600)"

REACH = """
import errno, socket, sys
for family, address in ((socket.AF_INET, ('127.0.0.1', PORT)), (socket.AF_INET, ('192.0.2.1', 53)),
                        (socket.AF_INET, ('169.254.169.254', 80)), (socket.AF_INET6, ('2001:db8::1', 80))):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(5)
        try:
            s.connect(address)
            print('connected')
        except OSError as error:
            print(errno.errorcode.get(error.errno, error))
with socket.create_server(('127.0.0.1', 0)) as own:
    socket.create_connection(own.getsockname()).close()
    print('own loopback works')
for family in (socket.AF_PACKET, 40, 38):
    try:
        socket.socket(family, socket.SOCK_RAW if family == socket.AF_PACKET else socket.SOCK_STREAM)
        print('opened')
    except OSError as error:
        print(errno.errorcode[error.errno])
"""

CALLS = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, *arguments):
    ctypes.set_errno(0)
    result = getattr(libc, name)(*arguments) if isinstance(name, str) else libc.syscall(name, *arguments)
    print(name, 'allowed' if result >= 0 else errno.errorcode[ctypes.get_errno()])
attempt('mount', b'none', b'/tmp', b'tmpfs', 0, None)
attempt('umount2', b'/tmp', 2)
attempt('unshare', 0x10000000)
attempt('unshare', 0x20000)
attempt('setns', 0, 0)
attempt('ptrace', 16, 1, 0, 0)
attempt('chroot', b'/tmp')
attempt('sethostname', b'x', 1)
attempt('process_vm_readv', 1, 0, 0, 0, 0, 0)
for number in (425, 428, 435, 438, 442):
    attempt(number, 0, 0, 0, 0)
attempt(ctypes.c_long(CLONE), ctypes.c_ulong(0x10000000 | 17), 0, 0, 0, 0)
"""

PRIVILEGES = """
import os
wanted = ('Uid', 'Gid', 'Groups', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp')
for line in open('/proc/self/status'):
    name, _, value = line.partition(':')
    if name in wanted:
        print(name, *value.split())
print('descriptors', sorted(int(n) for n in os.listdir('/proc/self/fd'))[:3], len(os.listdir('/proc/self/fd')))
print('hostname', os.uname().nodename)
print('processes', sum(name.isdigit() for name in os.listdir('/proc')))
"""

HOLDER = """
import os, signal
os.kill(1, signal.SIGKILL); os.kill(1, signal.SIGTERM); os.kill(1, signal.SIGSTOP)
for path in ('/proc/1/mem', '/proc/1/environ', '/proc/1/fd/1', '/proc/1/root/etc/passwd'):
    try:
        os.open(path, os.O_RDONLY)
        print(path, 'opened')
    except PermissionError:
        print(path, 'denied')
print(open('/proc/1/comm').read().strip())
"""

WRITES = """
import errno, os
for path in ('/usr/bin/planted', '/usr/bin/env', '/etc/passwd', '/etc/planted', '/planted', '/run/planted',
             '/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/run/tidegate/hold', '/inputs/set/data'):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        print(path, 'written')
    except OSError as error:
        print(path, errno.errorcode[error.errno])
"""


async def test_no_network_but_its_own_loopback(cell: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as host:
        port = host.getsockname()[1]
        sandbox = await cell.create()
        exited, output = await cell.run(sandbox, cell.python(REACH.replace("PORT", str(port))))
    assert exited.exit_code == 0, output
    lines = output.split("\n")
    assert lines[0] == "ECONNREFUSED"
    assert set(lines[1:4]) == {"ENETUNREACH"}
    assert lines[4] == "own loopback works"
    assert set(lines[5:8]) == {"EAFNOSUPPORT"}


async def test_dangerous_system_calls_are_denied(cell: World) -> None:
    clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    sandbox = await cell.create()
    exited, output = await cell.run(sandbox, cell.python(CALLS.replace("CLONE", str(clone))))
    assert exited.exit_code == 0, output
    verdicts = [line.rsplit(" ", 1) for line in output.splitlines()]
    assert len(verdicts) == 15
    for name, verdict in verdicts:
        assert verdict == ("ENOSYS" if name == "435" else "EPERM"), name


async def test_no_privilege_no_descriptor_no_foreign_process(cell: World) -> None:
    sandbox = await cell.create()
    _, output = await cell.run(sandbox, cell.python(PRIVILEGES))
    assert output.splitlines() == [
        "Uid 1000 1000 1000 1000",
        "Gid 1000 1000 1000 1000",
        "Groups",
        *[f"{name} 0000000000000000" for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
        "NoNewPrivs 1",
        "Seccomp 2",
        "descriptors [0, 1, 2] 4",  # the fourth is the listing itself
        "hostname rank0",
        "processes 2",
    ]


async def test_process_one_can_be_neither_killed_nor_opened(cell: World) -> None:
    sandbox = await cell.create()
    exited, output = await cell.run(sandbox, cell.python(HOLDER))
    assert exited.exit_code == 0, output
    lines = output.splitlines()
    assert [line.split()[-1] for line in lines[:4]] == ["denied"] * 4
    assert lines[4] == "hold"


async def test_nothing_can_be_written_outside_the_overlay(cell: World) -> None:
    inputs = cell.directory / "in"
    inputs.mkdir(mode=0o777)
    (inputs / "data").write_text("given")
    (inputs / "data").chmod(0o666)
    before = {path: os.stat(path).st_mtime_ns for path in ("/usr/bin", "/usr/bin/env", "/etc/passwd", "/etc")}
    sandbox = await cell.create(mounts=(Mount(source=str(inputs), target="/inputs/set"),))
    _, output = await cell.run(sandbox, cell.python(WRITES))
    assert "written" not in output
    assert len(output.splitlines()) == 10
    assert {path: os.stat(path).st_mtime_ns for path in before} == before
    assert (inputs / "data").read_text() == "given"


async def test_another_jobs_files_do_not_exist_inside(cell: World) -> None:
    neighbour = await cell.create("other.1.0", uid_slot=1)
    code = "open('/workspace/private', 'w').write('canary-of-the-neighbour')\n" + SLEEP
    await neighbour.start(cell.python(code))
    await wait_output(neighbour, "up")
    places = [cell.settings.sandboxes_dir, str(cell.directory), "/root", "/home", "/var/lib", "/srv", "/mnt", "/boot"]
    look = f"""
import os
for place in {places!r}:
    found = os.listdir(place) if os.path.isdir(place) else []
    print(place, found)
for top, _, files in os.walk('/'):
    if not top.startswith(('/proc', '/sys', '/usr', {sys.base_prefix!r})) and 'private' in files:
        print('FOUND', top)
"""
    sandbox = await cell.create()
    exited, output = await cell.run(sandbox, cell.python(look))
    assert exited.exit_code == 0, output
    assert "FOUND" not in output
    assert "private" not in output
    assert "other.1.0" not in output


async def test_replicas_of_one_sandbox_share_it(cell: World) -> None:
    sandbox = await cell.create()
    serve = "import socket\ns = socket.create_server(('127.0.0.1', 7000))\nprint('up')\ns.accept()[0].send(b'hello')"
    await sandbox.start(cell.python(serve, component="server"))
    await wait_output(sandbox, "up", "server")
    call = "import socket\nprint(socket.create_connection(('127.0.0.1', 7000)).recv(9))"
    _, output = await cell.run(sandbox, cell.python(call))
    assert output == "b'hello'\n"
    assert (await exit_of(sandbox, "server")).exit_code == 0


async def test_limits_are_the_kernels_own(cell: World) -> None:
    sandbox = await cell.create()
    started = await sandbox.start(cell.python(SLEEP, limits=Limits(cpu_millis=250, memory_mib=96, pids=20)))
    assert kernel_limits(started.pid) == (250, 96 << 20, 20)
    await sandbox.resize("main", 0, Limits(cpu_millis=1250, memory_mib=192, pids=40))
    assert kernel_limits(started.pid) == (1250, 192 << 20, 40)


async def test_sandboxes_run_as_different_host_uids(cell: World) -> None:
    if os.geteuid() != 0:
        assert cell.backend.host_uid(3) is None
        return
    for slot in (3, 4):
        sandbox = await cell.create(f"job.{slot}.0", uid_slot=slot)
        started = await sandbox.start(cell.python(SLEEP))
        assert os.stat(f"/proc/{started.pid}").st_uid == cell.backend.host_uid(slot) == 700_000 + slot


async def test_the_sandboxs_own_group_cannot_be_left_by_a_double_fork(cell: World) -> None:
    sandbox = await cell.create()
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(600)\n"
    exited, _ = await cell.run(sandbox, cell.python(code))
    assert exited.exit_code == 0
    _, output = await cell.run(sandbox, cell.python("import os\nprint(sum(n.isdigit() for n in os.listdir('/proc')))"))
    assert output.split()[-1] == "2"
    await sandbox.signal("main", 0, signal.SIGTERM)  # of what ended already: no error


def kernel_limits(pid: int) -> tuple[int, int, int]:
    """CPU millis, memory bytes and pids of the group that the process really is in."""
    groups = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    if "memory" not in groups:
        top = Path("/sys/fs/cgroup") / groups[""].lstrip("/")
        quota, period = (top / "cpu.max").read_text().split()
        memory, pids = (int((top / name).read_text()) for name in ("memory.max", "pids.max"))
        return int(quota) * 1000 // int(period), memory, pids

    def number(controller: str, name: str) -> int:
        return int((Path("/sys/fs/cgroup") / controller / groups[controller].lstrip("/") / name).read_text())

    cpu = number("cpu", "cpu.cfs_quota_us") * 1000 // number("cpu", "cpu.cfs_period_us")
    return cpu, number("memory", "memory.limit_in_bytes"), number("pids", "pids.max")
