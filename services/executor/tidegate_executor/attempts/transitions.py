"""How an attempt's state changes, by what was ordered, seen and said. Pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from tidegate_events.events import Quota
from tidegate_events.orders import SandboxOrder
from tidegate_events.spec import Component, JobSpec

from tidegate_executor.attempts import asks, entry, phases, scaling
from tidegate_executor.attempts.state import (
    CLIENTS_MAX,
    AttemptState,
    Failure,
    Replica,
    SavedMark,
    Stop,
)
from tidegate_executor.attempts.wording import plain
from tidegate_executor.sandbox.base import (
    ReplicaExited,
    ReplicaStarted,
    SandboxEnded,
    SandboxEvent,
)

RESTARTS_MAX = 3
RESTART_WAIT_NS = 1_000_000_000  # doubled with each restart
EXIT_SUSPENDED = 75
EXIT_NOT_STARTABLE = 127
FAILURE_CHARS_MAX = 500

_replace = msgspec.structs.replace


def accept(order: SandboxOrder, now_ns: int, *, level: str, image_digest: str, uid_slot: int) -> AttemptState:
    """Return the state of a new attempt: every replica is ordered to start once."""
    state = AttemptState(
        job=order.job,
        tenant=order.tenant,
        attempt=order.attempt,
        rank=order.rank,
        traceparent=order.traceparent,
        level=level,
        image_digest=image_digest,
        uid_slot=uid_slot,
        ordered_ns=now_ns,
        quotas_wanted=order.quotas,
        quotas_asked=order.quotas,
        last_step=order.resume.step if order.resume else None,
    )
    replicas = tuple(
        Replica(component=component.name, replica=number, status="starting", starts=1)
        for component in order.spec.components
        for number in range(scaling.wanted(state, component))
    )
    return _replace(state, replicas=replicas)


def prepared(state: AttemptState, now_ns: int, image_digest: str) -> AttemptState:
    """Note when image, inputs and working directory were ready."""
    return _replace(state, prepared_ns=now_ns, image_digest=image_digest)


def on_order(state: AttemptState, order: SandboxOrder, at_seq: int = 0) -> AttemptState:
    """Take a newer order, made from the journal up to `at_seq`. A stop is final: no later order turns it into a run."""
    if state.is_over:
        return state
    if order.desired != "run":
        desired = "stop" if state.stop and state.stop.desired == "stop" else order.desired
        return _replace(state, stop=Stop(desired=desired, deadline_ns=order.deadline_ns, reason=order.reason))
    if state.stop is not None:
        return state
    return _replace(
        state,
        quotas_wanted=order.quotas,
        gpu_indices=order.gpu_indices,
        granted=order.phase,
        hand_back_ns=order.hand_back_ns,
        order_seq=at_seq,
        shrinks_refused=tuple(quota for quota in state.shrinks_refused if quota in order.quotas),
    )


def on_history(state: AttemptState, event: SandboxEvent, next_offset: int, spec: JobSpec) -> AttemptState:
    """Fold one event of the sandbox's own history."""
    state = _replace(state, history_offset=next_offset)
    if isinstance(event, ReplicaStarted):
        return _set_replica(state, event.component, event.replica, status="running")
    if isinstance(event, ReplicaExited):
        return _on_exit(state, event, spec)
    if isinstance(event, SandboxEnded):
        return _replace(state, sandbox_over=True, collapsed=state.collapsed or event.reason == "collapsed")
    return state


def _on_exit(state: AttemptState, event: ReplicaExited, spec: JobSpec) -> AttemptState:
    component = next(c for c in spec.components if c.name == event.component)
    before = next(r for r in state.replicas_of(event.component) if r.replica == event.replica)
    state = entry.gone(state, event.component, event.replica, event.at_ns)
    if before.leave_by_ns:
        return scaling.gone(state, before)
    exited = _replace(
        before,
        status="exited",
        exit_code=event.exit_code,
        signal=event.signal,
        oom=event.oom,
        connected=False,
        final=True,
    )
    if not event.stopping and _may_restart(state, exited, component):
        wait_ns = RESTART_WAIT_NS << (exited.starts - 1)
        exited = _replace(exited, status="waiting", final=False, not_before_ns=event.at_ns + wait_ns)
    state = _put_replica(state, exited)
    is_main = component.name == spec.main_component.name
    if exited.failed and not is_main and not event.stopping and state.stop is None and state.failure is None:
        return fail(state, "job", _died(exited), replica=exited, at_ns=event.at_ns)
    return state


def _may_restart(state: AttemptState, exited: Replica, component: Component) -> bool:
    bad = exited.signal is not None or exited.exit_code != 0
    return (
        bad
        and component.restart == "on_failure"
        and exited.exit_code != EXIT_SUSPENDED
        and exited.starts <= RESTARTS_MAX
        and state.stop is None
        and state.failure is None
        and state.stage in ("starting", "running")
    )


