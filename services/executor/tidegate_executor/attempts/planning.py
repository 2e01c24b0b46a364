"""What to do next about an attempt, from its state alone. Pure, and level-triggered: the same state, the same answer.

So an agent that was killed between deciding and doing decides the same again, and doing is safe to repeat.
"""

from __future__ import annotations

import msgspec
from tidegate_events.events import Quota
from tidegate_events.spec import DEFAULT_PHASE, JobSpec

from tidegate_executor.attempts import entry, phases, scaling
from tidegate_executor.attempts.state import AttemptState, Replica
from tidegate_executor.attempts.transitions import EXIT_SUSPENDED

REST_GRACE_SECONDS = 5.0  # for the other components, once the main one is gone
ANOMALY_GRACE_SECONDS_MAX = 300  # for the main one, once another is gone for good: the job's own grace, up to this
QUOTA_RETRY_NS = 5_000_000_000


class ReportStarted(msgspec.Struct, frozen=True):
    """Every process was started once: report it."""


class Start(msgspec.Struct, frozen=True):
    """Start these waiting replicas once more (their order to start is to be put on disk first)."""

    replicas: tuple[Replica, ...]


class Grow(msgspec.Struct, frozen=True):
    """Start these simulators, which there were not (what is started is to be put on disk first)."""

    replicas: tuple[Replica, ...]


class Shrink(msgspec.Struct, frozen=True):
    """Tell these simulators to leave (that they leave is to be put on disk first)."""

    replicas: tuple[Replica, ...]


class Kill(msgspec.Struct, frozen=True):
    """End these simulators, which were told to leave long ago."""

    replicas: tuple[Replica, ...]


class Resize(msgspec.Struct, frozen=True):
    """Give each replica of these components its new limits."""

    quotas: tuple[Quota, ...]


class AskToLeave(msgspec.Struct, frozen=True):
    """Tell the processes that speak to the agent that they shall save and leave."""

    reason: str
    deadline_ns: int


class EndSandbox(msgspec.Struct, frozen=True):
    """SIGTERM to all that runs, SIGKILL after the grace."""

    grace_seconds: float


class SayPhase(msgspec.Struct, frozen=True):
    """Put the current phase as a fact."""


class SayAsk(msgspec.Struct, frozen=True):
    """Put as a fact that the member waits for this phase; empty: that it waits for none any more."""

    phase: str


class ForgetAway(msgspec.Struct, frozen=True):
    """Forget the processes that have been away for too long: they wait for no phase, and are in none."""


class Conclude(msgspec.Struct, frozen=True):
    """Nothing runs any more: report the exit and remove the sandbox."""


