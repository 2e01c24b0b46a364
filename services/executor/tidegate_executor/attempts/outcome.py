"""What the end of a sandbox means: completed, suspended, failed, stopped or lost. Pure.

Infrastructure is never the job's own failure, and leaving with exit code 0 while asked to leave is not completion.
"""

from __future__ import annotations

import msgspec
from tidegate_events.events import Outcome
from tidegate_events.spec import JobSpec

from tidegate_executor.attempts.state import AttemptState, Replica
from tidegate_executor.attempts.transitions import EXIT_SUSPENDED


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a sandbox ended, as SandboxExited says it."""

    outcome: Outcome
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    acknowledged: bool = False


def classify(state: AttemptState, spec: JobSpec) -> Ending:
    """Return what the ended sandbox comes to."""
    main = state.replicas_of(spec.main_component.name)
    telling = next((replica for replica in main if _bad(replica)), main[-1])
    if state.failure is not None and state.failure.fault == "infrastructure":
        return Ending(outcome="lost", detail=state.failure.detail)
    if state.stop is not None and (state.acknowledged or _all_left_suspended(main)):
        return _from(telling, "suspended", acknowledged=True)
    if state.finished:
        return _from(telling, "completed")
    if state.collapsed:
        return Ending(outcome="lost", detail="the sandbox broke down without being stopped")
    if state.stop is not None:
        done = all(replica.is_done for replica in main)
        return _from(telling, "stopped", detail=_stopped_detail(state, done))
    return _unasked(state, main, telling)


def _unasked(state: AttemptState, main: tuple[Replica, ...], telling: Replica) -> Ending:
    if (failure := state.failure) is not None:
        return Ending(
            outcome="failed",
            detail=failure.detail + (f"; {state.disk_full}" if state.disk_full else ""),
            exit_code=failure.exit_code,
            signal=failure.signal,
            oom=failure.oom,
        )
    if not (_bad(telling) or all(replica.is_done for replica in main)):
        return Ending(outcome="lost", detail="the sandbox ended before its main component did")
    if all(replica.exit_code == 0 for replica in main):
        return _from(telling, "completed")
    full = f"; {state.disk_full}" if state.disk_full else ""
    return _from(telling, "failed", detail=_failed_detail(telling) + full)


def _all_left_suspended(main: tuple[Replica, ...]) -> bool:
    codes = [replica.exit_code for replica in main if replica.is_done]
    return EXIT_SUSPENDED in codes and not any(_bad(replica) for replica in main)


def _bad(replica: Replica) -> bool:
    return replica.is_done and (replica.signal is not None or replica.exit_code not in (0, EXIT_SUSPENDED))


def _from(replica: Replica, outcome: Outcome, *, detail: str = "", acknowledged: bool = False) -> Ending:
    return Ending(
        outcome=outcome,
        detail=detail,
        exit_code=replica.exit_code,
        signal=replica.signal,
        oom=replica.oom,
        acknowledged=acknowledged,
    )


def _stopped_detail(state: AttemptState, done: bool) -> str:
    assert state.stop is not None
    how = "it left without acknowledging the request" if done else "it was ended"
    return f"asked to leave ({state.stop.reason or state.stop.desired}); {how}"


def _failed_detail(replica: Replica) -> str:
    if replica.oom:
        return f"component {replica.component} was killed over its memory limit"
    if replica.signal is not None:
        return f"component {replica.component} was killed by signal {replica.signal}"
    if replica.exit_code == EXIT_SUSPENDED:
        return f"component {replica.component} said it was suspended (exit code 75), but nobody had asked it to leave"
    return f"component {replica.component} ended with exit code {replica.exit_code}"
