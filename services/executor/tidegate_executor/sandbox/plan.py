"""From a sandbox's specification to the list of mounts that the shim carries out (see `shim/layout.py`)."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from tidegate_executor.sandbox.base import RequestRefusedError, SandboxSpec
from tidegate_executor.sandbox.shim.layout import FILES_NAME, INSIDE_ID

PlanEntry = tuple[str, str, str]

MERGED_USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
CPU_TOPOLOGY = "/sys/devices/system/cpu"  # numerical libraries size their thread pools by it

# From the host: what dynamic linking, time zones and TLS need. Everything else in /etc is made up.
HOST_ETC_FILES = ("ld.so.cache", "ld.so.conf", "localtime", "timezone", "mime.types", "protocols", "services")
HOST_ETC_DIRECTORIES = ("ssl", "ca-certificates", "pki", "alternatives", "ld.so.conf.d")

ETC_FILES = {
    "passwd": (
        "root:x:0:0:root:/root:/usr/sbin/nologin\n"
        f"job:x:{INSIDE_ID}:{INSIDE_ID}:job:/home/job:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "group": f"root:x:0:\njob:x:{INSIDE_ID}:\nnogroup:x:65534:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    "resolv.conf": "",
    "hosts": "",  # each sandbox has its own mounted here
}


def build_etc(parent: Path) -> Path:
    """The /etc that every sandbox of this node shares, named by its content so that it never changes under one."""
    contents = {name: text.encode() for name, text in ETC_FILES.items()}
    for name in HOST_ETC_FILES:
        path = Path("/etc", name)
        if path.is_file():
            contents[name] = path.read_bytes()
    digest = hashlib.sha256()
    for name in sorted(contents):
        digest.update(f"{name}:{len(contents[name])}:".encode() + contents[name])
    final = parent / f"etc-{digest.hexdigest()[:16]}"
    if final.is_dir():
        if all((final / name).is_file() and (final / name).read_bytes() == text for name, text in contents.items()):
            return final
        shutil.rmtree(final)  # a power cut emptied it, so no sandbox that has it mounted lives
    building = parent / f"{final.name}.{os.getpid()}"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    for name, content in contents.items():
        (building / name).write_bytes(content)
        (building / name).chmod(0o644)
    for name in HOST_ETC_DIRECTORIES:
        (building / name).mkdir(mode=0o755)
    building.chmod(0o755)
    try:
        building.rename(final)
    except OSError:
        shutil.rmtree(building)  # another agent of this machine was faster
    return final


def mount_plan(spec: SandboxSpec, state_dir: Path, etc: Path) -> list[PlanEntry]:
    """Mounts in order. Refuses sources that do not exist and targets that would hide the sandbox's own."""
    plan: list[PlanEntry] = []
    for layer in sorted(spec.layers, key=lambda layer: layer.target):
        plan.append(("layer", layer.source, layer.target))
        if layer.target == "/usr":
            links = [name for name in MERGED_USR if Path(layer.source, name).is_dir()]
            plan += [("link", f"usr/{name}", f"/{name}") for name in links]
    plan.append(("read", os.path.realpath(etc), "/etc"))
    for name in HOST_ETC_DIRECTORIES:
        if Path("/etc", name).is_dir():
            plan.append(("read", os.path.realpath(f"/etc/{name}"), f"/etc/{name}"))
    if Path(CPU_TOPOLOGY).is_dir():
        plan.append(("read", os.path.realpath(CPU_TOPOLOGY), CPU_TOPOLOGY))
    if spec.workdir is not None:
        plan.append(("workspace", spec.workdir, "/workspace"))
    else:
        plan.append(("write", os.path.join(os.path.realpath(state_dir), FILES_NAME, "upper"), "/workspace"))
    for mount in spec.mounts:
        kind = "read" if not mount.writable else "take" if mount.take_ownership else "write"
        plan.append((kind, mount.source, mount.target))
    check_plan(plan, state_dir)
    return plan


def check_plan(plan: list[PlanEntry], state_dir: Path) -> None:
    reserved = ("/proc", "/dev", "/run/tidegate/hold")
    for kind, source, target in plan:
        if not target.startswith("/") or os.path.normpath(target) != target or target == "/":
            raise RequestRefusedError(f"mount target {target!r} refused; it must be absolute, normal and not /")
        if any(target == name or target.startswith(f"{name}/") for name in reserved):
            raise RequestRefusedError(f"mount target {target!r} refused; {', '.join(reserved)} are the sandbox's own")
        inside_state = source.startswith(f"{os.path.realpath(state_dir)}/")
        if kind != "link" and not inside_state and not os.path.exists(source):
            raise RequestRefusedError(f"mount source {source!r} for {target} does not exist")
