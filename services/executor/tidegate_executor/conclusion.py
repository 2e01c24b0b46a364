"""The end of an attempt: hear the last words, save what a job without the SDK left, report the exit, remove the rest.

The exit is on disk before anything is removed, so a crash in between only leaves something for the next start to
remove; and what was committed to the hot directory is reported before the exit that makes others look for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tidegate.errors import TidegateError
from tidegate_events.events import AnyEvent

from tidegate_executor import checkpoints, preparation
from tidegate_executor.attempt_memory import AttemptMemory
from tidegate_executor.attempts import facts, transitions
from tidegate_executor.attempts.outcome import classify
from tidegate_executor.channel.server import ChannelServer
from tidegate_executor.context import Context
from tidegate_executor.sandbox.base import InfrastructureError, Sandbox

LAST_WORDS_SECONDS_MAX = 2.0
_POLL_SECONDS = 0.01

_replace = msgspec.structs.replace


async def conclude(
    context: Context,
    memory: AttemptMemory,
    made: tuple[ChannelServer, preparation.Prepared | None],
    log: Any,
) -> None:
    """Report the end of a sandbox in which nothing runs any more."""
    server, prepared = made
    await _hear_last_words(server)
    server.close()
    saved = await _unreported(context, memory, log)
    adopted = await _adopt(context, memory, prepared)
    await report(context, memory, (*saved, *adopted), log)


async def report(context: Context, memory: AttemptMemory, before: Sequence[AnyEvent], log: Any) -> None:
    """Put the exit, after the facts in `before`, on disk; from then on the attempt is over."""
    now_ns = context.clock.now_ns()
    ending = classify(memory.state, memory.order.spec)
    state = _replace(memory.state, stage="ended", outcome=ending.outcome, ended_ns=now_ns)
    exited = facts.exited(state, context.node, ending, now_ns)
    log.info("sandbox_exited", outcome=ending.outcome, detail=ending.detail, last_step=state.last_step)
    await memory.commit([*before, exited], state=state)


async def report_lost(context: Context, memory: AttemptMemory, log: Any) -> None:
    """Report the end of a sandbox that is gone, and before it what it had saved."""
    await report(context, memory, await _unreported(context, memory, log), log)


async def remove(context: Context, memory: AttemptMemory, sandbox: Sandbox, log: Any) -> None:
    """Remove the sandbox, whose exit is reported; what cannot be removed now is tried again at the next start."""
    try:
        await sandbox.destroy()
        await asyncio.to_thread(preparation.clean, context, memory.state.id)
    except (InfrastructureError, OSError) as error:
        log.error("sandbox_not_removed", why=str(error))


async def _hear_last_words(server: ChannelServer) -> None:
    """The processes are gone, but what they wrote may still be unread: their connections end when it is read."""
    deadline = asyncio.get_running_loop().time() + LAST_WORDS_SECONDS_MAX
    while server.connected and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(_POLL_SECONDS)


async def _unreported(context: Context, memory: AttemptMemory, log: Any) -> list[AnyEvent]:
    state = memory.state
    hot = checkpoints.job_directory(Path(context.settings.hot_dir), state.tenant, state.job)
    events: list[AnyEvent] = []
    try:
        found = await asyncio.to_thread(checkpoints.unreported, hot, state)
    except OSError as error:  # without root, a job may close its own directory
        log.error("hot_directory_unreadable", why=str(error))
        return []
    for reference in found:
        memory.change(transitions.saved(memory.state, reference.directory, reference.step))
        events.append(facts.checkpoint_saved(memory.state, context.node, reference, context.clock.now_ns()))
    return events


async def _adopt(context: Context, memory: AttemptMemory, prepared: preparation.Prepared | None) -> list[AnyEvent]:
    """Take over the declared checkpoint of a job that never spoke to the agent and is not complete."""
    order, state = memory.order, memory.state
    if order.spec.preemption.checkpoint_dir is None or state.spoke:
        return []
    if classify(state, order.spec).outcome == "completed":
        return []
    now_ns = context.clock.now_ns()
    try:
        if prepared is None:
            prepared = await preparation.prepare(context, order, state)
        if prepared.declared is None:
            return []
        reference = await asyncio.to_thread(checkpoints.adopt, prepared.declared, prepared.hot, order)
    except (TidegateError, OSError, preparation.RefusedError) as error:
        detail = f"the declared directory could not be taken over: {error}"
        return [facts.checkpoint_failed(state, None, detail, now_ns)]
    if reference is None:
        return []
    memory.change(transitions.saved(memory.state, reference.directory, reference.step))
    return [facts.checkpoint_saved(memory.state, context.node, reference, now_ns)]
