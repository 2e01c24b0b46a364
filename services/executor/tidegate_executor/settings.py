"""What the operator decides about one node agent: a JSON file, environment variables on top, then the command line.

The bus password comes from the file or from TIDEGATE_BUS_PASSWORD, never from the command line, where `ps` shows it.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from tidegate.tiers.tiers import MIB_PER_SECOND_MAX
from tidegate_events.bus import BusSettings
from tidegate_events.subjects import token

from tidegate_executor.sandbox.settings import (
    DOCKER_SOCKET_DEFAULT,
    RUNSC_DEFAULT,
    UID_BASE_DEFAULT,
    UID_SLOTS_DEFAULT,
    SandboxSettings,
)

UID_RANGES = 256  # agents of one machine get different uid ranges, by the hash of their node's name
CGROUP_NAME_CHARS_MAX = 48
_PLACE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}\Z")


class ImageLayer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host directory that jobs see, read-only, at `target`."""

    source: str
    target: str


class ImageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image of the operator's own: its layers, and directories inside that come first on PATH; or an OCI image.

    Layers with the same target are stacked there, the first one lowest. `oci` is where an OCI image is had from
    (`oci/sources.py`), which is converted in the background and knows its own layers and PATH.
    """

    layers: tuple[ImageLayer, ...] = ()
    oci: str = ""
    path: tuple[str, ...] = ("/usr/local/bin", "/usr/bin", "/bin")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent. `cpu_millis` and `memory_mib` replace what is detected.

    Of `share_count` agents on one machine, the one with `share_index` (from 0) offers its share of what is detected:
    as much CPU and memory as the others, and GPUs of its own.

    `input_roots` and `output_roots` are the host directories below which a job may name inputs and outputs; an empty
    list allows none. `image_cache_dir` keeps the hashes of image files, for several agents to share.
    `image_store_dir` is where images lie that this node may copy, of which it keeps `fetched_images_mib` at most.
    `pinned_images` never leave. Where the disk is fuller than `images_high_percent`, others that nobody needs do, the
    one that was not used for longest first, until `images_low_percent`.
    `warm_sandboxes` stand ready for each image and level that members asked for last, in `warm_memory_mib` at most.
    `warm_without_image` more, which can be given any image, stand ready at each level at which that is possible.
    A hot directory slower than `hot_mib_per_second_min` ends a member; 0 asks nothing of it.
    `rack` and `switch` say where the node stands in the network; `address` is where the other nodes of a gang reach it
    (left out: this is the only machine).
    `warm` and `cold` are where checkpoints of other nodes come from, each a directory or s3://BUCKET[/PREFIX];
    `tier_mib_per_second` bounds how fast from both (0: no bound), and `warm_mib_per_second` and `cold_mib_per_second`
    from one.
    `offer_unisolated` lets jobs that ask for it run as plain processes; `offer_guarded` and `offer_vm` offer those
    levels where trying them shows that they work. `trusted_backend` and `guarded_backend` say what gives a level;
    `docker_socket` and `runsc` are where their programs are. In `cdi_dirs` lie the files by which GPUs enter a sandbox,
    as devices of `cdi_gpu_kind` that are named by their index.
    `sandbox_disk_mib` and `sandbox_inodes` bound what a member writes into directories of its sandbox's own (0 MiB:
    nothing does); a level whose backend cannot do that is not offered then.
    """

    node: str
    data_dir: str
    hot_dir: str
    secrets_dir: str
    warm: str = ""
    cold: str = ""
    tier_mib_per_second: int = 0
    warm_mib_per_second: int = 0
    cold_mib_per_second: int = 0
    gateway_url: str = ""
    bus: BusSettings = BusSettings(name="tidegate-executor")
    offer_trusted: bool = True
    offer_guarded: bool = False
    offer_vm: bool = False
    offer_unisolated: bool = False
    cpu_millis: int | None = None
    memory_mib: int | None = None
    share_index: int = 0
    share_count: int = 1
    reserved_cpu_millis: int = 0
    reserved_memory_mib: int = 0
    input_roots: tuple[str, ...] = ()
    output_roots: tuple[str, ...] = ()
    images: dict[str, ImageSettings] = {}
    offer_host_image: bool = True
    image_cache_dir: str | None = None
    image_store_dir: str = ""
    fetched_images_mib: int = 20 * 1024
    pinned_images: tuple[str, ...] = ()
    images_high_percent: int = 90
    images_low_percent: int = 80
    hot_mib_per_second_min: int = 0
    warm_sandboxes: int = 1
    warm_without_image: int = 2
    warm_memory_mib: int = 256
    uid_base: int | None = None
    trusted_backend: Literal["bwrap", "docker"] = "bwrap"
    guarded_backend: Literal["gvisor", "docker"] = "gvisor"
    cdi_dirs: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")
    cdi_gpu_kind: str = "nvidia.com/gpu"
    sandbox_disk_mib: int = 0
    sandbox_inodes: int = 1_000_000
    docker_socket: str = DOCKER_SOCKET_DEFAULT
    runsc: str = RUNSC_DEFAULT
    cgroup_name: str | None = None
    cgroup_parent: str | None = None
    rack: str = ""
    switch: str = ""
    address: str = ""

    @property
    def paths(self) -> NodePaths:
        """Return where this agent keeps what."""
        return NodePaths(Path(self.data_dir))


