"""What the agents of a gang's nodes tell each other, on core NATS: lost, repeated and reordered at will.

Each message holds all that its sender knows of the attempt, so any of them may be dropped and the newest one is enough.
Who speaks is the subject's word and not the message's: a node's login may only publish as itself.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidegate_executor.channel.messages import Count, GroupName

GROUPS_MAX = 512
Counts = Annotated[dict[GroupName, Count], msgspec.Meta(max_length=GROUPS_MAX)]


class Told(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """Common options: which attempt it is about; `gone`: the sender has nothing of it any more."""

    job: str
    attempt: int
    gone: bool = False


class Joined(Told, frozen=True, kw_only=True, tag="joined"):
    """To the leading node. `ready`: every member there stands; `begun`: they were allowed to begin.

    `counts` are the calls that each stop group there has made, once its processes hold their next one; `known` are
    calls at which groups stop already. `settled`: the sender knows at which call the gang stops.
    """

    ready: bool = False
    begun: bool = False
    counts: Counts | None = None
    known: Counts = {}
    settled: bool = False


class Led(Told, frozen=True, kw_only=True, tag="led"):
    """From the leading node, that of rank 0. `go`: every member stands, so begin. `stop_at`: where each group stops."""

    go: bool = False
    stop_at: Counts | None = None


Message = Joined | Led
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return the wire form (JSON)."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """Return the message in `data`; raises msgspec.MsgspecError for anything else."""
    return _decoder.decode(data)
