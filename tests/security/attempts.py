"""Run inside a sandbox: tries to get out, or at what is not its own. Standard library only; x86-64 and aarch64.

Argument: JSON with what the host put where. Prints a line of JSON per attempt: its name, and why it failed; or that it
did not. An attempt that gets what it wants returns; one that is refused raises OSError or Denied.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

HOST = json.loads(sys.argv[1])
X86 = os.uname().machine == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
ATTEMPTS: dict[str, Callable[[], Any]] = {}
CONNECT_SECONDS = 1.0
DESCRIPTORS_MAX = 256


def open_descriptors() -> list[int]:
    found = []
    for number in range(3, DESCRIPTORS_MAX):
        try:
            os.fstat(number)
        except OSError:
            continue
        found.append(number)
    return found


INHERITED = open_descriptors()


class Denied(Exception):
    """It was answered, but not with what was wanted."""


def attempt(function: Callable[[], Any]) -> Callable[[], Any]:
    ATTEMPTS[function.__name__] = function
    return function


def syscall(numbers: tuple[int, int], *arguments: Any) -> int:
    """A system call by its numbers on x86-64 and aarch64."""
    result = libc.syscall(numbers[0 if X86 else 1], *arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


def add_calls() -> None:
    """System calls that no job needs, each with arguments that would do something if it were allowed."""
    calls: dict[str, tuple[tuple[int, int], tuple[Any, ...]]] = {
        "mount_tmpfs": ((165, 40), (b"none", b"/tmp", b"tmpfs", 0, None)),
        "mount_bind": ((165, 40), (b"/", b"/workspace", None, 4096, None)),
        "mount_remount_writable": ((165, 40), (None, b"/usr", None, 32 | 4096, None)),
        "mount_cgroup": ((165, 40), (b"none", b"/tmp", b"cgroup", 0, b"memory")),
        "mount_proc": ((165, 40), (b"none", b"/tmp", b"proc", 0, None)),
        "umount_proc": ((166, 39), (b"/proc", 2)),
        "pivot_root": ((155, 41), (b"/workspace", b"/workspace")),
        "chroot": ((161, 51), (b"/workspace",)),
        "open_tree": ((428, 428), (-100, b"/", 1)),
        "fsopen": ((430, 430), (b"tmpfs", 0)),
        "mount_setattr": ((442, 442), (-100, b"/usr", 0, bytes(32), 32)),
        "ptrace_process_1": ((101, 117), (0x4206, 1, 0, 0)),
        "read_memory_of_process_1": ((310, 270), (1, bytes(16), 1, bytes(16), 1, 0)),
        "bpf": ((321, 280), (0, bytes(128), 128)),
        "perf_event_open": ((298, 241), (bytes(128), 0, -1, -1, 0)),
        "init_module": ((175, 105), (bytes(16), 16, b"")),
        "finit_module": ((313, 273), (0, b"", 0)),
        "delete_module": ((176, 106), (b"ext4", 0)),
        "kexec_load": ((246, 104), (0, 0, None, 0)),
        "swapon": ((167, 224), (b"/workspace/swap", 0)),
        "acct": ((163, 89), (b"/workspace/acct",)),
        "quotactl": ((179, 60), (0x800002 << 8, b"/dev/sda", 0, None)),
        "open_by_handle_at": ((304, 265), (0, bytes(64), 0)),
        "settimeofday": ((164, 170), (bytes(16), None)),
        "sethostname": ((170, 161), (b"owned", 5)),
        "setdomainname": ((171, 162), (b"owned", 5)),
        "reboot": ((169, 142), (0xFEE1DEAD, 672274793, 0, None)),
        "syslog_clear": ((103, 116), (5, None, 0)),
        "fanotify_init": ((300, 262), (0x4, 0)),
        "vhangup": ((153, 58), ()),
        "setns_of_process_1": ((308, 268), (-1, 0x20000)),
        "capset_all": ((126, 91), (b"\x22\x05\x08\x20" + bytes(4), b"\xff" * 24)),
        "setgroups_root": ((116, 159), (1, bytes(4))),
        "become_root": ((105, 146), (0,)),
        "realtime_priority": ((144, 119), (0, 1, b"\x32\x00\x00\x00")),
    }
    for name, (numbers, arguments) in calls.items():
        ATTEMPTS[name] = lambda numbers=numbers, arguments=arguments: syscall(numbers, *arguments)  # type: ignore[misc]


add_calls()


def read(path: str) -> None:
    with open(path, "rb") as reading:
        if not reading.read(1):
            raise Denied("it is empty")


def overwrite(path: str) -> None:
    with open(path, "r+b") as writing:
        writing.write(b"x")


def holds(path: str, text: str) -> bool:
    with open(path, "rb") as reading:
        return text.encode() in reading.read()


def add_files() -> None:
    """Files that must not open: to read, or to write."""
    reading = {
        "read_secret_of_the_executor": HOST["secret"],
        "read_file_of_another_job": HOST["neighbour_file"],
        "read_kernel_memory": "/proc/kcore",
        "read_shadow": "/etc/shadow",
        "read_memory_device": "/dev/mem",
        "read_kernel_log": "/dev/kmsg",
        "open_kvm": "/dev/kvm",
        "open_fuse": "/dev/fuse",
        "open_tun": "/dev/net/tun",
        "open_loop_control": "/dev/loop-control",
        "open_disk": "/dev/vda",
        "leave_by_process_1": f"/proc/1/root{HOST['secret']}",
        "read_environment_of_process_1": "/proc/1/environ",
        "read_engine_socket": "/var/run/docker.sock",
    }
    writing = {
        "write_core_pattern": "/proc/sys/kernel/core_pattern",
        "write_sysrq": "/proc/sysrq-trigger",
        "write_ip_forward": "/proc/sys/net/ipv4/ip_forward",
        "write_release_agent": "/sys/fs/cgroup/memory/release_agent",
        "write_cgroup_procs": "/sys/fs/cgroup/cgroup.procs",
        "write_uevent_helper": "/sys/kernel/uevent_helper",
        "write_lower_layer": "/usr/bin/env",
        "write_passwd": "/etc/passwd",
        "write_hosts": "/etc/hosts",
        "overwrite_process_1": "/run/tidegate/hold",
        "overwrite_shell": "/bin/sh",
        "write_read_only_mount": "/inputs/set/data",
    }
    for name, path in reading.items():
        ATTEMPTS[name] = lambda path=path: read(path)  # type: ignore[misc]
    for name, path in writing.items():
        ATTEMPTS[name] = lambda path=path: overwrite(path)  # type: ignore[misc]


add_files()


@attempt
def list_other_sandboxes() -> None:
    if not [name for name in os.listdir(HOST["sandboxes"]) if name != HOST["own"]]:
        raise Denied("nothing is there")


@attempt
def follow_a_link_out_of_a_writable_mount() -> None:
    os.symlink(HOST["secret"], "/outputs/run/link")
    read("/outputs/run/link")


@attempt
def find_a_process_of_the_host() -> None:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if holds(f"/proc/{name}/cmdline", HOST["backwards"][::-1]):
                return
        except OSError:
            continue
    raise Denied("none is seen")


@attempt
def read_the_environment_of_another_job() -> None:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if holds(f"/proc/{name}/environ", "NEIGHBOUR="):
                return
        except OSError:
            continue
    raise Denied("none is seen")


@attempt
def kill_process_1() -> None:
    os.kill(1, signal.SIGKILL)
    os.stat("/proc/1")
    raise Denied("it lives")


@attempt
def make_a_block_device() -> None:
    os.mknod("/workspace/disk", 0o060666, os.makedev(254, 0))
    read("/workspace/disk")


@attempt
def make_a_memory_device() -> None:
    os.mknod("/workspace/mem", 0o020666, os.makedev(1, 1))
    read("/workspace/mem")


@attempt
def run_a_setuid_program() -> None:
    seen = subprocess.run(["/opt/image/identity", "-u"], capture_output=True, text=True, check=False)
    if seen.stdout.strip() != "0":
        raise Denied(f"it ran as {seen.stdout.strip() or seen.stderr.strip()}")


@attempt
def make_a_setuid_program_for_root() -> None:
    with open("/outputs/run/shell", "w") as writing:
        writing.write("#!/bin/sh\n")
    os.chown("/outputs/run/shell", 0, 0)
    os.chmod("/outputs/run/shell", 0o4755)


@attempt
def lower_oom_score() -> None:
    with open("/proc/self/oom_score_adj", "w") as writing:
        writing.write("-1000")
    with open("/proc/self/oom_score_adj") as reading:
        if reading.read().strip() != "-1000":
            raise Denied("it was not taken")


@attempt
def raise_file_limit() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 22, 1 << 22))


@attempt
def inject_into_a_terminal() -> None:
    fcntl.ioctl(0, 0x5412, b"x")


@attempt
def use_an_inherited_descriptor() -> None:
    if not INHERITED:
        raise Denied("none is open")


def _socket(family: int, kind: int, protocol: int = 0) -> None:
    socket.socket(family, kind, protocol).close()


ATTEMPTS["raw_socket"] = lambda: _socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
ATTEMPTS["packet_socket"] = lambda: _socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300)
ATTEMPTS["vsock_to_the_host"] = lambda: socket.socket(40, socket.SOCK_STREAM).connect((2, 1024))


def _connect(family: int, address: Any, kind: int = socket.SOCK_STREAM) -> None:
    with socket.socket(family, kind) as trying:
        trying.settimeout(CONNECT_SECONDS)
        trying.connect(address)
        if kind == socket.SOCK_DGRAM:
            trying.send(b"\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x01\x00\x01")
            trying.recv(64)


ATTEMPTS["reach_the_host_by_loopback"] = lambda: _connect(socket.AF_INET, ("127.0.0.1", HOST["port"]))
ATTEMPTS["reach_the_host_by_its_address"] = lambda: _connect(socket.AF_INET, (HOST["address"], HOST["port"]))
ATTEMPTS["reach_the_host_by_ipv6"] = lambda: _connect(socket.AF_INET6, ("::ffff:127.0.0.1", HOST["port"]))
ATTEMPTS["reach_the_metadata_service"] = lambda: _connect(socket.AF_INET, ("169.254.169.254", 80))
ATTEMPTS["ask_dns"] = lambda: _connect(socket.AF_INET, ("8.8.8.8", 53), socket.SOCK_DGRAM)
ATTEMPTS["ask_dns_by_ipv6"] = lambda: _connect(socket.AF_INET6, ("2001:4860:4860::8888", 53), socket.SOCK_DGRAM)
ATTEMPTS["reach_an_abstract_socket_of_the_host"] = lambda: _connect(socket.AF_UNIX, "\0" + HOST["canary"])


@attempt
def gain_a_network_by_a_new_namespace() -> None:
    """A namespace of one's own may be had; an interface that leads out of it may not."""
    syscall((272, 97), 0x10000000 | 0x40000000)
    _connect(socket.AF_INET, (HOST["address"], HOST["port"]))


@attempt
def open_files_without_end() -> None:
    held = []
    try:
        for _ in range(1 << 17):
            held.append(os.open("/dev/null", os.O_RDONLY))
    finally:
        for descriptor in held:
            os.close(descriptor)


@attempt
def fork_without_end() -> None:
    children = []
    try:
        for _ in range(4096):
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(0)
            children.append(child)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)


def report(name: str, function: Callable[[], Any]) -> dict[str, str]:
    """Each in a process of its own, so that none spoils the next."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            function()
            text = "SUCCEEDED"
        except (OSError, ValueError, Denied, subprocess.SubprocessError) as error:
            text = f"denied: {error}"
        except BaseException as error:  # noqa: BLE001 - the report is the only way out of a forked child
            text = f"BROKEN: {error!r}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with open(read) as reading:
        text = reading.read()
    _, status = os.waitpid(child, 0)
    return {"attempt": name, "outcome": text or f"denied: killed by signal {status & 0x7F}"}


for each, function in list(ATTEMPTS.items()):
    if each in HOST["left_out"]:
        continue
    print(json.dumps(report(each, function)), flush=True)
