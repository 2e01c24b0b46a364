"""The hot directory from the agent's side: is what a job says it saved there, and what did it not get to say.

Everything below a job's directory was written by the job: no link is followed and every field is checked (the SDK's
own reader does both). Only roots are read here: the checkpoint service reads what they name.
"""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Sequence
from pathlib import Path

import structlog
from tidegate.checkpoint import adopt as adoption
from tidegate.checkpoint import nodepart, places
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.places import Places
from tidegate.checkpoint.store import Committed, root_names
from tidegate.errors import CorruptCheckpointError
from tidegate.tiers import moving, tiers
from tidegate.tiers.holding import HotHolding, missing_of
from tidegate.tiers.job import JobTier
from tidegate_events.events import CheckpointRef, LayerRef
from tidegate_events.joins import Joined
from tidegate_events.orders import SandboxOrder

from tidegate_executor.attempts.state import AttemptState
from tidegate_executor.settings import Settings

LOOKED_AT_MAX = 1000
PROMOTION_SECONDS_MAX = 60.0
PROMOTION_LOOK_SECONDS = 0.5
UNREPORTED_MAX = 64  # a process keeps three of its checkpoints

log = structlog.get_logger()

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")


def job_directory(hot: Path, tenant: str, job: str) -> Path:
    """Return where a job's checkpoints lie. Raises ValueError for names that are no file names."""
    for name in (tenant, job):
        if not _NAME.match(name):
            raise ValueError(f"{name!r} cannot name a directory of checkpoints: letters, digits and _ . - are accepted")
    return hot / tenant / job


def reference(root: roots.Root) -> CheckpointRef:
    """Return the checkpoint as events name it."""
    layers = tuple(LayerRef(name=layer.name, digest=layer.manifest, size_bytes=layer.bytes) for layer in root.layers)
    return CheckpointRef(
        id=root.id,
        step=root.step,
        attempt=root.stamp.attempt,
        directory=root.name,
        layers=layers,
        lost=root.lost,
    )


def read_root(directory: Path, name: str) -> roots.Root:
    """Return the committed root `name`. Raises CorruptCheckpointError."""
    try:
        with places.opened(directory) as held:
            return roots.read(held.roots, name)
    except OSError as error:
        raise CorruptCheckpointError(f"the store of {name!r} cannot be read: {error.strerror}") from error


def read_part(directory: Path, name: str) -> CheckpointRef:
    """Return the part `name` of a checkpoint of several nodes. Raises CorruptCheckpointError."""
    try:
        with places.opened(directory) as held:
            return reference(nodepart.read(held, nodepart.NODE_PARTS, name))
    except OSError as error:
        raise CorruptCheckpointError(f"the store of {name!r} cannot be read: {error.strerror}") from error


def copy_joined(settings: Settings, tenant: str, job: str, joined: Joined) -> None:
    """Write the root of a joined checkpoint where the job's processes look for it; none of its chunks. Blocks.

    Raises CorruptCheckpointError where the tier does not have it, TierUnavailableError where it does not answer.
    """
    opened = _tiers(settings)
    tier = next((tier for tier in opened.of_job(tenant, job) if tier.name == joined.tier), None)
    if tier is None:
        raise CorruptCheckpointError(f"{joined.directory} is in the {joined.tier} tier, which this node does not know")
    root = tier.root(joined.directory)
    if root.id != joined.checkpoint_id:
        raise CorruptCheckpointError(f"{joined.directory} is another checkpoint than the one that was joined")
    with opened.hot_store(tenant, job) as held:
        nodepart.put(held, nodepart.JOINED, root)


def _tiers(settings: Settings) -> tiers.Tiers:
    rates = (settings.tier_mib_per_second, settings.warm_mib_per_second, settings.cold_mib_per_second)
    return tiers.Tiers(tiers.Settings(Path(settings.hot_dir), settings.warm or None, settings.cold or None, *rates))


def is_there(directory: Path, resume: CheckpointRef) -> bool:
    """Say whether a checkpoint lies here with all that it names; whether it is undamaged, who resumes finds out."""
    try:
        with places.opened(directory) as held:
            root = roots.read(held.roots, resume.directory)
            return root.id == resume.id and not missing_of(HotHolding(held), root)
    except (CorruptCheckpointError, OSError):
        return False


