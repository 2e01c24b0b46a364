"""Frames on an asyncio stream, and their strict decoding."""

import asyncio
import json
import struct
from typing import Any

import msgspec
from tidegate import protocol

from tidegate_executor.channel import messages

_LENGTH = struct.Struct(">I")
_decoder: msgspec.json.Decoder[messages.Incoming] = msgspec.json.Decoder(messages.Incoming)


class _Versions(msgspec.Struct):
    """What every version of a hello has, so that a version this build does not know can be told so."""

    protocol: tuple[int, int]
    kind: str


class _Sequence(msgspec.Struct):
    seq: int


_versions_decoder = msgspec.json.Decoder(_Versions)
_sequence_decoder = msgspec.json.Decoder(_Sequence)


class FrameRefused(Exception):
    """What came is not an acceptable message; `fatal` when the stream cannot be read on from here."""

    def __init__(self, code: str, text: str, *, fatal: bool = False, seq: int | None = None) -> None:
        super().__init__(text[: protocol.TEXT_CHARS_MAX])
        self.code = code
        self.fatal = fatal
        self.seq = seq


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next frame's body, or None at the end of the stream; FrameRefused when it is too long."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > protocol.FRAME_BYTES_MAX:
            raise FrameRefused(
                "frame_too_long",
                f"a frame of {length} bytes was refused: at most {protocol.FRAME_BYTES_MAX} are accepted",
                fatal=True,
            )
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def encode(message: dict[str, Any]) -> bytes:
    """Return one frame for the job."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes) -> messages.Incoming:
    """Return the message in a frame; FrameRefused, with its `seq` where it has one, when it is not acceptable."""
    try:
        message = _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameRefused("malformed", f"a message was refused: {error}", seq=_sequence(body)) from error
    if isinstance(message, messages.Publish):
        _check_publish(message)
    elif isinstance(message, messages.Finished):
        size = len(msgspec.json.encode(message.result))
        if size > protocol.RESULT_BYTES_MAX:
            text = f"a result of {size} bytes was refused: {protocol.RESULT_BYTES_MAX} are accepted"
            raise FrameRefused("result_too_large", text, seq=message.seq)
    return message


def _check_publish(message: messages.Publish) -> None:
    event = message.event
    if event in protocol.RESERVED_EVENT_KINDS or event.startswith("Tidegate"):
        raise FrameRefused("reserved_kind", f"event kind {event} is one of Tidegate's own", seq=message.seq)
    size = len(msgspec.json.encode(message.payload))
    if size > protocol.PAYLOAD_BYTES_MAX:
        text = f"a payload of {size} bytes was refused: {protocol.PAYLOAD_BYTES_MAX} are accepted"
        raise FrameRefused("payload_too_large", text, seq=message.seq)
    if not protocol.within_depth(message.payload):
        text = f"a payload nested more than {protocol.PAYLOAD_DEPTH_MAX} deep was refused"
        raise FrameRefused("payload_too_deep", text, seq=message.seq)


def _sequence(body: bytes) -> int | None:
    try:
        return _sequence_decoder.decode(body).seq
    except (msgspec.MsgspecError, RecursionError):
        return None


def negotiate(body: bytes) -> int:
    """Return the protocol version for a hello; FrameRefused when there is no common one or it is no hello."""
    try:
        hello = _versions_decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameRefused("malformed", f"the first message must be a hello: {error}", fatal=True) from error
    if hello.kind != "hello":
        raise FrameRefused("hello_first", f"the first message must be a hello, not {hello.kind!r}", fatal=True)
    oldest, newest = hello.protocol
    version = min(newest, protocol.PROTOCOL_MAX)
    if version < max(oldest, protocol.PROTOCOL_MIN):
        raise FrameRefused(
            "protocol_mismatch",
            f"this SDK speaks protocol {oldest} to {newest}, this agent {protocol.PROTOCOL_MIN} to "
            f"{protocol.PROTOCOL_MAX}: mount the SDK that belongs to the agent",
            fatal=True,
        )
    return version
