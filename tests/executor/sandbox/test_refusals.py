"""What the filter denies a replica is told: which call, how often, by whom; and who makes many is held up."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from tidegate_executor import refused_calls
from tidegate_executor.sandbox import seccomp
from tidegate_executor.sandbox.base import CallRefused, Limits, ReplicaExited, Sandbox, SandboxEnded, SandboxReady
from tidegate_executor.sandbox.shim.guest_trace import LOST, GuestRefusals
from tidegate_executor.sandbox.shim.processes import descendants
from tidegate_executor.sandbox.shim.refusals import PER_SECOND_MAX
from tidegate_executor.sandbox.state import StateDirectory

from tests.executor.sandbox.conftest import World, open_world, wait_output

LIMITS = Limits(cpu_millis=2000, memory_mib=256, pids=32)
TRIES = """
import ctypes, socket, threading
libc = ctypes.CDLL(None, use_errno=True)
def tries(times):
    for _ in range(times):
        ctypes.set_errno(0)
        assert libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == -1 and ctypes.get_errno() == 1
def no_socket(family, kind):
    try:
        socket.socket(family, kind).close()
    except OSError as error:
        return error.errno
print(no_socket(socket.AF_INET, socket.SOCK_RAW), no_socket(socket.AF_PACKET, socket.SOCK_RAW), flush=True)
threads = [threading.Thread(target=tries, args=(TIMES,)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("all refused")
"""


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[World]:
    opened = await open_world("bwrap", tmp_path)
    yield opened
    await opened.backend.sweep(set())
    await opened.backend.release()


@pytest.fixture
async def guest(tmp_path: Path) -> AsyncIterator[World]:
    opened = await open_world("gvisor", tmp_path)
    yield opened
    await opened.backend.sweep(set())
    await opened.backend.release()


async def refusals(sandbox: Sandbox, ends: int = 1) -> list[CallRefused]:
    """All there were until so many replicas had ended."""
    found = []
    async for recorded in sandbox.events():
        if isinstance(recorded.event, CallRefused):
            found.append(recorded.event)
        ends -= isinstance(recorded.event, ReplicaExited)
        if not ends:
            break
    return found


def bubblewrap_below(shim: int) -> int:
    (found,) = [pid for pid in descendants(shim) if "/bwrap\0" in Path(f"/proc/{pid}/cmdline").read_text()]
    return found


async def test_each_call_is_told_at_once_and_all_are_counted(told: World) -> None:
    sandbox = await told.create()
    exited, output = await told.run(sandbox, told.python(TRIES.replace("TIMES", "50"), limits=LIMITS))
    assert (exited.exit_code, output) == (0, "1 97\nall refused\n")
    found = await refusals(sandbox)
    assert {each.call for each in found} == {"socket(raw)", "socket(17)", "mount"}
    first = next(each for each in found if each.call == "mount")
    assert (first.times, first.component, first.replica) == (1, "main", 0)
    assert first.command.startswith("python")
    assert sum(each.times for each in found if each.call == "mount") == 200


async def test_a_guest_tells_what_its_kernel_refuses_and_is_never_held_up(guest: World) -> None:
    sandbox = await guest.create()
    for number in range(2):
        code = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nfor _ in range(20000):\n"
        code += "    assert libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == -1 and ctypes.get_errno() == 1\n"
        began = time.monotonic()
        exited, output = await guest.run(sandbox, guest.python(code, limits=LIMITS, replica=number))
        assert (exited.exit_code, output) == (0, "")
        assert time.monotonic() - began < 20000 / PER_SECOND_MAX / 2
    found = await refusals(sandbox, ends=2)
    for number in range(2):
        own = [each for each in found if each.replica == number]
        assert own[0] == CallRefused(at_ns=own[0].at_ns, component="main", replica=number, call="mount", times=1)
        assert {each.call for each in own} <= {"mount", LOST}
        assert sum(each.times for each in own) <= 20000 + 1


def test_what_is_told_in_a_packet() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    telling = GuestRefusals(ours)
    number = seccomp.ARCHITECTURES[os.uname().machine].denied["bpf"]
    assert number >= 128
    call = bytes([0x20, number & 0x7F | 0x80, number >> 7])
    for code in (1, 22):
        theirs.send(
            struct.pack("<HHI", 8, 6, 3) + bytes([0x12, 2, 0x10, code]) + call + bytes([0x28, 5, 0x4D, 1, 2, 3, 4])
        )
    theirs.send(struct.pack("<HHI", 8, 6, 7) + bytes([0x12, 2, 0x10, 13]) + call)
    theirs.send(struct.pack("<HHI", 8, 2, 7) + bytes([0x12, 200, 0x10, 13]) + call)
    theirs.send(struct.pack("<HHI", 8, 6, 7) + b"\xff\xff\xff")
    theirs.send(b"\x08\x00")
    theirs.send(struct.pack("<HHI", 8, 6, 7) + bytes([0x12, 2, 0x10, 13]) + b"\x20\x8f\x4e")  # a call nobody asked for
    assert telling.answer(1.0) == [("bpf", 1, 0, "")]
    theirs.close()
    assert telling.rest() == [("bpf", 1, 0, ""), (LOST, 7, 0, "")]
    telling.close()


async def test_what_was_not_told_yet_is_told_when_the_sandbox_collapses(told: World) -> None:
    sandbox = await told.create()
    code = TRIES.replace("TIMES", "10") + "import time\ntime.sleep(600)"
    await sandbox.start(told.python(code, limits=LIMITS))
    await wait_output(sandbox, "all refused")
    state = StateDirectory(told.settings.sandboxes_dir, sandbox.id)
    shim = state.shim()
    assert shim is not None
    os.kill(bubblewrap_below(shim.pid), signal.SIGKILL)
    async for recorded in sandbox.events():
        if isinstance(recorded.event, SandboxEnded):
            break
    found = [each.event for each in state.events() if isinstance(each.event, CallRefused)]
    assert sum(each.times for each in found) == 42


async def test_a_second_replica_is_asked_for_by_itself(told: World) -> None:
    sandbox = await told.create()
    for number in range(2):
        code = TRIES.replace("TIMES", "3") + "import time\ntime.sleep(600)"
        await sandbox.start(told.python(code, limits=LIMITS, replica=number))
    deadline = time.monotonic() + 20
    counted: list[int] = []
    while counted != [14, 14] and time.monotonic() < deadline:
        counted = [each.calls_refused for each in (await sandbox.stats()).replicas]
    assert counted == [14, 14]


async def test_who_makes_many_is_held_up_and_others_are_served(told: World) -> None:
    sandbox = await told.create()
    times = 3 * PER_SECOND_MAX // 4
    began = time.monotonic()
    await sandbox.start(told.python(TRIES.replace("TIMES", str(times)), limits=LIMITS))
    asked = 0.0
    for _ in range(20):
        before = time.monotonic()
        await sandbox.stats()
        asked = max(asked, time.monotonic() - before)
    found = await refusals(sandbox)
    took = time.monotonic() - began
    assert sum(each.times for each in found if each.call == "mount") == 4 * times
    assert took > 1.9, "so many are answered in no less than three seconds that were begun"
    assert asked < 1.0
    assert len(found) < 12, "what is told does not grow with what is tried"


def test_the_agent_logs_it_with_whose_it_is() -> None:
    event = CallRefused(at_ns=1, component="main", replica=0, call="mount", times=3, pid=77, command="sh")
    with structlog.testing.capture_logs() as logs:
        log = structlog.get_logger().bind(job="j-1")
        refused_calls.tell(log, event, "trusted")
        refused_calls.tell(log, SandboxReady(at_ns=1), "trusted")
    refused = {
        "event": "sandbox.refused", "log_level": "warning", "job": "j-1", "isolation": "trusted", "component": "main",
        "replica": 0, "call": "mount", "times": 3, "pid": 77, "command": "sh",
    }  # fmt: skip
    assert logs[0] == refused
    assert [each["log_level"] for each in logs[1:]] == ["debug"]


async def test_a_burst_is_told_of_soon_though_no_more_comes(told: World) -> None:
    sandbox = await told.create()
    code = TRIES.replace("TIMES", "10") + "import time\ntime.sleep(600)"
    await sandbox.start(told.python(code, limits=LIMITS))
    times = 0
    async with asyncio.timeout(20):
        async for recorded in sandbox.events():
            if isinstance(recorded.event, CallRefused) and recorded.event.call == "mount":
                assert recorded.event.command.startswith("python")
                times += recorded.event.times
            if times == 40:
                break
    assert (await sandbox.stats()).replicas, "it runs still"


async def test_replicas_of_one_sandbox_share_what_is_answered_in_a_second(told: World) -> None:
    sandbox = await told.create()
    each = PER_SECOND_MAX // 4
    began = time.monotonic()
    for number in range(3):
        code = TRIES.replace("TIMES", str(each))
        await sandbox.start(told.python(code, limits=LIMITS, replica=number))
    found = await refusals(sandbox, ends=3)
    assert sum(one.times for one in found if one.call == "mount") == 3 * 4 * each
    assert time.monotonic() - began > 1.0, "three thousand are answered in no less than three seconds that were begun"