class NodePaths:
    """The agent's data directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = root / "agent.lock"
        self.sweep_plan = root / "sandboxes.json"
        self.incarnation = root / "incarnation"
        self.spool = root / "spool"
        self.attempts = root / "attempts"
        self.sandboxes = root / "sandboxes"
        self.images = root / "images"
        self.fetched = root / "fetched-images"
        self.oci = root / "oci-images"
        self.workdirs = root / "workdirs"
        self.checkpoint_dirs = root / "checkpoint-dirs"
        self.channels = root / "channels"
        self.logs = root / "logs"
        self.sdk = root / "sdk"

    def ensure(self) -> None:
        """Create what is missing. Sandbox processes pass through the root (0711) but cannot list it."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o711)
        self.root.chmod(0o711)
        for private in (self.spool, self.attempts, self.images, self.logs):
            private.mkdir(exist_ok=True, mode=0o700)
        for passable in (
            self.sandboxes,
            self.workdirs,
            self.fetched,
            self.oci,
            self.checkpoint_dirs,
            self.channels,
            self.sdk,
        ):
            passable.mkdir(exist_ok=True, mode=0o711)


class SettingsError(Exception):
    """The settings cannot be used; the text says which one, why, and what is accepted."""


LEVELS = ("trusted", "guarded", "vm", "unisolated")
CONFIG_VARIABLE = "TIDEGATE_EXECUTOR_CONFIG"
# Environment variable -> setting. A stack's TIDEGATE_HOME places the directories that are not named otherwise.
_TEXTS = {
    "TIDEGATE_NODE": "node",
    "TIDEGATE_DATA_DIR": "data_dir",
    "TIDEGATE_HOT_DIR": "hot_dir",
    "TIDEGATE_WARM": "warm",
    "TIDEGATE_COLD": "cold",
    "TIDEGATE_SECRETS_DIR": "secrets_dir",
    "TIDEGATE_GATEWAY_URL": "gateway_url",
    "TIDEGATE_IMAGE_CACHE_DIR": "image_cache_dir",
    "TIDEGATE_IMAGE_STORE_DIR": "image_store_dir",
    "TIDEGATE_TRUSTED_BACKEND": "trusted_backend",
    "TIDEGATE_GUARDED_BACKEND": "guarded_backend",
    "TIDEGATE_CDI_GPU_KIND": "cdi_gpu_kind",
    "TIDEGATE_DOCKER_SOCKET": "docker_socket",
    "TIDEGATE_RUNSC": "runsc",
    "TIDEGATE_CGROUP_NAME": "cgroup_name",
    "TIDEGATE_CGROUP_PARENT": "cgroup_parent",
    "TIDEGATE_NODE_RACK": "rack",
    "TIDEGATE_NODE_SWITCH": "switch",
    "TIDEGATE_NODE_ADDRESS": "address",
}
_NUMBERS = {
    "TIDEGATE_CPU_MILLIS": "cpu_millis",
    "TIDEGATE_MEMORY_MIB": "memory_mib",
    "TIDEGATE_SHARE_INDEX": "share_index",
    "TIDEGATE_SHARE_COUNT": "share_count",
    "TIDEGATE_RESERVED_CPU_MILLIS": "reserved_cpu_millis",
    "TIDEGATE_RESERVED_MEMORY_MIB": "reserved_memory_mib",
    "TIDEGATE_FETCHED_IMAGES_MIB": "fetched_images_mib",
    "TIDEGATE_TIER_MIB_PER_SECOND": "tier_mib_per_second",
    "TIDEGATE_WARM_MIB_PER_SECOND": "warm_mib_per_second",
    "TIDEGATE_COLD_MIB_PER_SECOND": "cold_mib_per_second",
    "TIDEGATE_UID_BASE": "uid_base",
    "TIDEGATE_SANDBOX_DISK_MIB": "sandbox_disk_mib",
    "TIDEGATE_SANDBOX_INODES": "sandbox_inodes",
    "TIDEGATE_WARM_SANDBOXES": "warm_sandboxes",
    "TIDEGATE_WARM_WITHOUT_IMAGE": "warm_without_image",
    "TIDEGATE_WARM_MEMORY_MIB": "warm_memory_mib",
}
_ROOTS = {
    "TIDEGATE_INPUT_ROOTS": "input_roots",
    "TIDEGATE_OUTPUT_ROOTS": "output_roots",
    "TIDEGATE_CDI_DIRS": "cdi_dirs",
}
_BUS = {"TIDEGATE_BUS_URL": "url", "TIDEGATE_BUS_USER": "user", "TIDEGATE_BUS_PASSWORD": "password"}


