"""Everything a sandbox needs before it stands: secrets, working directory, mounts; and its processes' specifications.

Refusals come from here before anything of the member runs: so they are PlacementRejected, not failures.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import msgspec
from tidegate.errors import CheckpointError, TidegateError
from tidegate.tiers.objects import TierUnavailableError
from tidegate_events.events import CheckpointRef, Quota, Reason
from tidegate_events.orders import SandboxOrder
from tidegate_events.spec import Component, PathBinding

from tidegate_executor import checkpoints, devices, environment, secret_store
from tidegate_executor.attempts import scaling
from tidegate_executor.attempts.state import AttemptState
from tidegate_executor.attempts.wording import plain
from tidegate_executor.context import Context
from tidegate_executor.image_shelf import ImageUnavailableError
from tidegate_executor.images import Image
from tidegate_executor.sandbox import cdi, networks
from tidegate_executor.sandbox.base import (
    CPU_MILLIS_MIN,
    MEMORY_MIB_MIN,
    ComponentProcess,
    DiskLimits,
    Limits,
    Mount,
    Network,
    SandboxSpec,
)
from tidegate_executor.sandbox.state import remove_tree
from tidegate_executor.workdirs import WorkdirError

PIDS_PER_REPLICA = 1024
HOSTNAME_CHARS_MAX = 63
REFUSAL_CHARS_MAX = 1000
WORKSPACE = "/workspace"
AGENT_DIR = "/run/tidegate/agent"
SOCKET_NAME = "agent.sock"
CHECKPOINTS = "/run/tidegate/checkpoints"
SDK = "/opt/tidegate"


class RefusedError(Exception):
    """The member cannot be set up here as it is."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = Reason(code=code, detail=plain(detail, REFUSAL_CHARS_MAX))


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox ready to be made. `declared` is the host directory that stands for the job's `checkpoint_dir`."""

    spec: SandboxSpec
    places: environment.Places
    declared: Path | None
    hot: Path
    image_digest: str
    image_env: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Prepared({self.spec!r})"


def channel_directory(context: Context, sandbox: str) -> Path:
    """Return the host directory that holds the sandbox's socket."""
    return context.paths.channels / sandbox


async def prepare(context: Context, order: SandboxOrder, state: AttemptState) -> Prepared:
    """Return what the sandbox needs, fetched and made. Safe to repeat. Raises RefusedError."""
    image = await _image(context, order)
    workdir = await _workdir(context, order)
    return await asyncio.to_thread(_assemble, context, order, state, (image, workdir))


async def secrets_of(context: Context, order: SandboxOrder) -> dict[str, str]:
    """Return the job's secrets by variable, read anew each time and kept nowhere. Raises RefusedError."""
    directory = Path(context.settings.secrets_dir)
    try:
        return await asyncio.to_thread(secret_store.read, directory, order.tenant, order.spec.secrets)
    except secret_store.SecretError as error:
        raise RefusedError(error.code, str(error)) from error


async def _image(context: Context, order: SandboxOrder) -> Image:
    try:
        return await context.images.get(order.spec.image)
    except ImageUnavailableError as error:
        raise RefusedError("ImageMissing" if error.missing else "ImageUnavailable", str(error)) from error


async def _workdir(context: Context, order: SandboxOrder) -> Path | None:
    if not order.spec.workdir:
        return None
    try:
        return await context.workdirs.get(order.spec.workdir)
    except WorkdirError as error:
        raise RefusedError("WorkdirRefused" if error.refused else "WorkdirUnavailable", str(error)) from error


