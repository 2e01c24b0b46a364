"""Whether what a sandbox mounts finds its place in what is mounted before: an image, an upload, a directory of a job's.

These come from anywhere, and may have anything there.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence

from tidegate_executor.sandbox.base import RequestRefusedError

OPAQUE = "user.overlay.opaque"  # as conversion marks a directory of which layers below have nothing
LAYERS = ("lower", "layer")
NAMES = {"lower": "image", "layer": "image", "workspace": "working directory"}


def check_places(plan: Sequence[tuple[str, str, str]], mounted: Mapping[str, bool]) -> None:
    """Refuse a mount plan in which something else is where something is mounted.

    `mounted` says of each place whether a directory is mounted there. Raises RequestRefusedError.
    """
    entries = [entry for entry in plan if entry[0] not in ("link", "device")]
    looked: set[str] = set()
    for target, is_directory in mounted.items():
        for place in _down_to(target):
            if place not in looked:
                looked.add(place)
                _refuse_link(entries, place, target)
        _refuse_kind(entries, mounted, target, is_directory=is_directory)


def _down_to(target: str) -> list[str]:
    parts = target.strip("/").split("/")
    return ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _within(place: str, base: str) -> str:
    """Return the rest of the path below the base, with its slash; nothing where it is not below it."""
    base = base.rstrip("/")
    return place[len(base) :] if place.startswith(f"{base}/") else ""


def _refuse_link(entries: list[tuple[str, str, str]], place: str, target: str) -> None:
    """Even one that another layer hides: it could lead out of what is being built."""
    for kind, source, base in entries:
        if (rest := _within(place, base)) and os.path.islink(source + rest):
            raise RequestRefusedError(
                f"the {NAMES.get(kind, f'mount at {base}')} has a link at {place}, where the sandbox mounts {target}; "
                f"a directory, a file or nothing is accepted there"
            )


def _refuse_kind(
    entries: list[tuple[str, str, str]], mounted: Mapping[str, bool], target: str, *, is_directory: bool
) -> None:
    above = [base for _, _, base in entries if _within(target, base)] + [
        each for each in mounted if _within(target, each)
    ]
    base = max(above, key=len, default="/")
    holding = [(kind, source) for kind, source, place in entries if place == base]
    if not holding or (holding[0][0] in LAYERS and base != "/"):
        return  # inside such layers a place is made that hides what they have there
    places = _down_to(target)[len(_down_to(base)) if base != "/" else 0 :]
    stack = [source for _, source in reversed(holding)]
    for place, mode in zip(places, _modes(stack, places), strict=False):
        wanted = is_directory or place != target
        if stat.S_ISDIR(mode) != wanted:
            has, accepted = ("a file", "a directory") if wanted else ("a directory", "a file")
            raise RequestRefusedError(
                f"the {NAMES.get(holding[0][0], f'mount at {base}')} has {has} at {place}, where the sandbox mounts "
                f"{target}; {accepted} or nothing is accepted there"
            )


def _modes(stack: list[str], places: list[str]) -> Iterator[int]:
    """What stacked directories, the topmost first, show at each of these places, until they show nothing there."""
    for place in places:
        name = os.path.basename(place)
        mode, merged = 0, []
        for top in stack:
            path = os.path.join(top, name)
            try:
                status = os.lstat(path)
            except (FileNotFoundError, NotADirectoryError, PermissionError):  # of the last a user's agent cannot know
                continue
            if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:  # what was below is removed
                break
            mode = mode or status.st_mode
            if not stat.S_ISDIR(status.st_mode):
                break
            merged.append(path)
            if top != stack[-1] and _is_opaque(path):
                break
        if not mode:
            return
        yield mode
        stack = merged


def _is_opaque(directory: str) -> bool:
    try:
        return os.getxattr(directory, OPAQUE) == b"y"
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise
        return False
