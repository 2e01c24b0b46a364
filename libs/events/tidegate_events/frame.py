"""Frames, the unit of writing: one journal message holds the events that one writer appended together."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from tidegate_events.events import AnyEvent, Event

Service = Literal["gateway", "scheduler", "node", "checkpoint", "metrics", "keeper"]
MAX_FRAME_BYTES = 900_000  # below the bus's 1 MiB message limit, headers included


class Writer(msgspec.Struct, frozen=True):
    """Who wrote a frame. `writer_seq` counts up within (service, instance, epoch), so a late duplicate is known."""

    service: Service
    instance: str
    epoch: int
    writer_seq: int

    @property
    def frame_id(self) -> str:
        """Return the frame's unique id, which the bus also uses to drop quick duplicates."""
        return f"{self.service}/{self.instance}/{self.epoch}/{self.writer_seq}"

    def event_id(self, index: int) -> str:
        """Return the id of the fact at `index` of this frame."""
        return f"{self.service}-{self.instance}-{self.epoch}-{self.writer_seq}-{index}"


class Frame(msgspec.Struct, frozen=True):
    """One atomic append."""

    writer: Writer
    events: tuple[AnyEvent, ...]


class UnreadableFrameError(Exception):
    """A journal message is not a frame this version can read; history must not be skipped, so readers stop."""


KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(AnyEvent)}

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Frame)


def encode(frame: Frame) -> bytes:
    """Return the wire form: JSON, in a byte-stable order. Raises ValueError for a frame that is empty or too large."""
    if not frame.events:
        raise ValueError("a frame needs at least one event")
    data = _encoder.encode(frame)
    if len(data) > MAX_FRAME_BYTES:
        raise ValueError(f"frame of {len(data)} bytes refused: the bus takes {MAX_FRAME_BYTES}; append it in parts")
    return data


def decode(data: bytes) -> Frame:
    """Return the frame in `data`. Raises UnreadableFrameError for anything that is not one, or of a newer version."""
    try:
        frame = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableFrameError(f"not a frame: {error}; begins {data[:80]!r}") from error
    for event in frame.events:
        if event.v != 1:
            raise UnreadableFrameError(f"{type(event).__name__} v{event.v} is newer than this reader, which knows v1")
    return frame
