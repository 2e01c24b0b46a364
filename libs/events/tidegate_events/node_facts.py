"""Facts of a node's agent about the node itself: what it has for jobs."""

from __future__ import annotations

import msgspec

from tidegate_events.envelope import Event
from tidegate_events.records import HeldSandbox
from tidegate_events.resources import GpuDevice, Resources


class NodeJoined(Event, frozen=True, kw_only=True):
    """A node agent (re)started: what it has, and which sandboxes it still holds.

    Where it stands is the operator's word. A node that names no `switch` is taken to share one with no other node.
    One that says nothing of `fetches_images` gets none beside those it has, and is hinted none.
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


class NodeImagesChanged(Event, frozen=True, kw_only=True):
    """The images that a node has from now on, by name and digest, and those it was hinted and could not get."""

    node: str
    incarnation: int
    images: dict[str, str]
    unavailable: tuple[str, ...] = ()