def load(environ: Mapping[str, str], overrides: Mapping[str, Any]) -> Settings:
    """Return the settings, checked. Raises SettingsError."""
    values = _from_file(overrides.get("config") or environ.get(CONFIG_VARIABLE))
    values |= _from_environment(environ, values.get("bus", {}))
    values |= {name: value for name, value in overrides.items() if name != "config" and value is not None}
    home = environ.get("TIDEGATE_HOME")
    if home and "node" in values:
        values.setdefault("data_dir", f"{home}/nodes/{values['node']}")
        if "hot_dir" not in values:
            values |= {"hot_dir": f"{home}/hot", "warm": f"{home}/warm", "cold": f"{home}/cold"} | values
        values.setdefault("secrets_dir", f"{home}/secrets")
    try:
        return checked(msgspec.convert(values, Settings))
    except msgspec.ValidationError as error:
        raise SettingsError(
            f"{error}; give it in the file, by an environment variable or on the command line"
        ) from error


def data_dir(environ: Mapping[str, str], named: str | None) -> str:
    """Return the data directory alone, for commands that need nothing else. Raises SettingsError."""
    home, node = environ.get("TIDEGATE_HOME"), environ.get("TIDEGATE_NODE")
    chosen = named or environ.get("TIDEGATE_DATA_DIR") or (f"{home}/nodes/{node}" if home and node else None)
    if not chosen or not Path(chosen).is_absolute():
        raise SettingsError(f"data_dir: {chosen!r} refused; give --data-dir with an absolute path")
    return chosen


def _from_file(path: str | None) -> dict[str, Any]:
    if not path:
        return {}
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise SettingsError(f"the settings file {path} cannot be used: {error}; a JSON object is accepted") from error


