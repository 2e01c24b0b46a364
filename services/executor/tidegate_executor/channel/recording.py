"""A handler that keeps everything in memory: for tests, and to see what a job says."""

from dataclasses import dataclass, field
from typing import Any

from tidegate_executor.channel import messages
from tidegate_executor.channel.handler import ClientInfo, Origin, Send


@dataclass
class RecordingHandler:
    """Implements ChannelHandler. Set `failure` to have the next control message raise it."""

    hellos: list[ClientInfo] = field(default_factory=list)
    controls: list[tuple[Origin, messages.Control]] = field(default_factory=list)
    reports: list[messages.Report] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    awaited: list[tuple[messages.AwaitJoin, Send]] = field(default_factory=list)
    failure: Exception | None = None

    def high_water(self, client: str) -> int:
        """Return the highest recorded `seq` of this client."""
        return max((origin.seq for origin, _ in self.controls if origin.client == client), default=0)

    def of(self, kind: type[messages.Control]) -> list[Any]:
        """Return the recorded messages of one kind."""
        return [message for _, message in self.controls if isinstance(message, kind)]

    async def on_hello(self, client: ClientInfo) -> None:
        """Record it."""
        self.hellos.append(client)

    async def on_report(self, origin: Origin, message: messages.Report) -> None:
        """Record it."""
        self.reports.append(message)

    async def on_phase(self, origin: Origin, message: messages.Phase) -> None:
        """Record it."""
        self._record(origin, message)

    async def on_ask(self, origin: Origin, message: messages.Ask) -> None:
        """Record it."""
        self._record(origin, message)

    def on_gone(self, client: str) -> None:
        """Record it."""
        self.gone.append(client)

    async def on_publish(self, origin: Origin, message: messages.Publish) -> None:
        """Record it."""
        self._record(origin, message)

    async def on_saved(self, origin: Origin, message: messages.Saved) -> None:
        """Record it."""
        self._record(origin, message)

    async def on_save_failed(self, origin: Origin, message: messages.SaveFailed) -> None:
        """Record it."""
        self._record(origin, message)

    async def on_part_saved(self, origin: Origin, message: messages.PartSaved) -> None:
        """Record it."""
        self._record(origin, message)

    async def on_part_failed(self, origin: Origin, message: messages.PartFailed) -> None:
        """Record it."""
        self._record(origin, message)

    def on_await_join(self, message: messages.AwaitJoin, client: str, send: Send) -> None:
        """Record it, and how it is answered."""
        self.awaited.append((message, send))

    async def on_not_freed(self, origin: Origin, message: messages.NotFreed) -> None:
        """Record it."""
        self._record(origin, message)

    async def on_restored(self, origin: Origin, message: messages.Restored) -> None:
        """Record it."""
        self._record(origin, message)

    async def on_suspended(self, origin: Origin, message: messages.Suspended) -> None:
        """Record it."""
        self._record(origin, message)

    async def on_finished(self, origin: Origin, message: messages.Finished) -> None:
        """Record it."""
        self._record(origin, message)

    def _record(self, origin: Origin, message: messages.Control) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        self.controls.append((origin, message))
