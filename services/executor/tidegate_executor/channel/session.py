"""One connection of one process: hello, then messages in order, each acknowledged once it is durable."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from tidegate import protocol

from tidegate_executor.channel import framing, messages
from tidegate_executor.channel.framing import FrameRefused
from tidegate_executor.channel.handler import (
    ChannelHandler,
    ClientInfo,
    HandlerBusy,
    HandlerUnavailable,
    MessageRefused,
    Origin,
)
from tidegate_executor.channel.rate import Rates, ReplicaRates
from tidegate_executor.channel.refusals import Refusals

VIOLATIONS_MAX = 100
"""Refused messages after which a connection is closed."""
DRAIN_SECONDS_MAX = 30.0
"""How long a process may leave our replies unread."""
UNREAD_BYTES_MAX = 1 << 20

_log = structlog.get_logger("tidegate.channel")

_Deliver = Callable[[Origin, Any], Awaitable[None]]


class Session:
    """After its hello was accepted. `run` ends with the connection and never raises for what the process sent."""

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        client: ClientInfo,
        hello: messages.Hello,
        handler: ChannelHandler,
        on_durable: Callable[[messages.Control], None],
    ) -> None:
        """`rates` and `refusals` may be set before `run`: to those shared with others of its replica or sandbox."""
        self._on_durable = on_durable
        self._reader, self._writer = streams
        self.client = client
        self._sandbox = client.origin.sandbox.id
        self.hello = hello
        self.ended = asyncio.Event()
        self._handler = handler
        self.rates = Rates(ReplicaRates())
        self.refusals = Refusals(self._sandbox)
        self._violations = 0
        self._expected = 0
        self._version = 0
        self._granted_seq = 0
        self._deliver: dict[type[messages.Message], _Deliver] = {
            messages.Phase: handler.on_phase,
            messages.Ask: handler.on_ask,
            messages.Publish: handler.on_publish,
            messages.Saved: handler.on_saved,
            messages.SaveFailed: handler.on_save_failed,
            messages.PartSaved: handler.on_part_saved,
            messages.PartFailed: handler.on_part_failed,
            messages.NotFreed: handler.on_not_freed,
            messages.Restored: handler.on_restored,
            messages.Suspended: handler.on_suspended,
            messages.Finished: handler.on_finished,
        }

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message to the process; a process that does not read is cut off."""
        if self._writer.transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self.abort()
        else:
            self._writer.write(framing.encode(message))

    def abort(self) -> None:
        """Cut the connection; `run` then ends."""
        self._writer.transport.abort()

    def welcome(self, version: int, resume: str | None, replicas: Mapping[str, int], hand_back_ns: int | None) -> None:
        """Answer the hello; `replicas` are the components that are scaled, and how many there are now.

        `hand_back_ns` is None while it is not known whether anything is recalled.
        """
        self._version = version
        high_water = self._handler.high_water(self.hello.client)
        self._expected = max(high_water + 1, self.hello.first_seq)
        more: dict[str, Any] = {"replicas": dict(replicas)} if replicas else {}
        if hand_back_ns is not None and self._knows_asks:
            more["hand_back"] = hand_back_ns
        self.send({"kind": "welcome", "protocol": version, "acked": self._expected - 1, "resume": resume, **more})

    @property
    def _knows_asks(self) -> bool:
        """Say whether the process is welcomed, and its version has phases that are asked for and handed back."""
        return self._version >= protocol.PROTOCOL_ASKS

    def grant(self, answer: dict[str, Any] | None) -> None:
        """Tell the process that it may enter the phase it waits for; once on each connection."""
        if answer is not None and answer["seq"] != self._granted_seq and self._knows_asks:
            self._granted_seq = answer["seq"]
            _log.info("channel.granted", sandbox=self._sandbox, client=self.hello.client, phase=answer["phase"])
            self.send({"kind": "granted", **answer})

    def hand_back(self, deadline_ns: int) -> None:
        """Tell the process that its phase is to be left by then; 0: it is not any more."""
        if self._knows_asks:
            self.send({"kind": "hand_back", "deadline_ns": deadline_ns})

    async def run(self, on_stop_count: Callable[[messages.StopCount], None]) -> None:
        """Read until the process leaves, misbehaves too often, or the handler cannot take its messages."""
        while self._violations < VIOLATIONS_MAX:
            try:
                body = await framing.read_frame(self._reader)
                if body is None:
                    return
                message = framing.decode(body)
                if isinstance(message, messages.Bye):
                    return
                if isinstance(message, messages.StopCount):
                    on_stop_count(message)
                else:
                    await self._take(message)
            except FrameRefused as refusal:
                self._refuse(refusal)
                if refusal.fatal:
                    break
            except HandlerUnavailable as reason:
                _log.warning("channel.unavailable", sandbox=self._sandbox, client=self.hello.client, reason=str(reason))
                return
            await self._drain()

    async def _take(self, message: messages.Incoming) -> None:
        if isinstance(message, messages.Report):
            self._check_rate("report", None)
            await self._handler.on_report(self.client.origin, message)
        elif isinstance(message, messages.Control):
            await self._take_control(message)
        elif isinstance(message, messages.AwaitJoin):
            self._handler.on_await_join(message, self.hello.client, self.send)
        else:
            raise FrameRefused("unexpected", "a second hello on one connection was refused")

    async def _take_control(self, message: messages.Control) -> None:
        seq = message.seq
        if seq < self._expected:  # said before: it has no effect again
            self.send({"kind": "ack", "seq": self._expected - 1})
            return
        if seq > self._expected:
            self.refusals.note(
                "out_of_order", f"message {seq} came", asyncio.get_running_loop().time(), self.hello.client
            )
            self.send({"kind": "error", "code": "out_of_order", "message": "", "expected": self._expected})
            return
        self._check_rate(str(message.__struct_config__.tag), seq)
        origin = self.client.origin
        stamped = Origin(
            sandbox=origin.sandbox,
            component=origin.component,
            replica=origin.replica,
            client=origin.client,
            seq=seq,
        )
        try:
            await self._deliver[type(message)](stamped, message)
        except MessageRefused as refusal:
            raise FrameRefused(refusal.code, str(refusal), seq=seq) from refusal
        except HandlerBusy as busy:
            raise _TooFast(str(message.__struct_config__.tag), seq, busy.retry_after_ms) from busy
        self._on_durable(message)
        self._expected = seq + 1
        self.send({"kind": "ack", "seq": seq})

    def _check_rate(self, kind: str, seq: int | None) -> None:
        retry_after_ms = self.rates.take(kind, asyncio.get_running_loop().time())
        if retry_after_ms:
            raise _TooFast(kind, seq, retry_after_ms)

    def _refuse(self, refusal: FrameRefused) -> None:
        reply: dict[str, Any] = {"kind": "error", "code": refusal.code, "message": str(refusal)}
        self.refusals.note(refusal.code, str(refusal), asyncio.get_running_loop().time(), self.hello.client)
        if isinstance(refusal, _TooFast):
            reply["retry_after_ms"] = refusal.retry_after_ms
        else:
            self._violations += 1
            if refusal.seq == self._expected:
                # The process will not send it again: the next one is due.
                self._expected += 1
        if refusal.seq is not None:
            reply["seq"] = refusal.seq
        self.send(reply)

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_SECONDS_MAX):
                await self._writer.drain()
        except TimeoutError:
            self.abort()
        except ConnectionError:
            return  # the next read ends the session


class _TooFast(FrameRefused):
    def __init__(self, kind: str, seq: int | None, retry_after_ms: int) -> None:
        super().__init__("rate_limited", f"too many {kind} messages: try again in {retry_after_ms} ms", seq=seq)
        self.retry_after_ms = retry_after_ms
