"""What the spool writes: frames for the journal, events for users, the state that goes with them, and acks."""

from __future__ import annotations

import msgspec
from tidegate_events.frame import Frame


class UserMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A user's own event on its way to the stream USER; `id` is unique, for the stream to drop quick duplicates."""

    id: str
    subject: str
    body: msgspec.Raw


class Put(msgspec.Struct, frozen=True, omit_defaults=True, tag="put"):
    """What became durable together. `states` maps a key to its new JSON value, null where it is forgotten."""

    number: int
    frame: Frame | None = None
    user: tuple[UserMessage, ...] = ()
    states: dict[str, msgspec.Raw] = {}


class Acks(msgspec.Struct, frozen=True, tag="acks"):
    """Frames up to put `facts`, and user messages up to put `user`, need not be sent again."""

    facts: int
    user: int


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Put | Acks)


def encode(record: Put | Acks) -> bytes:
    """Return the record as JSON."""
    return _encoder.encode(record)


def decode(data: bytes) -> Put | Acks:
    """Return the record in `data`; raises msgspec.MsgspecError for anything else."""
    return _decoder.decode(data)