def _assemble(
    context: Context, order: SandboxOrder, state: AttemptState, content: tuple[Image, Path | None]
) -> Prepared:
    image, workdir = content
    hot = _hot_directory(context, order)
    channel = channel_directory(context, state.id)
    channel.mkdir(exist_ok=True, mode=0o711)
    declared_target = _declared_target(order)
    mounts = [
        Mount(source=os.path.realpath(context.sdk_dir), target=SDK),
        Mount(source=os.path.realpath(channel), target=AGENT_DIR),
        Mount(source=os.path.realpath(hot), target=CHECKPOINTS, writable=True, take_ownership=True),
        *_bindings(order.spec.inputs, context.settings.input_roots, "/inputs"),
        *_bindings(order.spec.outputs, context.settings.output_roots, "/outputs", writable=True),
    ]
    gpus = _gpus(context, order, state)
    declared = _declared_mount(context, state, declared_target)
    if declared is not None:
        mounts.append(declared)
    spec = SandboxSpec(
        id=state.id,
        hostname=_hostname(order),
        log_dir=str(context.paths.logs / state.id),
        uid_slot=state.uid_slot,
        layers=image.layers,
        workdir=str(workdir) if workdir else None,
        mounts=(*mounts, *gpus.mounts),
        devices=gpus.devices,
        network=_network(order, state),
        disk=_disk(context, state),
        pids_max=PIDS_PER_REPLICA * max(4, sum(scaling.most(component) for component in order.spec.components)),
    )
    places = _places(context, order, spec, (image, declared_target))
    host_declared = None
    if declared is not None:
        host_declared = Path(declared.source)
    elif declared_target is not None:  # at level `unisolated` what is below the workspace is a plain directory
        host_declared = Path(context.backends[state.level].path_inside(spec, declared_target))
    return Prepared(
        spec=spec,
        places=places,
        declared=host_declared,
        hot=hot,
        image_digest=image.digest,
        image_env={**image.env, **gpus.env},
    )


def _disk(context: Context, state: AttemptState) -> DiskLimits | None:
    mib = context.settings.sandbox_disk_mib
    if not mib or state.level == "unisolated":  # where nothing else is bounded either
        return None
    return DiskLimits(mib=mib, inodes=context.settings.sandbox_inodes)


def _gpus(context: Context, order: SandboxOrder, state: AttemptState) -> cdi.Granted:
    try:
        return devices.granted(context.settings, state.level, order.gpu_indices)
    except cdi.CdiError as error:
        raise RefusedError("GpuNotPassed", str(error)) from error


def _network(order: SandboxOrder, state: AttemptState) -> Network | None:
    """The members of a gang on this node reach each other; only root can make them a network."""
    place = order.gang
    if place is None or place.local_size < 2 or state.level == "unisolated" or os.geteuid() != 0:
        return None
    return Network(name=f"{order.job}.{order.attempt}", member=place.local_rank)


def _places(
    context: Context, order: SandboxOrder, spec: SandboxSpec, extra: tuple[Image, str | None]
) -> environment.Places:
    image, declared_target = extra
    backend = context.backends[order.spec.isolation]

    def inside(target: str) -> str:
        return backend.path_inside(spec, target)

    return environment.Places(
        workspace=inside(WORKSPACE),
        socket=f"{inside(AGENT_DIR)}/{SOCKET_NAME}",
        checkpoints=inside(CHECKPOINTS),
        sdk=inside(SDK),
        home=inside("/home/job"),
        cache=inside("/var/cache/job"),
        temporary=inside("/tmp"),
        path=image.path,
        inputs={binding.name: inside(f"/inputs/{binding.name}") for binding in order.spec.inputs},
        outputs={binding.name: inside(f"/outputs/{binding.name}") for binding in order.spec.outputs},
        checkpoint_dir=inside(declared_target) if declared_target else None,
        master_address=_master_address(order, spec),
    )


def _master_address(order: SandboxOrder, spec: SandboxSpec) -> str:
    """Where rank 0 is for the members of a gang that has a private network and is on this node as a whole."""
    alone = order.gang is not None and len(order.gang.nodes) == 1
    return networks.address(0) if alone and spec.network is not None else ""


def _hot_directory(context: Context, order: SandboxOrder) -> Path:
    try:
        hot = checkpoints.job_directory(Path(context.settings.hot_dir), order.tenant, order.job)
    except ValueError as error:
        raise RefusedError("NameRefused", str(error)) from error
    hot.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
    hot.mkdir(exist_ok=True, mode=0o755)
    if order.resume is not None and not checkpoints.is_there(hot, order.resume):
        _fetch(context, order, order.resume)
    return hot


