"""What the agent implements to hear a job: one coroutine per kind of message, and the memory of what was heard.

A callback that returns has made its message durable: the job is told so and forgets it. So a handler writes the
fact together with `origin.client` and `origin.seq` in one record, and `high_water` answers from those records.
"""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from tidegate_executor.channel import messages


class Sandbox(msgspec.Struct, frozen=True):
    """Whose socket it is; the job cannot say otherwise."""

    job: str
    attempt: int
    rank: int

    @property
    def id(self) -> str:
        """Return the sandbox's id, as everywhere."""
        return f"{self.job}.{self.attempt}.{self.rank}"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message comes from; `seq` is 0 for the kinds that are not acknowledged (report)."""

    sandbox: Sandbox
    component: str
    replica: int
    client: str
    seq: int


class ClientInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A process that connected. `peer_pid` is the kernel's word (host numbering), `pid` the process's own."""

    origin: Origin
    pid: int
    peer_pid: int
    peer_uid: int
    sdk: str
    python: str
    protocol: int


class MessageRefused(Exception):
    """Raised by a handler to refuse one message for good; `code` and the text go back to the job."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class HandlerUnavailable(Exception):
    """Raised by a handler that cannot make a message durable now: the job keeps it and sends it again later."""


class HandlerBusy(Exception):
    """Raised by a handler that takes no more messages of this kind now: the job sends it again after a while."""

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__(f"try again in {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


Send = Callable[[dict[str, Any]], None]


class ChannelHandler(Protocol):
    """The agent's side of the channel. Any exception other than the three above is a fault and is not caught."""

    def high_water(self, client: str) -> int:
        """Return the highest `seq` of this client that is durable, 0 for an unknown one."""

    async def on_hello(self, client: ClientInfo) -> None:
        """A process connected, or came back after the agent or its connection went away."""

    async def on_phase(self, origin: Origin, message: messages.Phase) -> None:
        """The process changed its phase."""

    async def on_ask(self, origin: Origin, message: messages.Ask) -> None:
        """The process waits for a phase, or no longer."""

    def on_gone(self, client: str) -> None:
        """A process is not connected any more; it may come back."""

    async def on_report(self, origin: Origin, message: messages.Report) -> None:
        """Metrics; not acknowledged, so this must be cheap and need not be durable."""

    async def on_publish(self, origin: Origin, message: messages.Publish) -> None:
        """An event of the user's own."""

    async def on_saved(self, origin: Origin, message: messages.Saved) -> None:
        """A checkpoint is durable in the hot directory (the agent may check its root)."""

    async def on_save_failed(self, origin: Origin, message: messages.SaveFailed) -> None:
        """A save failed; the job knows."""

    async def on_part_saved(self, origin: Origin, message: messages.PartSaved) -> None:
        """This node's part of a checkpoint of several nodes is durable (the agent may look at it)."""

    async def on_part_failed(self, origin: Origin, message: messages.PartFailed) -> None:
        """This node has no part in a checkpoint of several nodes."""

    def on_await_join(self, message: messages.AwaitJoin, client: str, send: Send) -> None:
        """The process waits to be told, by `send`, what becomes of a part; until it is gone."""

    async def on_not_freed(self, origin: Origin, message: messages.NotFreed) -> None:
        """Devices that are recalled are not handed back."""

    async def on_restored(self, origin: Origin, message: messages.Restored) -> None:
        """The job loads this checkpoint; it may be older than the one named to it, when that one was corrupt."""

    async def on_suspended(self, origin: Origin, message: messages.Suspended) -> None:
        """The explicit acknowledgement of a stop."""

    async def on_finished(self, origin: Origin, message: messages.Finished) -> None:
        """The explicit completion, with its result."""
