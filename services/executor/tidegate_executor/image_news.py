"""What an agent says of its images: each that came, each that left, and each that could not be had, since it last said.

Pure: the difference of what was told and what there is. NodeJoined tells all that there is then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from tidegate_events.events import AnyEvent, ImageCached, ImageEvicted, ImageUnavailable


class Images(msgspec.Struct, frozen=True, kw_only=True):
    """The images here, digests by name; of each digest its bytes, where they are known; and what could not be had."""

    digests: Mapping[str, str] = {}
    size_bytes: Mapping[str, int] = {}
    unavailable: tuple[str, ...] = ()


def since(told: Images, now: Images, stamp: tuple[str, int, int]) -> list[AnyEvent]:
    """Return what is to be said; the stamp is the node, its incarnation and the time in ns. What left comes first."""
    gone = [(name, told) for name, told in told.digests.items() if now.digests.get(name) != told]
    come = [(name, digest) for name, digest in now.digests.items() if told.digests.get(name) != digest]
    return [
        *_each(ImageEvicted, gone, {**told.size_bytes, **now.size_bytes}, stamp),
        *_each(ImageCached, come, now.size_bytes, stamp),
        *(
            ImageUnavailable(id="", at_ns=stamp[2], node=stamp[0], incarnation=stamp[1], image=image)
            for image in now.unavailable
            if image not in told.unavailable
        ),
    ]


def _each(
    kind: type[ImageCached] | type[ImageEvicted],
    images: Iterable[tuple[str, str]],
    size_bytes: Mapping[str, int],
    stamp: tuple[str, int, int],
) -> list[AnyEvent]:
    node, incarnation, at_ns = stamp
    return [
        kind(
            id="",
            at_ns=at_ns,
            node=node,
            incarnation=incarnation,
            image=name,
            digest=digest,
            size_bytes=size_bytes.get(digest, 0),
        )
        for name, digest in sorted(images)
    ]
