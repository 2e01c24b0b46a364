"""Reads one checkpoint for whoever wants its content, from the nearest tier that has it whole."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, TypeVar

from tidegate.checkpoint import places
from tidegate.checkpoint.root import Root
from tidegate.errors import CheckpointError, CorruptCheckpointError, UsageError
from tidegate.tiers import moving
from tidegate.tiers.holding import Holding, HotHolding, OnMoved
from tidegate.tiers.job import JobTier
from tidegate.tiers.retaining import newest_first
from tidegate.tiers.tiers import Tiers, checked

NAMED_MAX = 20
ID_CHARS_MIN = 6

Result = TypeVar("Result")


class Found(NamedTuple):
    """A checkpoint, and the tiers that name it."""

    root: Root
    tiers: List[str]


def known(held: Sequence[Holding]) -> List[Found]:
    """Return the checkpoints that holdings name, rank 0 first, the newest first; damaged roots are left out."""
    found: Dict[str, Found] = {}
    for each in held:
        for name in each.roots():
            try:
                root = each.root(name)
            except CorruptCheckpointError:
                continue  # another tier may have it; `scrub` names it
            found.setdefault(root.id, Found(root, [])).tiers.append(each.name)
    return [found[root.id] for root in newest_first(one.root for one in found.values())]


def chosen(listed: Sequence[Found], wanted: Optional[str], job: str) -> Found:
    """Return the checkpoint called `wanted`: its name, or its id or the beginning of that; None is the newest.

    Raises UsageError, with those that there are.
    """
    if not listed:
        raise UsageError(f"no tier has a checkpoint of job {job!r}")
    if wanted is None:
        return listed[0]
    fitting = [
        each
        for each in listed
        if each.root.name == wanted or (len(wanted) >= ID_CHARS_MIN and each.root.id.startswith(wanted))
    ]
    if len(fitting) != 1:
        there = ", ".join(f"{each.root.id[:12]} (step {each.root.step})" for each in listed[:NAMED_MAX])
        how = "names several checkpoints" if fitting else f"is no checkpoint of job {job!r}"
        raise UsageError(f"{wanted!r} {how}: accepted are ids, or at least {ID_CHARS_MIN} characters of one: {there}")
    return fitting[0]


class Wanted(NamedTuple):
    """Which layers (by name) of which checkpoint are to be read; `scratch` is where a copy of them may be made."""

    tenant: str
    job: str
    root: Root
    layers: Sequence[str]
    scratch: Path


def read_from(
    tiers: Tiers, wanted: Wanted, use: Callable[[Path], Result], on_moved: OnMoved = lambda size: None
) -> Result:
    """Return what `use` makes of a store that holds the layers: the node's own, or a copy taken from the other tiers.

    `use` is called again with the copy where the node's own raised CorruptCheckpointError.
    """
    checked(wanted.tenant, wanted.job)
    here = tiers.hot / wanted.tenant / wanted.job
    why: List[CheckpointError] = []
    if here.is_dir():
        try:
            return use(here)
        except CorruptCheckpointError as error:
            why.append(error)
        except FileNotFoundError as error:
            why.append(CorruptCheckpointError(f"{error.filename} is not there"))
    shared: List[JobTier] = tiers.of_job(wanted.tenant, wanted.job)
    if not shared:
        raise why[0] if why else CorruptCheckpointError(f"no tier here holds job {wanted.job}: {tiers.hot} does not")
    with tempfile.TemporaryDirectory(prefix=".tiers-", dir=wanted.scratch) as directory:
        layers = [layer for layer in wanted.root.layers if layer.name in wanted.layers]
        try:
            with places.opened(directory, create=True) as copy:
                moving.move_layers(wanted.root, layers, shared, HotHolding(copy, "copy"), copy.staging, on_moved)
        except CorruptCheckpointError as error:
            said = f"hot: {why[0]}; " if why else ""
            raise CorruptCheckpointError(f"{said}{error}") from error
        return use(Path(directory))
