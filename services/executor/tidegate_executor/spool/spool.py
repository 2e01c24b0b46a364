"""The agent's memory on disk: facts wait here until the journal has them, together with the state they go with.

A put is durable as a whole before its future resolves: its events, its user messages and its states are one record,
so a crash can never keep a fact and forget that it was told. Puts within COALESCE_SECONDS share one frame and one
sync. Frames go to the journal in order, one at a time, guarded by the subject's last sequence; whatever the doubt, the
subject's last frame says which of ours it has, because writer numbers only grow. User messages have a lane of their
own (at least once), so that a missing stream cannot hold facts up.

While the bus is away the spool grows. Above PENDING_BYTES_DROPPABLE it refuses puts that say `droppable` (phases,
quotas, user events); facts about a sandbox's life are never refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog
from tidegate_events.cancellation import honour_cancellation
from tidegate_events.events import AnyEvent
from tidegate_events.frame import MAX_FRAME_BYTES, Frame, Writer
from tidegate_events.frame import encode as encode_frame

from tidegate_executor.spool.records import Acks, Put, UserMessage, decode, encode
from tidegate_executor.spool.segments import SegmentLog
from tidegate_executor.spool.store import StateStore

COALESCE_SECONDS = 0.05
EVENTS_PER_FRAME_MAX = 400
FRAME_BYTES_TARGET = MAX_FRAME_BYTES // 2
PENDING_BYTES_DROPPABLE = 32 * 1024 * 1024
PENDING_BYTES_LOUD = 128 * 1024 * 1024

log = structlog.get_logger()
_T = TypeVar("_T")


class SpoolFullError(Exception):
    """The bus has been away for so long that facts which may be dropped are refused; nothing was written."""


class _Waiting:
    """One put that is not on disk yet."""

    __slots__ = ("done", "events", "on_journaled", "size", "states", "user")

    def __init__(
        self, events: Sequence[AnyEvent], user: Sequence[UserMessage], states: Mapping[str, msgspec.Raw | None]
    ) -> None:
        self.events = tuple(events)
        self.user = tuple(user)
        self.states = dict(states)
        self.size = sum(len(msgspec.json.encode(event)) for event in self.events)
        self.on_journaled: Callable[[int], None] | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Lane:
    """Puts that wait to be sent, in order; `acked` is the number of the last one that need not be sent again."""

    def __init__(self) -> None:
        self.pending: deque[Put] = deque()
        self.acked = 0
        self.changed = asyncio.Condition()


class Spool:
    """See the module. `epoch` is the agent's incarnation; frames of earlier ones keep theirs."""

    def __init__(self, directory: Path, states: Path, *, node: str, epoch: int) -> None:
        self._log = SegmentLog(directory)
        self._store = StateStore(states)
        self._node = node
        self._epoch = epoch
        self._next_number = 1
        self._next_seq = 1
        self._states: dict[str, bytes | None] = {}
        self._unstored: dict[int, set[str]] = {}  # segment -> keys whose values it may be the only one to hold
        self._last_put_in: dict[int, int] = {}  # segment -> number of its last put
        self._waiting: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._facts = _Lane()
        self._user = _Lane()
        self._sizes: dict[int, int] = {}
        self._on_journaled: dict[int, list[Callable[[int], None]]] = {}
        self._pending_bytes = 0
        self._disk = asyncio.Lock()
        self._flushed_at = 0.0
        self.dropped = 0
        self.broken = False
        """What is put cannot be written any more, and `run_flusher` has ended: so must the agent."""

    # ---- opening ----

    def open(self) -> dict[str, bytes]:
        """Read what earlier incarnations left; return the newest state of each key. Blocks: call it before serving."""
        self._states = dict(self._store.load())
        for segment, payload in self._log.open():
            record = decode(payload)
            if isinstance(record, Acks):
                self._facts.acked = max(self._facts.acked, record.facts)
                self._user.acked = max(self._user.acked, record.user)
            else:
                self._recall(segment, record, len(payload))
        for lane in (self._facts, self._user):
            while lane.pending and lane.pending[0].number <= lane.acked:
                lane.pending.popleft()
        waiting = {put.number for lane in (self._facts, self._user) for put in lane.pending}
        self._sizes = {number: size for number, size in self._sizes.items() if number in waiting}
        self._pending_bytes = sum(self._sizes.values())
        return {key: value for key, value in self._states.items() if value is not None}

    def _recall(self, segment: int, put: Put, size: int) -> None:
        for key, raw in put.states.items():
            self._states[key] = None if bytes(raw) == b"null" else bytes(raw)
        self._next_number = put.number + 1
        if put.frame is not None and put.frame.writer.epoch == self._epoch:
            raise ValueError(f"the spool holds frames of incarnation {self._epoch}: it must be raised at each start")
        self._track(segment, put, size)

    def _track(self, segment: int, put: Put, size: int) -> None:
        self._unstored.setdefault(segment, set()).update(put.states)
        self._last_put_in[segment] = put.number
        if put.frame is not None:
            self._facts.pending.append(put)
        if put.user:
            self._user.pending.append(put)
        if put.frame is not None or put.user:
            self._sizes[put.number] = size
            self._pending_bytes += size

    # ---- putting ----

    def put(
        self,
        events: Sequence[AnyEvent] = (),
        *,
        user: Sequence[UserMessage] = (),
        states: Mapping[str, msgspec.Raw | None] | None = None,
        droppable: bool = False,
        on_journaled: Callable[[int], None] | None = None,
    ) -> asyncio.Future[None]:
        """Queue at once, in the order of calls; the future resolves when all of it is durable.

        `on_journaled` is called with the journal's number of its events once they are there, by this incarnation only.

        Raises SpoolFullError for a `droppable` put while too much waits for the bus. Event ids are given here.
        """
        if droppable and self._pending_bytes > PENDING_BYTES_DROPPABLE:
            self.dropped += 1
            raise SpoolFullError(f"{self._pending_bytes} bytes wait for the bus; droppable facts are refused")
        waiting = _Waiting(events, user, states or {})
        waiting.on_journaled = on_journaled
        self._waiting.append(waiting)
        self._wake.set()
        return waiting.done

    async def flushed(self) -> None:
        """Return when everything put so far is durable."""
        if self._waiting:
            await asyncio.shield(self._waiting[-1].done)
        async with self._disk:
            return

    @property
    def pending_bytes(self) -> int:
        """Return how much waits for the bus."""
        return self._pending_bytes

    @property
    def unsent_facts(self) -> int:
        """Return how many frames the journal has not acknowledged."""
        return len(self._facts.pending)

    async def drained(self) -> None:
        """Return when the journal has every fact put so far."""
        await self.flushed()
        target = self._next_number - 1
        async with self._facts.changed:
            await self._facts.changed.wait_for(
                lambda: not self._facts.pending or self._facts.pending[0].number > target
            )

    async def run_flusher(self) -> None:
        """Write what is put, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            if (early := self._flushed_at + COALESCE_SECONDS - loop.time()) > 0:
                await asyncio.sleep(early)
            self._wake.clear()
            await self._flush()
            self._flushed_at = loop.time()

    async def _flush(self) -> None:
        async with self._disk:
            while self._waiting:
                batch = self._take_batch()
                try:
                    put = self._assemble(batch)
                    payload = encode(put)
                    segment = await _on_disk(self._log.append, payload)
                except (OSError, ValueError) as error:
                    self.broken = True
                    for waiting in batch:
                        if not waiting.done.done():
                            waiting.done.set_exception(error)
                    raise
                for key, raw in put.states.items():
                    self._states[key] = None if bytes(raw) == b"null" else bytes(raw)
                await self._accept(segment, put, len(payload), batch)
            if self._log.is_full:
                await _on_disk(self._log.rotate)
            await self._drop_segments()

    def _take_batch(self) -> list[_Waiting]:
        """Take puts, in order, that fit one frame together; one that is large by itself goes alone."""
        batch: list[_Waiting] = []
        events = size = 0
        while self._waiting:
            head = self._waiting[0]
            events += len(head.events)
            size += head.size
            if batch and (events > EVENTS_PER_FRAME_MAX or size > FRAME_BYTES_TARGET):
                break
            batch.append(self._waiting.popleft())
        return batch

    def _assemble(self, batch: list[_Waiting]) -> Put:
        writer = Writer("node", self._node, self._epoch, self._next_seq)
        events = [event for waiting in batch for event in waiting.events]
        frame = None
        if events:
            stamped = tuple(
                msgspec.structs.replace(event, id=writer.event_id(index)) for index, event in enumerate(events)
            )
            frame = Frame(writer, stamped)
            encode_frame(frame)  # refuses what the bus would refuse, before it is on disk for good
            self._next_seq += 1
        states: dict[str, msgspec.Raw] = {}
        for waiting in batch:
            states.update((key, raw or msgspec.Raw(b"null")) for key, raw in waiting.states.items())
        user = tuple(message for waiting in batch for message in waiting.user)
        put = Put(self._next_number, frame, user, states)
        self._next_number += 1
        return put

    async def _accept(self, segment: int, put: Put, size: int, batch: list[_Waiting]) -> None:
        for waiting in batch:
            if not waiting.done.done():
                waiting.done.set_result(None)
        if told := [waiting.on_journaled for waiting in batch if waiting.on_journaled is not None and waiting.events]:
            self._on_journaled[put.number] = told
        loud_before = self._pending_bytes > PENDING_BYTES_LOUD
        self._track(segment, put, size)
        if self._pending_bytes > PENDING_BYTES_LOUD and not loud_before:
            log.error("spool_large", pending_bytes=self._pending_bytes, frames=len(self._facts.pending))
        for lane in (self._facts, self._user):
            async with lane.changed:
                lane.changed.notify_all()

    # ---- sending ----

    async def run_facts(self, send: Callable[[Frame], Awaitable[int]]) -> None:
        """Hand each frame to `send`, in order, for ever; when it returns, the journal has the frame.

        What it returns is the frame's number there, or a later one.
        """
        while True:
            honour_cancellation()
            put = await self._next(self._facts)
            if put.frame is not None:
                seq = await send(put.frame)
                for tell in self._on_journaled.pop(put.number, ()):
                    tell(seq)
            await self._acked(self._facts, put)

    async def run_user(self, send: Callable[[Sequence[UserMessage]], Awaitable[None]]) -> None:
        """Hand the user messages of each put to `send`, in order, for ever."""
        while True:
            honour_cancellation()
            put = await self._next(self._user)
            await send(put.user)
            await self._acked(self._user, put)

    async def _next(self, lane: _Lane) -> Put:
        async with lane.changed:
            await lane.changed.wait_for(lambda: bool(lane.pending))
            return lane.pending[0]

    async def _acked(self, lane: _Lane, put: Put) -> None:
        async with self._disk:
            lane.acked = put.number
            marker = encode(Acks(self._facts.acked, self._user.acked))
            await _on_disk(self._log.append, marker)
            async with lane.changed:
                lane.pending.popleft()
                lane.changed.notify_all()
            if self._sent(put.number):
                self._pending_bytes -= self._sizes.pop(put.number, 0)
            await self._drop_segments()

    def _sent(self, number: int) -> bool:
        return all(not lane.pending or lane.pending[0].number > number for lane in (self._facts, self._user))

    async def _drop_segments(self) -> None:
        """Delete closed segments of which every put was sent, once the states in them are stored elsewhere."""
        for segment in self._log.closed:
            if not self._sent(self._last_put_in.get(segment, 0)):
                break
            for key in sorted(self._unstored.pop(segment, ())):
                await _on_disk(self._store.write, key, self._states.get(key))
                if self._states.get(key) is None and not any(key in keys for keys in self._unstored.values()):
                    self._states.pop(key, None)
            await _on_disk(self._log.drop, segment)
            self._last_put_in.pop(segment, None)

    def close(self) -> None:
        """Close the log; what was not flushed is not durable and nobody was told that it is."""
        self._log.close()


async def _on_disk(work: Callable[..., _T], *arguments: object) -> _T:
    """Do it in a thread; a cancelled caller still waits for the thread, which would otherwise outlive the file."""
    future = asyncio.get_running_loop().run_in_executor(None, lambda: work(*arguments))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
