"""Tells the scheduler which phase a member is in or asks for, and its processes which one they may enter."""

from __future__ import annotations

from typing import Any

import msgspec
from tidegate_events.orders import SandboxOrder
from tidegate_events.spec import phase_need

from tidegate_executor import environment
from tidegate_executor.attempt_memory import AttemptMemory
from tidegate_executor.attempts import asks, entry, facts, phases, transitions
from tidegate_executor.attempts.state import AttemptState
from tidegate_executor.context import Context
from tidegate_executor.spool.spool import SpoolFullError

_replace = msgspec.structs.replace


def answers(state: AttemptState, order: SandboxOrder) -> dict[str, dict[str, Any]]:
    """Return the answer to each process that may enter the phase it waits for, by client."""
    return {
        each.client: {
            "seq": each.seq,
            "phase": each.phase,
            "environment": environment.in_phase(order.spec, each.phase, _devices(order, state, each.phase)),
        }
        for each in entry.entitled(state)
    }


def with_devices(order: SandboxOrder, state: AttemptState) -> SandboxOrder:
    """Return the order with the member's phase and its devices in it, which may be others than it began with."""
    phase = state.phase.journaled
    return _replace(order, phase=phase, gpu_indices=_devices(order, state, phase))


def _devices(order: SandboxOrder, state: AttemptState, phase: str) -> tuple[int, ...]:
    """Return the devices of a phase: of those that an order names the first, as many as the phase needs.

    Those of the phase before are among them until it is known to be over, and then they are lent.
    """
    indices = order.gpu_indices if state.gpu_indices is None else state.gpu_indices
    if order.spec.phase_entry != "asked":
        return indices
    need = phase_need(order.spec, phase)
    return indices[: need.gpus or min(1, need.gpu_millis)]


async def say_phase(context: Context, memory: AttemptMemory, log: Any) -> None:
    """Put the current phase as a fact; while the bus is away for long, it waits."""
    if phases.due_ns(memory.state.phase) is None:
        return  # it changed while something else was done
    now_ns = context.clock.now_ns()
    state = memory.state
    told = transitions.phase_told(state, now_ns)
    try:
        await memory.commit([facts.phase_changed(state, now_ns)], state=told, droppable=True)
    except SpoolFullError as error:
        log.warning("phase_waits", why=str(error))


async def say_ask(context: Context, memory: AttemptMemory, phase: str, log: Any) -> None:
    """Put as a fact that the member asks for the phase, or for none any more."""
    if entry.to_tell(memory.state) != phase:
        return  # it changed while something else was done: the plan looks again
    now_ns = context.clock.now_ns()
    state = memory.state

    def on_journaled(seq: int) -> None:
        memory.change(_replace(memory.state, asks=asks.journaled(memory.state.asks, now_ns, seq)))

    told = _replace(state, asks=asks.tell(state.asks, phase, now_ns))
    fact = facts.phase_requested(state, phase, now_ns)
    try:
        await memory.commit([fact], state=told, droppable=True, on_journaled=on_journaled)
    except SpoolFullError as error:
        log.warning("ask_waits", why=str(error))
    else:
        log.info("phase_asked", phase=phase)


async def forget_away(context: Context, memory: AttemptMemory, log: Any) -> None:
    """Forget the processes that have been away for too long."""
    state = memory.state
    kept = entry.forget_away(state, context.clock.now_ns())
    log.info(
        "processes_forgotten",
        asks=len(state.asks.waiting) - len(kept.asks.waiting),
        in_phases=len(state.phase.inside) - len(kept.phase.inside),
    )
    await memory.commit(state=kept)


async def note_answers(memory: AttemptMemory) -> None:
    """Put on disk who is about to be told that it may enter: from then on it counts as inside."""
    state = memory.state
    answered = asks.answer(state.asks, entry.entitled(state))
    if answered is not state.asks:
        await memory.commit(state=_replace(state, asks=answered))