def fetch(settings: Settings, tenant: str, job: str, resume: CheckpointRef) -> None:
    """Bring a checkpoint to this node from the nearest tier that has it whole, every byte compared. Blocks.

    Raises CorruptCheckpointError where no tier has it, TierUnavailableError where one that may have it does not answer.
    """
    opened = _tiers(settings)
    sources = opened.of_job(tenant, job)
    _wait_for(resume.directory, sources)
    with opened.hot_store(tenant, job) as held:
        done = moving.move(resume.directory, sources, HotHolding(held), held.staging)
    if done.root.id != resume.id:
        raise CorruptCheckpointError(f"{resume.directory} is checkpoint {done.root.id[:12]}, not {resume.id[:12]}")
    log.info("checkpoint_fetched", job=job, checkpoint=resume.id, packs=done.sent, tiers=done.sources)


def _wait_for(name: str, sources: Sequence[JobTier]) -> None:
    """Wait while a checkpoint that another node has just saved may still be on its way to a tier."""
    give_up = time.monotonic() + PROMOTION_SECONDS_MAX
    while sources and time.monotonic() < give_up and not any(name in source.roots() for source in sources):
        time.sleep(PROMOTION_LOOK_SECONDS)


def read(directory: Path, name: str) -> CheckpointRef:
    """Return the committed checkpoint `name`. Raises CorruptCheckpointError."""
    return reference(read_root(directory, name))


def unreported(directory: Path, state: AttemptState) -> list[CheckpointRef]:
    """Return what this member committed after its newest reported checkpoint, oldest first.

    So a save is not lost when the process ended, or the agent was away, before it was told. They fit one frame of the
    journal, whatever a job put there: only the newest are returned.
    """
    found: list[tuple[int, CheckpointRef]] = []
    reported_ns = -1
    for root in _roots(directory, state):
        if state.saved is not None and root.name == state.saved.directory:
            reported_ns = root.created_ns
        found.append((root.created_ns, reference(root)))
    if reported_ns < 0 and state.saved is not None:
        found = [(created, ref) for created, ref in found if ref.step > state.saved.step]
    newer = [ref for created, ref in sorted(found, key=lambda item: item[0]) if created > reported_ns]
    return newer[-UNREPORTED_MAX:]


def _roots(directory: Path, state: AttemptState) -> list[roots.Root]:
    """Return this member's own roots; those that are damaged are the checkpoint service's to judge."""
    found = []
    try:
        with places.opened(directory) as held:
            for name in _candidates(held, state.attempt):
                try:
                    root = roots.read(held.roots, name)
                except CorruptCheckpointError:
                    continue
                if (root.stamp.job, root.stamp.attempt, root.stamp.rank) == (state.job, state.attempt, state.rank):
                    found.append(root)
    except (FileNotFoundError, CorruptCheckpointError):
        return []
    return found


def _candidates(held: Places, attempt: int) -> list[str]:
    """Return the names of an attempt's checkpoints, those of the largest steps where a job made more than is usual."""
    middle = f"-{attempt}-"
    return heapq.nlargest(LOOKED_AT_MAX, (name for name in root_names(held) if middle in name))


def adopt(declared: Path, directory: Path, order: SandboxOrder) -> CheckpointRef | None:
    """Take over the newest complete checkpoint of a job that does not use the SDK; None where there is no new one."""
    spec = order.spec
    stamp = roots.Stamp(
        job=order.job,
        attempt=order.attempt,
        rank=order.rank,
        component=spec.main_component.name,
        replica=0,
        world_size=spec.gang_size,
        seed=spec.seed,
    )
    committed = adoption.adopt(declared, directory, stamp)
    return reference(committed.root) if committed else None


def materialise(directory: Path, resume: CheckpointRef, declared: Path) -> None:
    """Put an adopted checkpoint back where such a job looks for it; others are left to the SDK.

    Raises CorruptCheckpointError when it is not what was committed.
    """
    root = read_root(directory, resume.directory)
    if root.stamp.adopted is not None:
        adoption.materialise(Committed(root, directory), declared)
