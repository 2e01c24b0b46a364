"""From a sandbox's specification to the list of mounts that the shim carries out (see `shim/layout.py`)."""

from __future__ import annotations

import collections
import hashlib
import itertools
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from tidegate_executor.sandbox.base import Device, Layer, RequestRefusedError, SandboxSpec
from tidegate_executor.sandbox.places import check_places
from tidegate_executor.sandbox.shim.layout import BOUND, FILES_NAME, HOLD_PATH, INSIDE_ID, MOUNTED, STACKED_MAX

PlanEntry = tuple[str, str, str]
DEVICE_MODES = (stat.S_IFCHR, stat.S_IFBLK)

MERGED_USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
CPU_TOPOLOGY = "/sys/devices/system/cpu"  # numerical libraries size their thread pools by it

# From the host: what dynamic linking, time zones and TLS need. Everything else in /etc is made up.
HOST_ETC_FILES = ("ld.so.cache", "ld.so.conf", "localtime", "timezone", "mime.types", "protocols", "services")
HOST_ETC_DIRECTORIES = ("ssl", "ca-certificates", "pki", "alternatives", "ld.so.conf.d")

OWN_ETC_FILES = ("passwd", "group", "nsswitch.conf", "resolv.conf")
OWN_FILES = ("/etc/hosts", HOLD_PATH)
OWN_PLACES = (*MOUNTED, "/workspace", *OWN_FILES)

NOT_FROM_ROOT = {"proc", "dev", "sys", "tmp", "workspace"}  # of an image: the sandbox has its own

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
    "hostname": "",  # a container engine mounts its own here
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
    plan = _image_plan(spec.layers, etc) + _own_plan(spec, state_dir)
    check_plan(plan, state_dir)
    return plan + _device_plan(spec)


def comes_late(layers: tuple[Layer, ...], built: list[PlanEntry]) -> bool:
    """Whether an image can come to a sandbox that was `built` without one: over no place that has a mount by then."""
    places = [*OWN_PLACES, *(target for _, _, target in built)]
    targets = [layer.target for layer in layers if layer.target != "/"]
    return not any(_holds(target, place) or _holds(place, target) for target in targets for place in places)


def is_deep(layers: tuple[Layer, ...]) -> bool:
    """Whether more layers lie on each other than bubblewrap can be told of: such an image comes late."""
    stacked = collections.Counter(layer.target for layer in layers)
    return max(stacked.values(), default=0) > STACKED_MAX


def _holds(place: str, other: str) -> bool:
    return other == place or other.startswith(f"{place}/")


def late_plan(spec: SandboxSpec, state_dir: Path, built: list[PlanEntry]) -> list[PlanEntry]:
    """What comes, of the same plan, after what a sandbox of this image was `built` with. Refuses as that does."""
    own = _own_plan(spec, state_dir)
    check_plan(own, state_dir, built)
    return own + _device_plan(spec)


def points(spec: SandboxSpec) -> frozenset[tuple[str, bool]]:
    """Where its mounts lie inside layers, and whether each is a directory: places that must be made with these.

    None in an image's root, in which there can be places later.
    """
    bases = [f"{layer.target}/" for layer in spec.layers if layer.target != "/"]
    inside = [mount for mount in spec.mounts if any(mount.target.startswith(base) for base in bases)]
    return frozenset((mount.target, os.path.isdir(mount.source)) for mount in inside)


def _image_plan(layers: tuple[Layer, ...], etc: Path) -> list[PlanEntry]:
    plan = _layers(layers)
    if any(target == "/" for _, _, target in plan):
        # Such an image has an /etc of its own, which knows its libraries; what says who is there is the sandbox's.
        plan += [("read", os.path.realpath(etc / name), f"/etc/{name}") for name in OWN_ETC_FILES]
    else:
        plan.append(("read", os.path.realpath(etc), "/etc"))
        for name in HOST_ETC_DIRECTORIES:
            if Path("/etc", name).is_dir():
                plan.append(("read", os.path.realpath(f"/etc/{name}"), f"/etc/{name}"))
    if Path(CPU_TOPOLOGY).is_dir():
        plan.append(("read", os.path.realpath(CPU_TOPOLOGY), CPU_TOPOLOGY))
    return plan