def _fetch(context: Context, order: SandboxOrder, resume: CheckpointRef) -> None:
    said = f"checkpoint {resume.directory} of step {resume.step} is not on this node, and"
    try:
        checkpoints.fetch(context.settings, order.tenant, order.job, resume)
    except TierUnavailableError as error:
        raise RefusedError("CheckpointUnavailable", f"{said} its tier is away: {error}") from error
    except CheckpointError as error:
        raise RefusedError("CheckpointMissing", f"{said} in no tier: {error}") from error
    except OSError as error:
        raise RefusedError("CheckpointUnavailable", f"{said} cannot be put here: {error.strerror or error}") from error


def _bindings(
    bindings: tuple[PathBinding, ...], roots: tuple[str, ...], below: str, *, writable: bool = False
) -> list[Mount]:
    mounts = []
    for binding in bindings:
        source = Path(os.path.realpath(binding.source))
        if not any(source.is_relative_to(os.path.realpath(root)) for root in roots):
            accepted = ", ".join(roots) or "none: the operator named no root"
            raise RefusedError("PathOutsideRoots", f"{binding.source} lies outside the allowed roots ({accepted})")
        if writable:
            source.mkdir(parents=True, exist_ok=True)
        elif not source.exists():
            raise RefusedError("InputMissing", f"input {binding.name}: {binding.source} is not on this node")
        mounts.append(
            Mount(source=str(source), target=f"{below}/{binding.name}", writable=writable, take_ownership=writable)
        )
    return mounts


def _declared_target(order: SandboxOrder) -> str | None:
    declared = order.spec.preemption.checkpoint_dir
    if declared is None:
        return None
    target = os.path.normpath(os.path.join(WORKSPACE, declared))
    if target in ("/", WORKSPACE):
        raise RefusedError("CheckpointDirRefused", f"checkpoint_dir {declared!r}: a directory of its own is accepted")
    return target


def _declared_mount(context: Context, state: AttemptState, target: str | None) -> Mount | None:
    if target is None or (state.level == "unisolated" and target.startswith(f"{WORKSPACE}/")):
        return None
    source = context.paths.checkpoint_dirs / state.id
    source.mkdir(exist_ok=True, mode=0o755)
    return Mount(source=os.path.realpath(source), target=target, writable=True, take_ownership=True)


def put_checkpoint_back(prepared: Prepared, order: SandboxOrder) -> None:
    """Give a job without the SDK the checkpoint it resumes from. Blocks. Raises RefusedError when it is damaged."""
    if prepared.declared is None or order.resume is None:
        return
    try:
        checkpoints.materialise(prepared.hot, order.resume, prepared.declared)
    except TidegateError as error:
        raise RefusedError("CheckpointDamaged", str(error)) from error


def leftovers(context: Context) -> set[str]:
    """Return the sandboxes of which something that `clean` removes is there. Blocks."""
    return {path.name for place in (context.paths.channels, context.paths.checkpoint_dirs) for path in place.iterdir()}


def clean(context: Context, sandbox: str) -> None:
    """Remove what was made for the sandbox beside it. Blocks."""
    for directory in (channel_directory(context, sandbox), context.paths.checkpoint_dirs / sandbox):
        remove_tree(directory)


def _hostname(order: SandboxOrder) -> str:
    text = re.sub(r"[^A-Za-z0-9-]", "-", f"{order.job}-{order.rank}")
    return text[-HOSTNAME_CHARS_MAX:].strip("-")


def limits_of(quota: Quota) -> Limits:
    """Return the limits of one replica; the kernel takes no less than its least."""
    return Limits(
        cpu_millis=max(quota.cpu_millis, CPU_MILLIS_MIN),
        memory_mib=max(quota.memory_mib, MEMORY_MIB_MIN),
        pids=PIDS_PER_REPLICA,
    )


def process_of(
    order: SandboxOrder, component: Component, replica: int, prepared: Prepared, limits: Limits
) -> ComponentProcess:
    """Return one replica to start, without its secrets."""
    return ComponentProcess(
        component=component.name,
        replica=replica,
        argv=component.command,
        limits=limits,
        env=prepared.image_env | environment.of_process(order, component, replica, prepared.places),
        cwd=prepared.places.workspace,
    )
