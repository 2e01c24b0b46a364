"""Devices by the Container Device Interface: what a qualified name like `nvidia.com/gpu=0` means on this node.

Read are specification files in JSON (CDI 0.3 and newer). Of what an entry asks for, device nodes, mounts and variables
are carried out; hooks are programs of others that would run outside the sandbox, and are not.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tidegate_executor.sandbox.base import Device, Mount

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")  # those of the specification; a later one has precedence
FILE_BYTES_MAX = 4 * 1024 * 1024


class CdiError(Exception):
    """A device cannot be had: no file has it, or what it asks for is not there."""


class DeviceNode(msgspec.Struct, frozen=True, rename="camel"):
    """A device node of an entry; `host_path` left out means `path`."""

    path: str
    host_path: str = ""


class CdiMount(msgspec.Struct, frozen=True, rename="camel"):
    """A file or directory of the host that the device's users need."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class Edits(msgspec.Struct, frozen=True, rename="camel"):
    """What has to be there inside."""

    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    env: tuple[str, ...] = ()


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """One device of a file."""

    name: str
    container_edits: Edits = Edits()


class Specification(msgspec.Struct, frozen=True, rename="camel"):
    """One file. Its own edits go with each of its devices."""

    kind: str
    devices: tuple[Entry, ...]
    container_edits: Edits = Edits()


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox is given for its devices."""

    devices: tuple[Device, ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: dict[str, str] = {}


def specifications(directories: Iterable[str] = DIRECTORIES) -> dict[str, Specification]:
    """Return every file's content by the kind of its devices. Raises CdiError for one that cannot be read."""
    found: dict[str, Specification] = {}
    for directory in directories:
        for path in sorted(Path(directory).glob("*.json")):
            specification = _read(path)
            found[specification.kind] = specification
    return found


def _read(path: Path) -> Specification:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise CdiError(f"{path} is refused: a CDI file has {FILE_BYTES_MAX} bytes at most")
        return msgspec.json.decode(path.read_bytes(), type=Specification)
    except (OSError, msgspec.DecodeError) as error:
        raise CdiError(f"{path} cannot be read as a CDI specification: {error}") from error


def granted(names: Iterable[str], known: dict[str, Specification]) -> Granted:
    """Return what these devices need, and nothing of any other. Raises CdiError."""
    edits: list[Edits] = []
    nodes: dict[tuple[str, str], Device] = {}  # what several devices share is named by the first of them
    for name in names:
        edits += (found := _edits(name, known))
        for device in (_device(node, name) for edit in found for node in edit.device_nodes):
            nodes.setdefault((device.source, device.target), device)
    return Granted(
        devices=tuple(nodes.values()),
        mounts=tuple(dict.fromkeys(_mount(mount) for edit in edits for mount in edit.mounts)),
        env=dict(_variable(text) for edit in edits for text in edit.env),
    )


def _edits(name: str, known: dict[str, Specification]) -> list[Edits]:
    kind, _, device = name.partition("=")
    if kind in known:
        for entry in known[kind].devices:
            if entry.name == device:
                return [known[kind].container_edits, entry.container_edits]
    raise CdiError(f"device {name!r} is in no CDI file here; there are: {', '.join(all_names(known)) or 'none'}")


def all_names(known: dict[str, Specification]) -> list[str]:
    """Return the qualified name of every device."""
    return [f"{kind}={entry.name}" for kind, specification in sorted(known.items()) for entry in specification.devices]


def _device(node: DeviceNode, name: str) -> Device:
    source = os.path.realpath(node.host_path or node.path)
    try:
        mode = os.stat(source).st_mode
    except OSError as error:
        raise CdiError(f"device node {source} is not there: {error.strerror}") from error
    if not (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
        raise CdiError(f"{source} is no device node")
    return Device(source=source, target=node.path, name=name)


def _mount(mount: CdiMount) -> Mount:
    source = os.path.realpath(mount.host_path)
    if not os.path.exists(source):
        raise CdiError(f"{mount.host_path}, which the device's users need, is not there")
    return Mount(source=source, target=mount.container_path)


def _variable(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def known_alike(devices: tuple[Device, ...], directories: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the devices if files in these directories give them the same nodes; else none. Blocks."""
    names = tuple(dict.fromkeys(device.name for device in devices))
    if "" in names:
        return ()
    try:
        there = granted(names, specifications(directories))
    except CdiError:
        return ()
    return names if there.devices == devices else ()


def as_docker(devices: Iterable[Device], names: tuple[str, ...]) -> dict[str, Any]:
    """Devices as a container engine takes them: by their names where it knows these, else by their nodes.

    What else their users need is mounted by us too: the engine mounts it before the image's layers, which hide it.
    """
    if names:
        return {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": list(names)}]}
    return {
        "Devices": [
            {"PathOnHost": device.source, "PathInContainer": device.target, "CgroupPermissions": "rw"}
            for device in devices
        ]
    }