def _own_plan(spec: SandboxSpec, state_dir: Path) -> list[PlanEntry]:
    plan: list[PlanEntry] = []
    if spec.workdir is not None:
        plan.append(("workspace", spec.workdir, "/workspace"))
    else:
        plan.append(("write", os.path.join(os.path.realpath(state_dir), FILES_NAME, "upper"), "/workspace"))
    for mount in spec.mounts:
        if hidden := next((place for place in OWN_PLACES if place.startswith(f"{mount.target}/")), None):
            raise RequestRefusedError(f"mount target {mount.target!r} refused; it would hide the sandbox's {hidden}")
        kind = "read" if not mount.writable else "take" if mount.take_ownership else "write"
        plan.append((kind, mount.source, mount.target))
    return plan


def _device_plan(spec: SandboxSpec) -> list[PlanEntry]:
    return [("device", device.source, device.target) for device in checked_devices(spec.devices)]


def checked_devices(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """The same, or RequestRefusedError."""
    for device in devices:
        normal = os.path.normpath(device.target) == device.target
        if not normal or not device.target.startswith("/dev/"):
            raise RequestRefusedError(f"device target {device.target!r} refused; a normal path below /dev is accepted")
        if not os.path.exists(device.source) or stat.S_IFMT(os.stat(device.source).st_mode) not in DEVICE_MODES:
            raise RequestRefusedError(f"device {device.source!r} for {device.target} is no device node")
    return devices


def _layers(layers: tuple[Layer, ...]) -> list[PlanEntry]:
    """The image's part. Layers with the same target are stacked: all but the topmost are `lower`, in their order."""
    plan: list[PlanEntry] = []
    for target, stacked in itertools.groupby(sorted(layers, key=_target), key=_target):
        *lowers, top = _once(stacked)
        plan += [("lower", layer.source, target) for layer in lowers]
        plan.append(("layer", top.source, target))
        if target == "/usr":
            links = [name for name in MERGED_USR if any(Path(e.source, name).is_dir() for e in (*lowers, top))]
            plan += [("link", f"usr/{name}", f"/{name}") for name in links]
    return plan


def _target(layer: Layer) -> str:
    return layer.target


def _once(stacked: Iterable[Layer]) -> list[Layer]:
    """Each layer where it is topmost, for the kernel stacks none twice: what is below it again adds nothing."""
    return list(dict.fromkeys(reversed(list(stacked))))[::-1]


def check_plan(plan: list[PlanEntry], state_dir: Path, below: list[PlanEntry] | None = None) -> None:
    """Refuse what may not be mounted, after what was checked `below`."""
    reserved = ("/proc", "/dev", "/run/tidegate/hold")
    own = f"{os.path.realpath(state_dir)}/"
    for kind, source, target in plan:
        rooted = target == "/" and kind not in ("lower", "layer")
        if not target.startswith("/") or os.path.normpath(target) != target or rooted:
            raise RequestRefusedError(f"mount target {target!r} refused; it must be absolute, normal and not /")
        if any(target == name or target.startswith(f"{name}/") for name in reserved):
            raise RequestRefusedError(f"mount target {target!r} refused; {', '.join(reserved)} are the sandbox's own")
        inside_state = source.startswith(own)
        if kind != "link" and not inside_state and not os.path.exists(source):
            raise RequestRefusedError(f"mount source {source!r} for {target} does not exist")
    mounted = {
        target: kind not in BOUND or source.startswith(own) or os.path.isdir(source)
        for kind, source, target in plan
        if kind not in ("lower", "link") and target != "/"
    }
    check_places([*(below or ()), *plan], {place: place not in OWN_FILES for place in OWN_PLACES} | mounted)


def unrooted(plan: list[PlanEntry]) -> list[PlanEntry]:
    """The same without layers at /, for whoever can mount nothing there: their directories one by one, and links."""
    roots = [Path(source) for kind, source, target in plan if kind in ("lower", "layer") and target == "/"]
    found: list[PlanEntry] = []
    for name in sorted({entry.name for root in roots for entry in root.iterdir()} - NOT_FROM_ROOT):
        holding = [root / name for root in roots if os.path.lexists(root / name)]
        if holding[-1].is_symlink():
            found.append(("link", os.readlink(holding[-1]), f"/{name}"))
            continue
        stacked = [str(place) for place in holding if place.is_dir() and not place.is_symlink()]
        found += [("lower", place, f"/{name}") for place in stacked[:-1]]
        found += [("layer", place, f"/{name}") for place in stacked[-1:]]
    return found + [entry for entry in plan if entry[2] != "/"]
