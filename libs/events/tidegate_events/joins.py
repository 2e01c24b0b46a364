"""What a node's agent asks the checkpoint service about a save of a gang on several nodes, and the answers.

Asked again until it is decided, so a question or an answer may be lost, and any service that follows the journal
may answer.
"""

from __future__ import annotations

from typing import Literal

import msgspec

JOIN_SUBJECT = "tg.ask.checkpoint.join"
JOIN_QUEUE = "checkpoint-join"


class JoinQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of the save of which this part was stored?"""

    job: str
    save: str
    part_id: str


class Waiting(msgspec.Struct, frozen=True, tag_field="outcome", tag="waiting"):
    """It is not decided, as far as whoever answers knows."""


class Joined(msgspec.Struct, frozen=True, tag_field="outcome", tag="joined", kw_only=True):
    """It is a checkpoint, durable in `tier`, and the part is in it; `directory` is the name of its root."""

    checkpoint_id: str
    directory: str
    tier: Literal["warm", "cold"]


class Vetoed(msgspec.Struct, frozen=True, tag_field="outcome", tag="vetoed"):
    """It is no checkpoint, or one without this part; `why` in words."""

    why: str


Answer = Waiting | Joined | Vetoed
_decoder: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def decode_answer(data: bytes) -> Answer:
    """Return the answer in `data`; raises msgspec.MsgspecError for anything else."""
    return _decoder.decode(data)
