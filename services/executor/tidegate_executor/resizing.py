"""Gives the components of a live sandbox their new limits, and says what the kernel then enforces."""

from __future__ import annotations

from typing import Any

import msgspec
from tidegate_events.events import Quota

from tidegate_executor import preparation
from tidegate_executor.attempt_memory import AttemptMemory
from tidegate_executor.attempts import facts, planning, transitions
from tidegate_executor.context import Context
from tidegate_executor.sandbox.base import InfrastructureError, Limits, ResizeRefusedError, Sandbox
from tidegate_executor.spool.spool import SpoolFullError

_replace = msgspec.structs.replace


async def resize(
    context: Context, memory: AttemptMemory, sandbox: Sandbox, quotas: tuple[Quota, ...], log: Any
) -> None:
    """Give each component its new limits; what the kernel refuses stays as it is and is tried again later."""
    enforced = True
    applied: list[Quota | None] = [None for _ in quotas]
    try:
        enforced = (await sandbox.stats()).limits_enforced
        applied = [await _component(memory, sandbox, quota, log) if enforced else quota for quota in quotas]
    except InfrastructureError as error:
        log.warning("quota_not_applied", why=str(error))
    state = memory.state
    done = {quota.component: quota for quota, seen in zip(quotas, applied, strict=True) if seen is not None}
    seen_now = {quota.component: quota for quota in (*state.quotas_reported, *filter(None, applied))}
    now_ns = context.clock.now_ns()
    asked = tuple(done.get(quota.component, quota) for quota in state.quotas_asked)
    state = transitions.quotas_applied(state, asked, tuple(seen_now.values()))
    if len(done) < len(quotas):
        state = _replace(state, quotas_retry_ns=now_ns + planning.QUOTA_RETRY_NS)
    if not done:
        memory.change(state)
        return
    fact = facts.quota_applied(state, context.node, state.quotas_reported, now_ns, enforced=enforced)
    try:
        await memory.commit([fact], state=state, droppable=True)
    except SpoolFullError as error:
        log.warning("quota_fact_waits", why=str(error))
        memory.change(_replace(memory.state, quotas_retry_ns=now_ns + planning.QUOTA_RETRY_NS))


async def _component(memory: AttemptMemory, sandbox: Sandbox, quota: Quota, log: Any) -> Quota | None:
    limits = preparation.limits_of(quota)
    kernel: Limits | None = None
    for replica in memory.state.replicas_of(quota.component):
        if replica.status != "running":
            continue
        try:
            kernel = await sandbox.resize(replica.component, replica.replica, limits)
        except ResizeRefusedError as error:
            if any(r.status == "running" and r.name == replica.name for r in memory.state.replicas):
                log.warning("resize_refused", replica=replica.name, why=str(error))
                return None
    return seen(quota, kernel)


def seen(quota: Quota, limits: Limits | None) -> Quota:
    """Return the quota as the kernel says it, which may round."""
    if limits is None:
        return quota
    return _replace(quota, cpu_millis=limits.cpu_millis, memory_mib=limits.memory_mib)
