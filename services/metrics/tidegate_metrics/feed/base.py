"""The port of telemetry: messages of samples in the order of the stream, from a point in time on.

Unlike the journal the stream may lose its oldest messages, and the whole of itself when the bus starts again: its name
is therefore part of every position.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

import msgspec
from tidegate_events import telemetry
from tidegate_events.telemetry import Sample


class Message(msgspec.Struct, frozen=True):
    """One message. `stream` is the time the stream was made, so that sequences of two streams are not mixed up."""

    stream: str
    seq: int
    at_ns: int
    samples: tuple[Sample, ...]
    unreadable: int = 0
    foreign: int = 0


def read(stream: str, seq: int, at_ns: int, subject: str, data: bytes) -> Message:
    """Return the message; what cannot be read, or speaks of another node than the subject's, is counted instead."""
    try:
        samples = telemetry.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Message(stream, seq, at_ns, (), unreadable=1)
    node = subject.rpartition(".")[2]
    own = tuple(sample for sample in samples if sample.node == node)
    return Message(stream, seq, at_ns, own, foreign=len(samples) - len(own))


class Feed(Protocol):
    """Where telemetry comes from."""

    def follow(self, since_ns: int) -> AsyncGenerator[Message, None]:
        """Yield every message that arrived after `since_ns`, for ever, across reconnects."""
        ...
