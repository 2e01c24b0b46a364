"""Frames, the unit of writing: one journal message holds the events that one writer appended together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Literal, TypeVar, get_args

import msgspec

from tidegate_events.events import AnyEvent, Event
from tidegate_events.upcasters import UPCASTERS, Upcaster, UpcastError, upcast, version_of

Service = Literal["gateway", "scheduler", "node", "checkpoint", "metrics", "keeper"]
MAX_FRAME_BYTES = 900_000  # below the bus's 1 MiB message limit, headers included


class Writer(msgspec.Struct, frozen=True, gc=False):
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


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One atomic append."""

    writer: Writer
    events: tuple[AnyEvent, ...]


class UnreadableFrameError(Exception):
    """A journal message is not a frame this version can read; history must not be skipped, so readers stop."""


KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(AnyEvent)}
VERSIONS: dict[str, int] = {name: version_of(kind) for name, kind in KINDS.items()}

_MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_FrameT = TypeVar("_FrameT", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()


def encode(frame: Frame) -> bytes:
    """Return the wire form: JSON, in a byte-stable order. Raises ValueError for a frame that is empty or too large."""
    if not frame.events:
        raise ValueError("a frame needs at least one event")
    data = _encoder.encode(frame)
    if len(data) > MAX_FRAME_BYTES:
        raise ValueError(f"frame of {len(data)} bytes refused: the bus takes {MAX_FRAME_BYTES}; append it in parts")
    return data


class FrameDecoder(Generic[_FrameT]):
    """Reads frames. Today's versions are decoded at once; only a frame that is not of them is looked at again."""

    def __init__(
        self,
        frame: type[_FrameT],
        versions: Mapping[str, int],
        upcasters: Mapping[tuple[str, int], Upcaster],
    ) -> None:
        self._frame = frame
        self._versions = versions
        self._upcasters = upcasters
        self._decode = msgspec.json.Decoder(frame).decode

    def decode(self, data: bytes) -> _FrameT:
        """Return the frame in `data`, its events of earlier versions as today's.

        Raises UnreadableFrameError for anything that is no frame, or of a newer version.
        """
        try:
            return self._decode(data)
        except _MALFORMED as error:
            return self._decode_other_version(data, error)

    def _decode_other_version(self, data: bytes, refusal: Exception) -> _FrameT:
        try:
            document = msgspec.json.decode(data)
            if not isinstance(document, dict) or not isinstance(events := document.get("events"), list):
                raise refusal
            today = [self._upcast(event) for event in events]
            if today == events:
                raise refusal
            return msgspec.convert({**document, "events": today}, self._frame)
        except UpcastError as error:
            raise UnreadableFrameError(str(error)) from error
        except _MALFORMED as error:
            raise UnreadableFrameError(f"not a frame: {error}; begins {data[:80]!r}") from error

    def _upcast(self, event: object) -> object:
        return upcast(event, self._versions, self._upcasters) if isinstance(event, dict) else event


decode = FrameDecoder(Frame, VERSIONS, UPCASTERS).decode