def _from_environment(environ: Mapping[str, str], bus: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {name: environ[variable] for variable, name in _TEXTS.items() if environ.get(variable)}
    for variable, name in _NUMBERS.items():
        if environ.get(variable):
            values[name] = _number(variable, environ[variable])
    for variable, name in _ROOTS.items():
        if environ.get(variable):
            values[name] = tuple(environ[variable].split(os.pathsep))
    login = {name: environ[variable] for variable, name in _BUS.items() if environ.get(variable)}
    values["bus"] = {"name": "tidegate-executor", **bus, **login}
    if levels := environ.get("TIDEGATE_LEVELS"):
        names = levels.split(",")
        if unknown := sorted(set(names) - set(LEVELS)):
            raise SettingsError(f"TIDEGATE_LEVELS: {unknown} refused; {', '.join(LEVELS)} are accepted")
        values |= {f"offer_{level}": level in names for level in LEVELS}
    return values


def _number(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise SettingsError(f"{variable}={text!r} refused; a whole number is accepted") from error


def checked(settings: Settings) -> Settings:
    """Return the settings if they make sense; raise SettingsError if not."""
    try:
        token(settings.node)
    except ValueError as error:
        raise SettingsError(f"node: {error}") from error
    for name in ("data_dir", "hot_dir", "secrets_dir"):
        if not Path(getattr(settings, name)).is_absolute():
            raise SettingsError(f"{name}: {getattr(settings, name)!r} refused; an absolute path is accepted")
    _check_tiers(settings)
    for root in (*settings.input_roots, *settings.output_roots):
        if not Path(root).is_absolute():
            raise SettingsError(f"input_roots/output_roots: {root!r} refused; absolute paths are accepted")
    _check_place(settings)
    if settings.gateway_url and not settings.gateway_url.startswith(("http://", "https://")):
        raise SettingsError(f"gateway_url: {settings.gateway_url!r} refused; an http:// or https:// URL is accepted")
    for name in ("cpu_millis", "memory_mib"):
        value = getattr(settings, name)
        if value is not None and value <= 0:
            raise SettingsError(f"{name}: {value} refused; a positive amount, or nothing to detect it, is accepted")
    least = 16 if settings.sandbox_disk_mib else 0
    if settings.sandbox_disk_mib < least or settings.sandbox_inodes < 64:
        raise SettingsError(
            f"sandbox_disk_mib {settings.sandbox_disk_mib}, sandbox_inodes {settings.sandbox_inodes} refused; 0 (no "
            "bound) or at least 16 MiB, and at least 64 inodes, are accepted"
        )
    if not 0 <= settings.share_index < settings.share_count:
        raise SettingsError(
            f"share_index {settings.share_index} of share_count {settings.share_count} refused; 0 to share_count - 1"
        )
    if not any(getattr(settings, f"offer_{level}") for level in LEVELS):
        names = ", ".join(f"offer_{level}" for level in LEVELS)
        raise SettingsError(f"{names} are all false: the node would offer no level at all")
    _check_images(settings)
    return settings


def _check_images(settings: Settings) -> None:
    if "host" in settings.images and settings.offer_host_image:
        raise SettingsError("images: 'host' is built in; choose another name, or set offer_host_image to false")
    if settings.image_store_dir and not Path(settings.image_store_dir).is_absolute():
        raise SettingsError(f"image_store_dir: {settings.image_store_dir!r} refused; an absolute path is accepted")
    for name, image in settings.images.items():
        if bool(image.oci) == bool(image.layers):
            raise SettingsError(f"images: {name!r} refused; either layers or oci, the source of an image, is accepted")
    low, high = settings.images_low_percent, settings.images_high_percent
    if not 0 < low <= high <= 100:
        raise SettingsError(f"images_low_percent {low}, images_high_percent {high} refused; 0 < low <= high <= 100")
    if settings.hot_mib_per_second_min < 0:
        raise SettingsError(f"hot_mib_per_second_min: {settings.hot_mib_per_second_min} refused; 0 or more is accepted")
    for name in ("warm_sandboxes", "warm_without_image", "warm_memory_mib"):
        if getattr(settings, name) < 0:
            raise SettingsError(f"{name}: {getattr(settings, name)} refused; 0 or more is accepted")
    if settings.fetched_images_mib < 0:
        raise SettingsError(f"fetched_images_mib: {settings.fetched_images_mib} refused; 0 or more is accepted")


def _check_tiers(settings: Settings) -> None:
    for name in ("warm", "cold"):
        address = getattr(settings, name)
        if address and not address.startswith("s3://") and not Path(address).is_absolute():
            raise SettingsError(f"{name}: {address!r} refused; an absolute path or s3://BUCKET[/PREFIX] is accepted")
    for name in ("tier_mib_per_second", "warm_mib_per_second", "cold_mib_per_second"):
        rate = getattr(settings, name)
        if not 0 <= rate <= MIB_PER_SECOND_MAX:
            raise SettingsError(f"{name}: {rate} refused; 0 (no bound) to {MIB_PER_SECOND_MAX} is accepted")


def _check_place(settings: Settings) -> None:
    for name in ("rack", "switch", "address"):
        if (value := getattr(settings, name)) and not _PLACE_NAME.match(value):
            raise SettingsError(f"{name}: {value!r} refused; up to 128 letters, digits and ._:/- are accepted")


def sandbox_settings(settings: Settings) -> SandboxSettings:
    """Return what the sandbox backends of this agent need; distinct between the agents of one machine."""
    spread = zlib.crc32(str(Path(settings.data_dir).resolve()).encode())
    uid_base = settings.uid_base
    if uid_base is None:
        uid_base = UID_BASE_DEFAULT + (spread % UID_RANGES) * UID_SLOTS_DEFAULT
    return SandboxSettings(
        sandboxes_dir=str(settings.paths.sandboxes),
        cgroup_name=settings.cgroup_name or f"tidegate-{settings.node[:CGROUP_NAME_CHARS_MAX]}-{spread:08x}",
        cgroup_parent=settings.cgroup_parent,
        uid_base=uid_base,
        trusted_backend=settings.trusted_backend,
        guarded_backend=settings.guarded_backend,
        docker_socket=settings.docker_socket,
        runsc=settings.runsc,
    )
