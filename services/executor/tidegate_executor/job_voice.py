"""Hears one sandbox's processes: turns what they say into facts that are durable before they are acknowledged."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog
from tidegate.errors import CorruptCheckpointError
from tidegate_events import subjects
from tidegate_events.events import AnyEvent, CheckpointRef, Scalar
from tidegate_events.spec import phase_need

from tidegate_executor import checkpoints
from tidegate_executor.admission import LEVELS_WITH_GPUS
from tidegate_executor.attempt_memory import AttemptMemory
from tidegate_executor.attempts import asks, facts, phases, progress, transitions
from tidegate_executor.attempts.asks import Ask
from tidegate_executor.attempts.phases import Speaker
from tidegate_executor.attempts.state import AttemptState
from tidegate_executor.channel import messages
from tidegate_executor.channel.handler import (
    ClientInfo,
    HandlerBusy,
    HandlerUnavailable,
    MessageRefused,
    Origin,
    Send,
)
from tidegate_executor.channel.rate import Bucket
from tidegate_executor.context import Context
from tidegate_executor.joins import Awaited
from tidegate_executor.spool.records import UserMessage
from tidegate_executor.spool.spool import SpoolFullError

log = structlog.get_logger()
_replace = msgspec.structs.replace


SAVES_PER_SECOND, SAVES_BURST = 2.0, 60
FAILURES_PER_SECOND, FAILURES_BURST = 0.1, 20
ASKS_FULL_RETRY_MS = 1000
TOLD_MAX = 256
"""One job can never fill the journal: how many facts about checkpoints a member may cause."""


class JobVoice:
    """Implements ChannelHandler for one attempt. `newest` is the id of the newest checkpoint it told of."""

    def __init__(self, context: Context, memory: AttemptMemory) -> None:
        self._context = context
        self._memory = memory
        self._main = memory.order.spec.main_component.name
        self._hot = checkpoints.job_directory(Path(context.settings.hot_dir), memory.order.tenant, memory.order.job)
        self.newest: str | None = memory.order.resume.id if memory.order.resume else None
        self.user_events_dropped = 0
        self.failures_dropped = 0
        self._saves = Bucket(SAVES_PER_SECOND, SAVES_BURST)
        self._failures = Bucket(FAILURES_PER_SECOND, FAILURES_BURST)
        self._told: deque[str] = deque(maxlen=TOLD_MAX)
        self._unusable_told = False

    def high_water(self, client: str) -> int:
        """Return the client's newest message that is on disk."""
        return self._memory.durable_marks.get(client, 0)

    async def on_hello(self, client: ClientInfo) -> None:
        """Remember that this process can be asked to leave over the channel."""
        self._check_open()
        origin = client.origin
        state = transitions.connect(self._memory.state, origin.component, origin.replica)
        state = _replace(
            state, asks=asks.back(state.asks, origin.client), phase=phases.away(state.phase, origin.client, 0)
        )
        if state != self._memory.state:  # a process may come back as often as it likes
            log.info("process_connected", sandbox=self._memory.state.id, component=origin.component, sdk=client.sdk)
            await self._memory.commit(state=state)

    async def on_phase(self, origin: Origin, message: messages.Phase) -> None:
        """Remember the phase; it becomes a fact now, or when the dwell is over."""
        now_ns = self._context.clock.now_ns()
        state = self._marked(origin)
        if message.phase is not None:
            state = _replace(state, asks=asks.withdraw(state.asks, origin.client))
        speaker = Speaker(
            client=origin.client,
            component=origin.component,
            replica=origin.replica,
            is_main=origin.component == self._main,
        )
        said = phases.say(state.phase, speaker, message.phase, message.step, now_ns)
        state = transitions.step_seen(_replace(state, phase=said), message.step)
        due_ns = phases.due_ns(said)
        if due_ns is not None and due_ns <= now_ns and state.stage == "running":
            fact = facts.phase_changed(state, now_ns)
            journaled = transitions.phase_told(state, now_ns)
            try:
                await self._durably(origin, self._memory.commit([fact], state=journaled, droppable=True))
            except SpoolFullError:
                log.warning("phase_waits", sandbox=state.id, phase=said.current)
            else:
                return
        await self._durably(origin, self._memory.commit(state=state))

    async def on_ask(self, origin: Origin, message: messages.Ask) -> None:
        """Remember who waits for which phase; the plan tells the scheduler, and answers."""
        state = self._marked(origin)
        if message.phase is None:
            state = _replace(state, asks=asks.withdraw(state.asks, origin.client))
        else:
            self._check_askable(origin, message.phase)
            new = Ask(
                client=origin.client,
                seq=origin.seq,
                component=origin.component,
                replica=origin.replica,
                phase=message.phase,
                step=message.step,
                is_main=origin.component == self._main,
            )
            state = _replace(state, asks=asks.ask(state.asks, new))
        await self._durably(origin, self._memory.commit(state=transitions.step_seen(state, message.step)))

    def _check_askable(self, origin: Origin, phase: str) -> None:
        order, state = self._memory.order, self._memory.state
        if order.spec.phase_entry != "asked":
            raise MessageRefused("phases_are_told", "the phases of this job are told and not asked for")
        need = phase_need(order.spec, phase)
        if (need.gpus or need.gpu_millis) and state.level not in LEVELS_WITH_GPUS:
            raise MessageRefused("gpu_not_passed", f"phase {phase} needs a GPU, and level {state.level} passes none")
        if asks.is_full(state.asks, origin.client) or phases.is_full(state.phase):
            raise HandlerBusy(ASKS_FULL_RETRY_MS)

    def on_gone(self, client: str) -> None:
        """Remember since when a process that waits for a phase, or is in one, is not there."""
        self._context.joins.drop(self._memory.order.job, client)
        state, now_ns = self._memory.state, self._context.clock.now_ns()
        asked, phase = asks.away(state.asks, client, now_ns), phases.away(state.phase, client, now_ns)
        if asked is not state.asks or phase is not state.phase:
            self._memory.change(_replace(state, asks=asked, phase=phase))

    async def on_report(self, origin: Origin, message: messages.Report) -> None:
        """Keep the newest metrics for telemetry, and the step in memory; progress that moved becomes a fact."""
        state = self._memory.state
        self._context.reports.report(state, origin, message, self._context.clock.now_ns())
        self._memory.state = transitions.step_seen(state, message.step)
        if message.progress is not None and state.rank == 0 and origin.component == self._main:
            await self._on_progress(progress.millis_of(message.progress))

    async def _on_progress(self, millis: int) -> None:
        state = self._memory.state
        if state.stage != "running" or not progress.is_news(state.progress, millis):
            return
        state = _replace(state, progress=progress.tell(state.progress, millis))
        fact = facts.progress_reported(state, self._context.clock.now_ns())
        try:
            await asyncio.shield(self._memory.commit([fact], state=state, droppable=True))
        except SpoolFullError:
            log.warning("progress_waits", sandbox=state.id, progress_millis=millis)  # for the next report

    async def on_publish(self, origin: Origin, message: messages.Publish) -> None:
        """Send a user's own event on its way; while too much waits for the bus it is dropped, and counted."""
        state = self._marked(origin)
        body = {
            "job": state.job,
            "attempt": state.attempt,
            "rank": state.rank,
            "component": origin.component,
            "replica": origin.replica,
            "at_ns": message.at_ns,
            "kind": message.event,
            "payload": message.payload,
            "traceparent": state.traceparent,
        }
        user = UserMessage(
            id=f"{state.id}/{origin.client}/{origin.seq}",
            subject=subjects.user(state.tenant),
            body=msgspec.Raw(msgspec.json.encode(body)),
        )
        try:
            await self._durably(origin, self._memory.commit(state=state, user=[user], droppable=True))
        except SpoolFullError as error:
            self.user_events_dropped += 1
            log.warning("user_event_dropped", sandbox=state.id, dropped=self.user_events_dropped, why=str(error))
            await self._durably(origin, self._memory.commit(state=state))

    async def _stored(
        self,
        origin: Origin,
        message: messages.Saved | messages.PartSaved,
        what: str,
        read: Callable[[Path, str], CheckpointRef],
    ) -> CheckpointRef | None:
        """Return what a process says that it stored, which really lies there; None where that was told before."""
        self._check_open()
        try:
            found = await asyncio.to_thread(read, self._hot, message.directory)
        except CorruptCheckpointError as error:
            raise MessageRefused(f"no_such_{what}", str(error)) from error
        if found.id != message.id:
            raise MessageRefused(f"no_such_{what}", f"{message.directory} holds another {what}")
        if found.id in self._told:
            await self._durably(origin, self._memory.commit(state=self._marked(origin)))
            return None
        if retry_after_ms := self._saves.take(asyncio.get_running_loop().time()):
            raise HandlerBusy(retry_after_ms)
        self._told.append(found.id)
        return found

    async def on_saved(self, origin: Origin, message: messages.Saved) -> None:
        """Report a checkpoint that really lies in the hot directory."""
        found = await self._stored(origin, message, "checkpoint", checkpoints.read)
        if found is None:
            return
        state = transitions.saved(self._marked(origin), message.directory, found.step)
        fact = facts.checkpoint_saved(state, self._context.node, found, self._context.clock.now_ns())
        self.newest = found.id
        await self._durably(origin, self._memory.commit([fact], state=state))
        self._context.reports.saved(state, origin, message, self._context.clock.now_ns())

    async def on_save_failed(self, origin: Origin, message: messages.SaveFailed) -> None:
        """Report that a save did not become durable; a job that reports nothing else is not journaled each time."""
        state = self._marked(origin)
        if self._failures.take(asyncio.get_running_loop().time()):
            self.failures_dropped += 1
            log.warning("save_failure_dropped", sandbox=state.id, dropped=self.failures_dropped)
            await self._durably(origin, self._memory.commit(state=state))
            return
        fact = facts.checkpoint_failed(state, message.step, message.error, self._context.clock.now_ns())
        await self._durably(origin, self._memory.commit([fact], state=state))

    async def on_part_saved(self, origin: Origin, message: messages.PartSaved) -> None:
        """Report this node's part of a checkpoint of several nodes, which really lies in the hot directory."""
        found = await self._stored(origin, message, "part", checkpoints.read_part)
        if found is None:
            return
        state = transitions.step_seen(self._marked(origin), found.step)
        now_ns = self._context.clock.now_ns()
        fact = facts.part_saved(self._memory.order, self._context.node, message, found, now_ns)
        await self._durably(origin, self._memory.commit([fact], state=state))

    async def on_part_failed(self, origin: Origin, message: messages.PartFailed) -> None:
        """Report that this node has no part in a checkpoint of several nodes: others wait for it."""
        state = self._marked(origin)
        if retry_after_ms := self._saves.take(asyncio.get_running_loop().time()):
            raise HandlerBusy(retry_after_ms)
        now_ns = self._context.clock.now_ns()
        fact = facts.part_failed(self._memory.order, self._context.node, message, now_ns)
        await self._durably(origin, self._memory.commit([fact], state=state))

    def on_await_join(self, message: messages.AwaitJoin, client: str, send: Send) -> None:
        """Have the process told what becomes of a part."""
        order = self._memory.order
        self._context.joins.add(Awaited(order.tenant, order.job, client, message.save, message.part), send)

    async def on_not_freed(self, origin: Origin, message: messages.NotFreed) -> None:
        """Report that devices are not handed back, once for each recall: who waits for them need not wait longer."""
        state, now_ns = self._marked(origin), self._context.clock.now_ns()
        log.warning("devices_not_freed", sandbox=state.id, phase=message.phase, why=message.error)
        if not state.hand_back_ns or state.hand_back_ns == state.not_freed_ns:
            await self._durably(origin, self._memory.commit(state=state))
            return
        state = _replace(state, not_freed_ns=state.hand_back_ns)
        fact = facts.hand_back_failed(state, message.phase, message.error, now_ns)
        await self._durably(origin, self._memory.commit([fact], state=state))

    async def on_restored(self, origin: Origin, message: messages.Restored) -> None:
        """Note where the job continues; a checkpoint it was told to resume from and could not use is reported."""
        state = transitions.step_seen(self._marked(origin), message.step)
        resume = self._memory.order.resume
        events: list[AnyEvent] = []
        if resume is not None and message.id != resume.id and message.skipped and not self._unusable_told:
            self._unusable_told = True
            events.append(
                facts.checkpoint_unusable(
                    state, resume, message.why or "refused by the job", self._context.clock.now_ns()
                )
            )
            state = _replace(state, last_step=message.step)
        log.info("job_restored", sandbox=state.id, step=message.step, skipped=message.skipped)
        await self._durably(origin, self._memory.commit(events, state=state))

    async def on_suspended(self, origin: Origin, message: messages.Suspended) -> None:
        """Take the acknowledgement of a stop; only the main component's word counts."""
        state = transitions.step_seen(self._marked(origin), message.step)
        if origin.component == self._main:
            state = _replace(state, acknowledged=True)
        await self._durably(origin, self._memory.commit(state=state))

    async def on_finished(self, origin: Origin, message: messages.Finished) -> None:
        """Take the explicit completion; only the main component's word counts."""
        state = transitions.step_seen(self._marked(origin), message.step)
        if origin.component == self._main:
            state = _replace(state, finished=True, result=_scalars(message.result))
        await self._durably(origin, self._memory.commit(state=state))

    def _check_open(self) -> None:
        if self._memory.state.is_over:
            raise HandlerUnavailable("the sandbox is over")

    def _marked(self, origin: Origin) -> AttemptState:
        self._check_open()
        return transitions.mark(self._memory.state, origin.client, origin.seq)

    async def _durably(self, origin: Origin, written: asyncio.Future[None]) -> None:
        await asyncio.shield(written)
        marks = self._memory.durable_marks
        marks[origin.client] = max(marks.get(origin.client, 0), origin.seq)


def _scalars(result: dict[str, Any]) -> dict[str, Scalar]:
    """Return the result as an event holds it: nested values as JSON text."""
    return {
        name: value
        if value is None or isinstance(value, str | int | float | bool)
        else msgspec.json.encode(value).decode()
        for name, value in result.items()
    }
