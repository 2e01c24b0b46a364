"""Carry out a plan to restore: copy the files of the planned layers out of a tier that this machine can read.

Every byte is compared with the hash that the checkpoint's id vouches for, and the target appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any, Callable, List, Mapping

from tidegate.checkpoint import root as roots
from tidegate.checkpoint.root import FileEntry, LayerEntry, Root
from tidegate.client.endpoint import stack_home
from tidegate.client.errors import ClientError
from tidegate.errors import CorruptCheckpointError

OnCopied = Callable[[int], None]
"""Told how many bytes more were copied."""


class RestoreError(ClientError):
    """The planned checkpoint cannot be read here, or the target cannot be written."""


def tier_directory(plan: Mapping[str, Any]) -> Path:
    """Return where the local stack keeps the plan's tier: `hot` below its data directory."""
    return stack_home() / str(plan["tier"])


def carry_out(
    plan: Mapping[str, Any], tier: Path, target: Path, on_copied: OnCopied = lambda count: None
) -> List[Path]:
    """Copy the planned layers into `target`, which must not exist or be empty; return the files.

    Raises RestoreError for what cannot be read or written, CorruptCheckpointError for bytes that were not saved so.
    """
    source = _source(plan, tier)
    root = roots.read_root(source)
    if root.id != plan["checkpoint_id"]:
        raise CorruptCheckpointError(f"{source} holds checkpoint {root.id[:12]}, not {plan['checkpoint_id'][:12]}")
    layers = [_layer(root, str(planned["name"])) for planned in plan["layers"]]
    target = target.expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RestoreError(f"{target} is not empty.", "Accepted is a directory that is empty or not there yet.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise RestoreError(f"{target} cannot be made: {error.strerror}.", "Name a directory you may write.") from error
    try:
        (partial / roots.ROOT_FILE).write_bytes(roots.encode(root))
        written = [_copy(source, entry, partial, on_copied) for layer in layers for entry in layer.files]
        partial.chmod(0o755)
        partial.rename(target)
    except OSError as error:
        raise RestoreError(
            f"Copying to {target} failed: {error.strerror or error}.", "Nothing was left behind."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return [target / name for name in written]


def _source(plan: Mapping[str, Any], tier: Path) -> Path:
    parts = PurePosixPath(str(plan["directory"])).parts
    if len(parts) != 3 or ".." in parts or parts[0] == "/":
        raise RestoreError(f"The plan names the directory {plan['directory']!r}.", "Accepted is TENANT/JOB/CHECKPOINT.")
    source = tier.joinpath(*parts)
    if not source.is_dir():
        message = f"The {plan['tier']} tier of node {plan['node']} cannot be read here: there is no {source}."
        raise RestoreError(message, "Run this where that tier is mounted, and name it (--tier-dir).")
    return source


def _layer(root: Root, name: str) -> LayerEntry:
    layer = root.layer(name)
    if layer is None:
        raise CorruptCheckpointError(f"checkpoint {root.id[:12]} was planned with a layer {name!r} that it lacks")
    return layer


def _copy(source: Path, entry: FileEntry, partial: Path, on_copied: OnCopied) -> PurePosixPath:
    """Copy one file; its path was checked when the root was read."""
    path = partial / entry.path
    path.parent.mkdir(parents=True, exist_ok=True)
    hashing = hashlib.sha256()
    with roots.open_inside(source, entry.path) as reading, path.open("xb") as writing:
        roots.check_size(source, entry, reading)
        while block := reading.read(roots.BLOCK_BYTES):
            hashing.update(block)
            writing.write(block)
            on_copied(len(block))
        writing.flush()
        os.fsync(writing.fileno())
    roots.check_digest(source, entry, hashing.hexdigest())
    return PurePosixPath(entry.path)
