"""The agent's end of one sandbox's socket: accepts its processes, hears them, and tells them when to stop.

Whose messages they are follows from the socket. Nothing that a sandbox sends can raise out of `run`.
"""

import asyncio
import errno
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from tidegate_executor.channel import framing, listening, messages
from tidegate_executor.channel.framing import FrameRefused
from tidegate_executor.channel.handler import ChannelHandler, ClientInfo, HandlerUnavailable, Origin, Sandbox
from tidegate_executor.channel.rate import Bucket, Rates, ReplicaRates
from tidegate_executor.channel.refusals import Refusals
from tidegate_executor.channel.session import Session
from tidegate_executor.channel.stop_group import StopGroup

CLIENTS_MAX = 256
CONNECTS_PER_SECOND, CONNECTS_BURST = 50, 300
HELLO_SECONDS_MAX = 10.0
TAKEOVER_SECONDS_MAX = 10.0
"""How long a process that came back waits for its earlier connection's last message."""
_ACCEPT_PAUSE_SECONDS = 0.2
_ACCEPT_AGAIN = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)

_log = structlog.get_logger("tidegate.channel")


class ChannelServer:
    """One per sandbox. `open` binds the socket, `run` serves until it is cancelled, `close` ends both."""

    def __init__(
        self,
        sandbox: Sandbox,
        components: Mapping[str, int],
        handler: ChannelHandler,
        stop_group: StopGroup | None = None,
        resume: str | None = None,
    ) -> None:
        """`components` maps each component of the sandbox to its replicas; others may not connect.

        `resume` is the id of the checkpoint to continue from; it may be set again later (a component that restarts
        within the attempt continues from the newest).
        """
        self.sandbox = sandbox
        self.resume = resume
        self._replicas: dict[str, int] = {}
        self._grants: Mapping[str, dict[str, Any]] = {}
        self._hand_back_ns: int | None = None  # not known yet
        self.stop_group = stop_group if stop_group is not None else StopGroup()
        self._components = dict(components)
        self._handler = handler
        self._socket: socket.socket | None = None
        self._sessions: dict[str, Session] = {}
        self._connections = 0
        self._rates: dict[tuple[str, int], ReplicaRates] = {}  # one for each declared replica that ever connected
        self._refusals = Refusals(sandbox.id)
        self._connects = Bucket(CONNECTS_PER_SECOND, CONNECTS_BURST)
        self.ever_connected = False
        self.acknowledged: set[tuple[str, int]] = set()
        """(component, replica) of the processes that acknowledged their suspension to this server."""
        self.finished: set[tuple[str, int]] = set()
        self.faults = 0
        """Messages on which the handler failed in a way it does not declare."""

    @property
    def connected(self) -> int:
        """Return how many processes are connected now."""
        return len(self._sessions)

    @property
    def polls_stop(self) -> bool:
        """Return whether a process has called should_stop(); known once a stop was ordered and answered."""
        return self.stop_group.polled

    def tell_replicas(self, counts: Mapping[str, int]) -> None:
        """Tell the processes how many of each scaled component there shall be; nothing is said that they know."""
        if counts == self._replicas:
            return
        self._replicas = dict(counts)
        for session in self._sessions.values():
            session.send({"kind": "replicas", "counts": self._replicas})

    def tell_grants(self, grants: Mapping[str, dict[str, Any]]) -> None:
        """Answer the asks of these clients, now or when they come back; nothing is said that they know."""
        self._grants = grants
        for client, session in self._sessions.items():
            session.grant(grants.get(client))

    def tell_hand_back(self, deadline_ns: int) -> None:
        """Tell the processes by when their phase is to be left (0: it is not); nothing is said that they know."""
        if deadline_ns == self._hand_back_ns:
            return
        self._hand_back_ns = deadline_ns
        for session in self._sessions.values():
            session.hand_back(deadline_ns)

    def open(self, path: Path, owner: tuple[int, int] | None = None) -> None:
        """Bind the socket at `path`; processes can connect from now on, and are answered once `run` runs."""
        self._socket = listening.listen(path, owner)

    def stop(self, reason: str, deadline_ns: int, *, here_only: bool = False) -> None:
        """Order the job's processes to stop by `deadline_ns` (wall clock); harmless when repeated.

        `here_only`: those on other nodes have not been ordered to.
        """
        self.stop_group.order(reason, deadline_ns, here_only=here_only)

    def close(self) -> None:
        """Close the socket and cut every connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        for session in self._sessions.values():
            session.abort()

    async def run(self) -> None:
        """Serve until cancelled or closed."""
        assert self._socket is not None, "open() comes before run()"
        self.stop_group.opened()
        try:
            async with asyncio.TaskGroup() as tasks:
                while (listening_socket := self._socket) is not None:
                    connection = await self._accept(listening_socket)
                    if connection is not None:
                        tasks.create_task(self._serve(connection))
        finally:
            self.close()

    async def _accept(self, listening_socket: socket.socket) -> socket.socket | None:
        loop = asyncio.get_running_loop()
        try:
            connection, _ = await loop.sock_accept(listening_socket)
        except OSError as error:
            if self._socket is None:
                return None
            if error.errno not in _ACCEPT_AGAIN:
                raise
            _log.warning("channel.accept", sandbox=self.sandbox.id, error=str(error))
            await asyncio.sleep(_ACCEPT_PAUSE_SECONDS)
            return None
        if self._connections >= CLIENTS_MAX or self._connects.take(loop.time()):
            self._refusals.note("too_many_connections", f"{self._connections} are open", loop.time())
            connection.close()
            return None
        return connection

    async def _serve(self, connection: socket.socket) -> None:
        self._connections += 1
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            await self._converse(connection, reader, writer)
        except FrameRefused as refusal:
            self._refusals.note(refusal.code, str(refusal), asyncio.get_running_loop().time())
            writer.write(framing.encode({"kind": "error", "code": refusal.code, "message": str(refusal)}))
        except (ConnectionError, HandlerUnavailable) as reason:
            _log.info("channel.closed", sandbox=self.sandbox.id, reason=str(reason))
        except Exception:  # noqa: BLE001 - logged with its trace and counted
            # A fault of the agent's own must not take the node's other sandboxes along. The message was not
            # acknowledged, so the job sends it again; the count makes the fault visible.
            self.faults += 1
            _log.exception("channel.fault", sandbox=self.sandbox.id)
        finally:
            self._connections -= 1
            writer.close()

    async def _converse(
        self, connection: socket.socket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with asyncio.timeout(HELLO_SECONDS_MAX):
                body = await framing.read_frame(reader)
        except TimeoutError as error:
            text = f"no hello came within {HELLO_SECONDS_MAX:g} s"
            raise FrameRefused("hello_first", text) from error
        if body is None:
            return
        version = framing.negotiate(body)
        hello = framing.decode(body)
        assert isinstance(hello, messages.Hello)
        client = self._identify(hello, version, listening.peer(connection))
        await self._take_over(hello.client)
        place = (hello.component, hello.replica)

        def on_durable(message: messages.Control) -> None:
            if isinstance(message, messages.Suspended):
                self.acknowledged.add(place)
            elif isinstance(message, messages.Finished):
                self.finished.add(place)

        session = Session((reader, writer), client, hello, self._handler, on_durable)
        session.rates = Rates(self._rates.setdefault(place, ReplicaRates()))
        session.refusals = self._refusals
        self._sessions[hello.client] = session
        try:
            await self._handler.on_hello(client)
            self.ever_connected = True
            session.welcome(version, self.resume, self._replicas, self._hand_back_ns)
            session.grant(self._grants.get(hello.client))
            await self._attend(session)
        finally:
            if self._sessions.get(hello.client) is session:
                del self._sessions[hello.client]
                self._handler.on_gone(hello.client)
            session.ended.set()

    async def _attend(self, session: Session) -> None:
        hello = session.hello
        send = session.send

        def on_stop_count(answer: messages.StopCount) -> None:
            self.stop_group.answer(hello.client, hello.stop_group, (answer.vote, answer.calls, answer.stop_at))

        self.stop_group.join(hello.client, hello.stop_group, hello.stop_at, send)
        try:
            await session.run(on_stop_count)
        finally:
            self.stop_group.leave(hello.client, hello.stop_group, send)

    def _identify(self, hello: messages.Hello, version: int, peer: tuple[int, int]) -> ClientInfo:
        replicas = self._components.get(hello.component, 0)
        if hello.replica >= replicas:
            known = ", ".join(f"{name} (replicas 0 to {count - 1})" for name, count in self._components.items())
            raise FrameRefused(
                "unknown_component",
                f"component {hello.component!r} replica {hello.replica} was refused: this sandbox has {known}",
            )
        origin = Origin(
            sandbox=self.sandbox,
            component=hello.component,
            replica=hello.replica,
            client=hello.client,
            seq=0,
        )
        return ClientInfo(
            origin=origin,
            pid=hello.pid,
            peer_pid=peer[0],
            peer_uid=peer[1],
            sdk=hello.sdk,
            python=hello.python,
            protocol=version,
        )

    async def _take_over(self, client: str) -> None:
        """End an earlier connection of the same process first: two would acknowledge one message twice."""
        earlier = self._sessions.get(client)
        if earlier is None:
            return
        earlier.abort()
        try:
            async with asyncio.timeout(TAKEOVER_SECONDS_MAX):
                await earlier.ended.wait()
        except TimeoutError as error:
            text = "an earlier connection of this process is still being heard"
            raise FrameRefused("busy", text) from error
