"""Whether what a sandbox mounts finds its place in an image: layers come from anywhere, and may have anything there."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence

from tidegate_executor.sandbox.base import RequestRefusedError

OPAQUE = "user.overlay.opaque"  # as conversion marks a directory of which layers below have nothing


def check_places(image: Sequence[tuple[str, str, str]], mounted: Mapping[str, bool]) -> None:
    """Refuse an image, of entries of a mount plan, that has something else where something is mounted.

    `mounted` says of each place whether a directory is mounted there. Raises RequestRefusedError.
    """
    layers = [(source, target.rstrip("/")) for kind, source, target in image if kind in ("lower", "layer")]
    bases = {base for _, base in layers if base}
    roots = [source for source, base in reversed(layers) if not base]
    looked: set[str] = set()
    for target, is_directory in mounted.items():
        for place in _down_to(target):
            if place not in looked:
                looked.add(place)
                _refuse_link(layers, place, target)
        # Inside other layers a place is made that hides what they have there, and other mounts hide it too.
        if not any(place in bases or place in mounted for place in _down_to(target)[:-1]):
            _refuse_kind(roots, target, is_directory=is_directory)


def _down_to(target: str) -> list[str]:
    parts = target.strip("/").split("/")
    return ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _refuse_link(layers: list[tuple[str, str]], place: str, target: str) -> None:
    """Even one that another layer hides: it could lead out of what is being built."""
    for source, base in layers:
        if place.startswith(f"{base}/") and os.path.islink(source + place[len(base) :]):
            raise RequestRefusedError(
                f"the image has a link at {place}, where the sandbox mounts {target}; a directory, a file or "
                f"nothing is accepted there"
            )


def _refuse_kind(roots: list[str], target: str, *, is_directory: bool) -> None:
    places = _down_to(target)
    for place, mode in zip(places, _modes(roots, places), strict=False):
        wanted = is_directory or place != target
        if stat.S_ISDIR(mode) != wanted:
            has, accepted = ("a file", "a directory") if wanted else ("a directory", "a file")
            raise RequestRefusedError(
                f"the image has {has} at {place}, where the sandbox mounts {target}; {accepted} or nothing is accepted "
                f"there"
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
            except (FileNotFoundError, NotADirectoryError):
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
