"""What the operator decides about sandboxes on this node."""

from __future__ import annotations

import sys
from typing import Literal

import msgspec

UID_BASE_DEFAULT = 700_000
UID_SLOTS_DEFAULT = 4096
DOCKER_SOCKET_DEFAULT = "/var/run/docker.sock"
RUNSC_DEFAULT = "runsc"


class SandboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`sandboxes_dir` holds one directory per sandbox; `cgroup_name` must differ between agents of one machine."""

    sandboxes_dir: str
    cgroup_name: str = "tidegate"
    cgroup_parent: str | None = None  # v2: an absolute, delegated directory; None: the agent's own cgroup
    uid_base: int = UID_BASE_DEFAULT
    uid_slots: int = UID_SLOTS_DEFAULT
    shim_python: str = sys.executable
    trusted_backend: Literal["bwrap", "docker"] = "bwrap"
    guarded_backend: Literal["gvisor", "docker"] = "gvisor"
    docker_socket: str = DOCKER_SOCKET_DEFAULT
    runsc: str = RUNSC_DEFAULT  # a path, or a name that is looked for on PATH