Action = (
    ReportStarted
    | Start
    | Grow
    | Shrink
    | Kill
    | Resize
    | AskToLeave
    | EndSandbox
    | SayPhase
    | SayAsk
    | ForgetAway
    | Conclude
)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now, and when to look again at the latest (0: when something happens)."""

    actions: tuple[Action, ...] = ()
    wake_ns: int = 0


def plan(state: AttemptState, spec: JobSpec, now_ns: int) -> Plan:
    """Return the next actions for an attempt whose sandbox exists."""
    if state.is_over:
        return Plan()
    wakes: list[int] = []
    actions: list[Action] = []
    if state.stage == "starting" and state.failure is None and all(r.status != "starting" for r in state.replicas):
        actions.append(ReportStarted())
    if state.sandbox_over:
        return Plan(actions=(*actions, Conclude()))
    _phase(state, now_ns, actions, wakes)
    request = _request(state, spec)
    grace_seconds = _ending_grace_seconds(state, spec, request, now_ns)
    if grace_seconds is not None:
        actions.append(EndSandbox(grace_seconds))
    if request is not None:
        actions.append(request)
        if now_ns < request.deadline_ns:
            wakes.append(request.deadline_ns)
    elif grace_seconds is None:
        _starts(state, now_ns, actions, wakes)
        _scale(state, spec, now_ns, actions, wakes)
        _quotas(state, now_ns, actions, wakes)
        _asks(state, now_ns, actions, wakes)
    return Plan(actions=tuple(actions), wake_ns=min(wakes, default=0))


def main_is_over(state: AttemptState, spec: JobSpec) -> bool:
    """Say whether the component whose exit ends the sandbox is gone: all of it, or one replica badly."""
    main = state.replicas_of(spec.main_component.name)
    return all(replica.is_done for replica in main) or any(
        replica.failed and replica.exit_code != EXIT_SUSPENDED for replica in main
    )


def _request(state: AttemptState, spec: JobSpec) -> AskToLeave | None:
    """Return why and until when it shall leave: an order, or an anomaly, before which it may save; the earlier one."""
    requests = []
    if (stop := state.stop) is not None:
        requests.append(AskToLeave(stop.reason or stop.desired, stop.deadline_ns))
    if (failure := state.failure) is not None:
        grace_seconds = min(max(spec.preemption.grace_seconds, 0), ANOMALY_GRACE_SECONDS_MAX)
        requests.append(AskToLeave(failure.detail, failure.at_ns + grace_seconds * 1_000_000_000))
    return min(requests, key=lambda request: request.deadline_ns, default=None)


def _ending_grace_seconds(state: AttemptState, spec: JobSpec, request: AskToLeave | None, now_ns: int) -> float | None:
    """Return how long what runs has until it is killed; None where it need not end now.

    A job of which the main component never spoke to the agent is asked by SIGTERM instead, at once.
    """
    rest = REST_GRACE_SECONDS if main_is_over(state, spec) else None
    if request is None:
        return rest
    left = max(0.0, (request.deadline_ns - now_ns) / 1e9)
    if rest is not None:
        return min(rest, left)
    speaks = any(replica.connected for replica in state.replicas_of(spec.main_component.name))
    return None if speaks and left > 0 else left


def _phase(state: AttemptState, now_ns: int, actions: list[Action], wakes: list[int]) -> None:
    due = phases.due_ns(state.phase)
    if due is None or state.stage not in ("running", "ending"):
        return
    if entry.leaves_at_once(state):
        due = now_ns
    elif state.phase.current == DEFAULT_PHASE and entry.is_entering(state):
        return
    if due <= now_ns:
        actions.append(SayPhase())
    else:
        wakes.append(due)


def _asks(state: AttemptState, now_ns: int, actions: list[Action], wakes: list[int]) -> None:
    if state.stage != "running":
        return
    if (away_due := entry.away_due_ns(state)) is not None:
        if away_due <= now_ns:
            actions.append(ForgetAway())
        else:
            wakes.append(away_due)
    if (phase := entry.to_tell(state)) is not None:
        if state.asks.next_ns <= now_ns:
            actions.append(SayAsk(phase))
        else:
            wakes.append(state.asks.next_ns)


def _starts(state: AttemptState, now_ns: int, actions: list[Action], wakes: list[int]) -> None:
    waiting = [replica for replica in state.replicas if replica.status == "waiting"]
    due = tuple(replica for replica in waiting if replica.not_before_ns <= now_ns)
    if due:
        actions.append(Start(due))
    wakes += [replica.not_before_ns for replica in waiting if replica not in due]


def _scale(state: AttemptState, spec: JobSpec, now_ns: int, actions: list[Action], wakes: list[int]) -> None:
    if state.stage != "running":
        return
    if leaving := scaling.to_leave(state, spec):
        actions.append(Shrink(leaving))
    if missing := scaling.to_start(state, spec):
        actions.append(Grow(missing))
    told = [replica for replica in state.replicas if replica.leave_by_ns]
    if overdue := tuple(replica for replica in told if replica.leave_by_ns <= now_ns):
        actions.append(Kill(overdue))
    wakes += [replica.leave_by_ns for replica in told if replica.leave_by_ns > now_ns]


def _quotas(state: AttemptState, now_ns: int, actions: list[Action], wakes: list[int]) -> None:
    if state.stage != "running":
        return
    asked = {quota.component: quota for quota in state.quotas_asked}
    changed = tuple(quota for quota in state.quotas_wanted if asked.get(quota.component) != quota)
    if changed:
        if state.quotas_retry_ns <= now_ns:
            actions.append(Resize(changed))
        else:
            wakes.append(state.quotas_retry_ns)
