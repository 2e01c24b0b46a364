"""Gives the components of a live sandbox their new limits, and says what the kernel then enforces."""

from __future__ import annotations

from typing import Any

import msgspec
from tidegate_events.events import AnyEvent, Quota

from tidegate_executor import preparation
from tidegate_executor.attempt_memory import AttemptMemory
from tidegate_executor.attempts import facts, planning, transitions
from tidegate_executor.attempts.state import Replica
from tidegate_executor.context import Context
from tidegate_executor.sandbox.base import InfrastructureError, Limits, ResizeRefusedError, Sandbox
from tidegate_executor.spool.spool import SpoolFullError

_replace = msgspec.structs.replace


class _Tried(msgspec.Struct):
    """What came of a change: the quotas that hold, those that the kernel refused, and what it keeps instead."""

    applied: dict[str, Quota]
    refused: tuple[Quota, ...] = ()
    kept: tuple[Quota, ...] = ()
    enforced: bool = True


async def report_started(context: Context, memory: AttemptMemory, sandbox: Sandbox, log: Any) -> None:
    """Report that every process was started once, and the limits they have."""
    now_ns = context.clock.now_ns()
    state = transitions.started(memory.state)
    events: list[AnyEvent] = [facts.started(state, context.node, now_ns)]
    try:
        stats = await sandbox.stats()
    except InfrastructureError as error:  # it is over already: the history says how
        log.info("limits_not_read", why=str(error))
    else:
        limits = {each.component: each.limits for each in stats.replicas if each.limits is not None}
        quotas = tuple(seen(quota, limits.get(quota.component)) for quota in memory.state.quotas_asked)
        events.append(facts.quota_applied(state, context.node, quotas, now_ns, enforced=stats.limits_enforced))
        state = _replace(transitions.started(memory.state), quotas_reported=quotas)
    log.info("sandbox_started", isolation=state.level, image=state.image_digest)
    await memory.commit(events, state=state)


async def resize(
    context: Context, memory: AttemptMemory, sandbox: Sandbox, quotas: tuple[Quota, ...], log: Any
) -> None:
    """Give each component its new limits; what the kernel refuses stays as it is, is told, and is tried again later."""
    tried = await _try(memory, sandbox, quotas, log)
    state, now_ns = memory.state, context.clock.now_ns()
    asked = {quota.component: quota for quota in quotas if quota.component in tried.applied}
    reported = {quota.component: quota for quota in (*state.quotas_reported, *tried.applied.values())}
    news = [quota for quota in tried.refused if quota not in state.shrinks_refused]
    state = transitions.quotas_applied(
        state, tuple(asked.get(quota.component, quota) for quota in state.quotas_asked), tuple(reported.values())
    )
    state = _replace(state, shrinks_refused=tried.refused)
    if len(asked) < len(quotas):
        state = _replace(state, quotas_retry_ns=now_ns + planning.QUOTA_RETRY_NS)
    events: list[AnyEvent] = []
    if asked:
        events.append(facts.quota_applied(state, context.node, state.quotas_reported, now_ns, enforced=tried.enforced))
    if news:
        kept = {**reported, **{quota.component: quota for quota in tried.kept}}
        events.append(facts.shrink_refused(state, context.node, tuple(kept.values()), now_ns))
    if not events:
        memory.change(state)
        return
    try:
        await memory.commit(events, state=state, droppable=True)
    except SpoolFullError as error:
        log.warning("quota_fact_waits", why=str(error))
        memory.change(_replace(memory.state, quotas_retry_ns=now_ns + planning.QUOTA_RETRY_NS))


async def _try(memory: AttemptMemory, sandbox: Sandbox, quotas: tuple[Quota, ...], log: Any) -> _Tried:
    tried = _Tried({})
    try:
        tried.enforced = (await sandbox.stats()).limits_enforced
        for quota in quotas:
            applied = await _component(memory, sandbox, quota, log) if tried.enforced else quota
            if applied is None:
                tried.refused = (*tried.refused, quota)
            else:
                tried.applied[quota.component] = applied
        if tried.refused:
            tried.kept = await _kept(sandbox, tried.refused)
    except InfrastructureError as error:
        log.warning("quota_not_applied", why=str(error))
        if not tried.kept:  # what the kernel keeps could not be read: told with the next try
            tried.refused = ()
    return tried


async def _component(memory: AttemptMemory, sandbox: Sandbox, quota: Quota, log: Any) -> Quota | None:
    """Return the quota as the kernel holds it; None where it keeps the memory limit of a replica."""
    limits = preparation.limits_of(quota)
    kernel: Limits | None = None
    refused = False
    for replica in memory.state.replicas_of(quota.component):
        if replica.status != "running":
            continue
        try:
            kernel = await sandbox.resize(replica.component, replica.replica, limits)
        except ResizeRefusedError as error:
            if any(r.status == "running" and r.name == replica.name for r in memory.state.replicas):
                log.warning("resize_refused", replica=replica.name, why=str(error))
                refused = True
                await _all_but_memory(sandbox, replica, limits, log)
    return None if refused else seen(quota, kernel)


async def _all_but_memory(sandbox: Sandbox, replica: Replica, limits: Limits, log: Any) -> None:
    """Give a replica the CPU of its new limits: that its memory is in use does not stand against it."""
    for each in (await sandbox.stats()).replicas:
        if (each.component, each.replica) == (replica.component, replica.replica) and each.limits is not None:
            kept = _replace(limits, memory_mib=each.limits.memory_mib)
            try:
                await sandbox.resize(replica.component, replica.replica, kept)
            except ResizeRefusedError as error:  # it ended meanwhile, and its exit says so
                log.info("resize_refused", replica=replica.name, why=str(error))


async def _kept(sandbox: Sandbox, refused: tuple[Quota, ...]) -> tuple[Quota, ...]:
    """Return the limits that the kernel keeps; of several replicas, some of which were resized, the largest."""
    found = (await sandbox.stats()).replicas
    kept = []
    for quota in refused:
        limits = [each.limits for each in found if each.component == quota.component and each.limits is not None]
        if limits:
            cpu_millis = max(each.cpu_millis for each in limits)
            memory_mib = max(each.memory_mib for each in limits)
            kept.append(_replace(quota, cpu_millis=cpu_millis, memory_mib=memory_mib))
    return tuple(kept)


def seen(quota: Quota, limits: Limits | None) -> Quota:
    """Return the quota as the kernel says it, which may round."""
    if limits is None:
        return quota
    return _replace(quota, cpu_millis=limits.cpu_millis, memory_mib=limits.memory_mib)