def _died(replica: Replica) -> str:
    how = f"signal {replica.signal}" if replica.signal is not None else f"exit code {replica.exit_code}"
    memory = ", over its memory limit" if replica.oom else ""
    times = f" after {replica.starts - 1} restarts" if replica.starts > 1 else ""
    return f"component {replica.component} replica {replica.replica} ended with {how}{memory}{times}"


def fail(
    state: AttemptState, fault: str, detail: str, *, replica: Replica | None = None, at_ns: int = 0
) -> AttemptState:
    """Remember the first reason for which the sandbox must end; its processes have a grace from `at_ns` on."""
    if state.failure is not None:
        return state
    failure = Failure(
        fault="job" if fault == "job" else "infrastructure",
        detail=plain(detail, FAILURE_CHARS_MAX),
        at_ns=at_ns,
        exit_code=replica.exit_code if replica else None,
        signal=replica.signal if replica else None,
        oom=bool(replica and replica.oom),
    )
    return _replace(state, failure=failure)


def not_startable(state: AttemptState, started: Replica, detail: str, at_ns: int) -> AttemptState:
    """The replica's command could not be executed: the job's own fault, with the shell's exit code for it."""
    state = _set_replica(
        state, started.component, started.replica, status="exited", final=True, exit_code=EXIT_NOT_STARTABLE
    )
    replica = next(r for r in state.replicas if r.name == started.name)
    text = f"component {replica.component} replica {replica.replica} could not be started: {detail}"
    return fail(state, "job", text, replica=replica, at_ns=at_ns)


def peer_failed(state: AttemptState, spec: JobSpec, failure: Failure) -> AttemptState:
    """Another member of the gang failed, and this one was asked to leave with it: say so where it did leave."""
    main = state.replicas_of(spec.main_component.name)
    left = state.acknowledged or any(replica.exit_code == EXIT_SUSPENDED for replica in main)
    if state.stop is not None or not left:
        return state
    return fail(state, failure.fault, f"it left because another member failed: {failure.detail}")


def order_starts(state: AttemptState, names: Sequence[str]) -> AttemptState:
    """Remember, before it is done, that these waiting replicas are started once more."""
    replicas = tuple(
        _replace(replica, status="starting", starts=replica.starts + 1) if replica.name in names else replica
        for replica in state.replicas
    )
    return _replace(state, replicas=replicas)


def started(state: AttemptState) -> AttemptState:
    """All processes were started once."""
    return _replace(state, stage="running") if state.stage == "starting" else state


def ending(state: AttemptState) -> AttemptState:
    """The sandbox is being ended."""
    return _replace(state, stage="ending") if not state.is_over else state


def connect(state: AttemptState, component: str, number: int) -> AttemptState:
    """A process of this replica speaks to the agent by the SDK."""
    return _replace(_set_replica(state, component, number, connected=True), spoke=True)


def mark(state: AttemptState, client: str, seq: int) -> AttemptState:
    """Remember that the client's messages up to `seq` are on disk; the oldest clients are forgotten."""
    marks = {key: value for key, value in state.marks.items() if key != client}
    while len(marks) >= CLIENTS_MAX:
        del marks[next(iter(marks))]
    return _replace(state, marks={**marks, client: seq})


def phase_told(state: AttemptState, now_ns: int) -> AttemptState:
    """Remember that the current phase is a fact, with which what was asked for has ended."""
    return _replace(state, phase=phases.journal(state.phase, now_ns), asks=asks.ended(state.asks))


def step_seen(state: AttemptState, step: int | None) -> AttemptState:
    """Remember the newest step that the job named."""
    if step is None or (state.last_step is not None and step <= state.last_step):
        return state
    return _replace(state, last_step=step)


def saved(state: AttemptState, directory: str, step: int) -> AttemptState:
    """Remember the newest reported checkpoint."""
    return step_seen(_replace(state, saved=SavedMark(directory=directory, step=step)), step)


def quotas_applied(state: AttemptState, asked: tuple[Quota, ...], seen: tuple[Quota, ...]) -> AttemptState:
    """Remember what was asked of the kernel, and what it then said."""
    return _replace(state, quotas_asked=asked, quotas_reported=seen, quotas_retry_ns=0)


def _set_replica(state: AttemptState, component: str, number: int, **changes: object) -> AttemptState:
    replicas = tuple(
        _replace(replica, **changes) if (replica.component, replica.replica) == (component, number) else replica
        for replica in state.replicas
    )
    return _replace(state, replicas=replicas)


def _put_replica(state: AttemptState, changed: Replica) -> AttemptState:
    return _replace(
        state, replicas=tuple(changed if replica.name == changed.name else replica for replica in state.replicas)
    )
