"""What spares a job from leaving for others, and until when that is so: what it has run of what it expected, how often
it left before, how long ago it came back."""

from __future__ import annotations

import msgspec

from tidegate_scheduler.policy.elastic.holders import NEVER
from tidegate_scheduler.policy.elastic.queue import aged
from tidegate_scheduler.policy.parameters import SECOND_NS, Parameters
from tidegate_scheduler.state import Job, State

PROTECTED, BUDGET, COOLDOWN = "Protected", "PreemptionBudget", "CoolDown"


class Judged(msgspec.Struct, frozen=True, gc=False):
    """What is so of a job that does not change, from `since_ns` until `until_ns`.

    `standing` is the class in which it was placed: were what it waited forgotten, it would be pushed out again. `why`
    is what spares it, empty where nothing does, and `spared_until_ns` when time alone ends that; NEVER: it does not.
    """

    standing: int
    why: str
    spared_until_ns: int
    since_ns: int
    until_ns: int


def judge(state: State, job: Job, now_ns: int, parameters: Parameters) -> Judged:
    """Return what is so of a job from now on."""
    ageing_ns = parameters.ageing_seconds * SECOND_NS
    standing = aged(job.priority, max(job.submitted_ns, job.suspended_ns), job.placed_ns, ageing_ns)
    if job.preemptions - job.slices >= parameters.preemptions_max:
        return Judged(standing, BUDGET, NEVER, now_ns, NEVER)
    cool_ns = (job.started_ns or job.placed_ns) + parameters.preemption_cooldown_seconds * SECOND_NS
    if job.preemptions and now_ns < cool_ns:
        return Judged(standing, COOLDOWN, cool_ns, now_ns, cool_ns)
    span = _protected_span(state, job, parameters)
    if span is None:
        return Judged(standing, "", NEVER, now_ns, NEVER)
    begins_ns, ends_ns = span
    spared = begins_ns <= _clock_ns(job, now_ns) < ends_ns
    why, started_ns = PROTECTED if spared else "", job.started_ns
    if not started_ns:
        return Judged(standing, why, NEVER, now_ns, NEVER)
    if now_ns < started_ns:
        until_ns = started_ns
    elif now_ns < begins_ns:
        until_ns = begins_ns
    else:
        until_ns = ends_ns if now_ns < ends_ns else NEVER
    return Judged(standing, why, ends_ns if spared else NEVER, now_ns, until_ns)


def _protected_span(state: State, job: Job, parameters: Parameters) -> tuple[int, int] | None:
    """Return from when until when a job is protected, by its own clock (`_clock_ns`).

    That is, close to its end by its own estimate until it has overrun that by more than the bound. None: it never is.
    """
    expected = state.specs[job.id].expected_seconds
    if not expected or not parameters.protection_permille:
        return None
    began_ns, whole_ns = job.started_ns - job.ran_ns, expected * SECOND_NS
    begins_ns = began_ns - (-whole_ns * parameters.protection_permille // 1000)
    return begins_ns, _overrun_ns(began_ns, expected, parameters)


def _clock_ns(job: Job, now_ns: int) -> int:
    """Return the time, by the job's clock: it stands still until the job has started."""
    return max(now_ns, job.started_ns) if job.started_ns else 0


def _overrun_ns(began_ns: int, expected: int, parameters: Parameters) -> int:
    return began_ns + expected * SECOND_NS * (1000 + parameters.overrun_permille) // 1000 + 1


def overrun_ns(state: State, job: Job, parameters: Parameters) -> int | None:
    """Return when a job has overrun its estimate by more than the bound; None: it does not run, or says nothing."""
    expected = state.specs[job.id].expected_seconds
    if not expected or not job.started_ns:
        return None
    return _overrun_ns(job.started_ns - job.ran_ns, expected, parameters)


def protected(state: State, job: Job, now_ns: int, parameters: Parameters) -> bool:
    """Say whether the job is close to its end by its own estimate, and has not overrun that by more than the bound."""
    span = _protected_span(state, job, parameters)
    return span is not None and span[0] <= _clock_ns(job, now_ns) < span[1]
