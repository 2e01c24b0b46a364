"""gVisor's runtime as commands: what is run, with which specification, and what its answers mean.

Nothing here starts a process. Specifications hold secrets: they must only be put where no disk is.
"""

from __future__ import annotations

import json
from typing import Any

from tidegate_executor.sandbox.shim.layout import HOLD_PATH, INSIDE_ID

OCI_VERSION = "1.0.2"
HOLD_ID = 65534  # the user that process 1 of each guest runs as: the job's may not signal it
TOLD_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID")
CAPABILITY_SETS = ("bounding", "effective", "permitted", "inheritable", "ambient")
SIGNALS_MAX = 64
EXIT_BY_SIGNAL = 128

# As runsc words it when the command is at fault and not the node.
JOB_ERRORS = (
    "no such file or directory",
    "permission denied",
    "exec format error",
    "is a directory",
    "not a directory",
    "error finding executable",
    "executable file not found",
    "failed to load",
    "argument list too long",
)


def options(root: str, log: str) -> list[str]:
    """Options of every command. The network is the namespace it is started in, which holds nothing but loopback."""
    return [
        f"--root={root}", "--platform=systrap", "--network=host", "--ignore-cgroups", "--overlay2=none",
        "--host-uds=all", "--file-access-mounts=shared", "--oci-seccomp=false", f"--log={log}", "--log-format=json",
    ]  # fmt: skip


def specification(rootfs: str, hostname: str, mounts: list[dict[str, Any]], ids: tuple[int, int]) -> dict[str, Any]:
    """A guest that holds; `ids` are the job's uid on the host and how many processes it may have."""
    return _guest(rootfs, hostname, mounts, ids) | {"process": _first(_user(HOLD_ID), HOLD_PATH, ids[1])}


def specification_ahead(rootfs: str, mounts: list[dict[str, Any]], ids: tuple[int, int], told: str) -> dict[str, Any]:
    """One whose process 1 is `told` what is missing (see `told.py`) and holds then, as the same user without rights."""
    sets = {name: list(TOLD_CAPABILITIES) for name in ("bounding", "effective", "permitted")}
    user = {**_user(0), "capabilities": {name: sets.get(name, []) for name in CAPABILITY_SETS}}
    return _guest(rootfs, "ready", mounts, ids) | {"process": _first(user, told, ids[1])}


def _first(user: dict[str, Any], program: str, pids: int) -> dict[str, Any]:
    limit = {"type": "RLIMIT_NPROC", "hard": pids, "soft": pids}
    return {**user, "args": [program], "env": [], "cwd": "/", "rlimits": [limit]}


def _guest(rootfs: str, hostname: str, mounts: list[dict[str, Any]], ids: tuple[int, int]) -> dict[str, Any]:
    uid = ids[0]
    mapped = [
        {"containerID": 0, "hostID": 0, "size": 1},
        {"containerID": INSIDE_ID, "hostID": uid, "size": 1},
        {"containerID": HOLD_ID, "hostID": HOLD_ID, "size": 1},
    ]
    return {
        "ociVersion": OCI_VERSION,
        "hostname": hostname,
        "root": {"path": rootfs},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
            *mounts,
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "user")],
            "uidMappings": mapped,
            "gidMappings": mapped,
        },
    }


def process(argv: list[str], env: dict[str, str], cwd: str) -> bytes:
    """The job's command, for `exec --process`."""
    variables = [f"{name}={value}" for name, value in env.items()]
    return json.dumps({**_user(INSIDE_ID), "args": argv, "env": variables, "cwd": cwd}).encode()


def privileged(argv: list[str], capability: str) -> bytes:
    """A command of ours inside, as root with one capability and nothing of the job's."""
    user = {**_user(0), "capabilities": {name: [capability] for name in CAPABILITY_SETS}}
    return json.dumps({**user, "args": argv, "env": [], "cwd": "/"}).encode()


def _user(uid: int) -> dict[str, Any]:
    return {
        "user": {"uid": uid, "gid": uid},
        "noNewPrivileges": True,
        "capabilities": {name: [] for name in CAPABILITY_SETS},
    }


def complaint(log: str) -> str:
    """The last error of a log in runsc's JSON format."""
    found = ""
    for line in log.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("level") in ("error", "fatal", "warning"):
            found = str(entry.get("msg", "")) if entry["level"] != "warning" or not found else found
    return found


def is_the_jobs(text: str) -> bool:
    """Whether a command could not be started because of what it is."""
    return any(words in text for words in JOB_ERRORS)


def ending(code: int) -> int:
    """An exit code as runsc passes it on; negative for a signal. It tells them by number only: 128 + signal."""
    number = code - EXIT_BY_SIGNAL
    return -number if 0 < number <= SIGNALS_MAX else code
