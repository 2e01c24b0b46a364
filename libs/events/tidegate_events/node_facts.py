"""Facts of a node's agent about the node itself: what it has for jobs."""

from __future__ import annotations

import msgspec

from tidegate_events.envelope import Event
from tidegate_events.records import HeldSandbox
from tidegate_events.resources import GpuDevice, Resources


class NodeJoined(Event, frozen=True, kw_only=True):
    """A node agent (re)started: what it has, and which sandboxes it still holds.

    Where it stands is the operator's word. A node that names no `switch` is taken to share one with no other node.
    One that says nothing of `fetches_images` gets none beside those it has, and is hinted none. `gpu_levels` are those
    of its `levels` at which a sandbox can have GPUs; None: all of them.
    """

    node: str
    incarnation: int
    capacity: Resources
    levels: tuple[str, ...]
    images: dict[str, str] = msgspec.field(default_factory=dict)
    gpus: tuple[GpuDevice, ...] = ()
    cpu_model: str = ""
    isa: str = ""
    sandboxes: tuple[HeldSandbox, ...] = ()
    rack: str = ""
    switch: str = ""
    address: str = ""
    fetches_images: bool = False
    gpu_levels: tuple[str, ...] | None = None


class ImageCached(Event, frozen=True, kw_only=True):
    """An image can be mounted on the node from now on; `size_bytes` is what it takes of its disk (0: not known)."""

    node: str
    incarnation: int
    image: str
    digest: str
    size_bytes: int = 0


class ImageEvicted(Event, frozen=True, kw_only=True):
    """An image is not on the node any more: it made room, or its name is another image's now."""

    node: str
    incarnation: int
    image: str
    digest: str
    size_bytes: int = 0


class ImageUnavailable(Event, frozen=True, kw_only=True):
    """The node was hinted an image and could not get it; its log says why."""

    node: str
    incarnation: int
    image: str


class NodeImagesChanged(Event, frozen=True, kw_only=True):
    """All images that a node had, and those it could not get; agents said this before they told of each one."""

    node: str
    incarnation: int
    images: dict[str, str]
    unavailable: tuple[str, ...] = ()
