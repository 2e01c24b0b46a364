"""The images that were fetched, as they lie on this node's disk: one directory each, named by its digest. All block."""

from __future__ import annotations

import os
import time
from pathlib import Path

import structlog

from tidegate_executor import image_store
from tidegate_executor.image_store import TEMPORARY, DigestError, Stored, StoreError
from tidegate_executor.sandbox.state import remove_tree
from tidegate_executor.spool.segments import sync_directory

log = structlog.get_logger()


def place_of(directory: Path, digest: str) -> Path:
    """Return where the image of that digest lies, or would."""
    return directory / digest.removeprefix("b3:")


def measure(directory: Path, cache: Path) -> tuple[list[Stored], list[Stored]]:
    """Return the images that are whole, and those that are not what their record says; removes unfinished fetches.

    What cannot be read now may be whole, and members may run on it: it stays where it is, and is no image of the node.
    """
    whole: list[Stored] = []
    other: list[Stored] = []
    for place in sorted(directory.iterdir()):
        try:
            if place.name.startswith(TEMPORARY):
                remove_tree(place)
            elif (stored := _record(place)) is not None:
                (whole if _is_whole(place, stored, cache) else other).append(stored)
        except (StoreError, OSError) as error:
            log.warning("fetched_image_left_out", directory=place.name, why=str(error))
    return whole, other


def _is_whole(place: Path, stored: Stored, cache: Path) -> bool:
    try:
        image_store.check(place, stored, cache)
    except DigestError as error:
        log.warning("fetched_image_damaged", directory=place.name, why=str(error))
        return False
    return True


def _record(place: Path) -> Stored | None:
    """Return the image that lies there; None, which is logged, where none does: that is not the agent's."""
    stored = image_store.read(place)
    if stored is None or place_of(place.parent, stored.digest) != place:
        log.warning("fetched_image_left_out", directory=place.name, why="it has no record of an image of this digest")
        return None
    return stored


def held(directory: Path) -> list[Stored]:
    """Return the images that were fetched, the one that was not used for longest first."""
    found: list[tuple[int, Stored]] = []
    for place in sorted(directory.iterdir()):
        if place.name.startswith(TEMPORARY):
            continue
        try:
            if (stored := _record(place)) is not None:
                found.append(((place / image_store.RECORD).stat().st_mtime_ns, stored))
        except (StoreError, OSError) as error:
            log.warning("fetched_image_left_out", directory=place.name, why=str(error))
    return [stored for _, stored in sorted(found, key=lambda each: each[0])]


def note_use(directory: Path, digest: str) -> None:
    """Make it the image that was used last, if it was fetched. Raises nothing: it only leaves sooner otherwise."""
    now_ns = time.time_ns()  # the file system's own time is coarser than two uses can be apart
    try:
        os.utime(place_of(directory, digest) / image_store.RECORD, ns=(now_ns, now_ns))
    except FileNotFoundError:
        return  # one of the settings
    except OSError as error:
        log.warning("image_use_not_noted", digest=digest, why=str(error))


def empty(directory: Path) -> None:
    """Make an empty directory of it."""
    remove_tree(directory)
    directory.mkdir(mode=0o755)


def into_place(staging: Path, target: Path) -> None:
    """Give what was fetched its name, in place of what was left out there."""
    take_away(target)
    staging.rename(target)
    sync_directory(target.parent)


def take_away(target: Path) -> None:
    """Remove it, whole or not at all: what a stop leaves is removed at the next start."""
    if os.path.lexists(target):
        removed = target.with_name(f"{TEMPORARY}{target.name}-removed")
        remove_tree(removed)
        target.rename(removed)
        remove_tree(removed)
