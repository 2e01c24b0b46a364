"""How far the CPU share of a job is raised whose step rate is below its declared target: in steps, by what is folded.

While the rate is low, the share goes up by one step at once and one more in each window over which the rate is
measured: before that nobody can know whether the last step was enough. Recovered, the job keeps what made it fast
enough, and gives back one step after `LOWERED_WINDOWS` such windows; is that one step too many, its rate falls again,
and one comes back. The steps follow from the time alone, so no decision has to record them.
"""

from __future__ import annotations

from tidegate_events import events as e

from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job, State

STEPS_MAX = 4
"""Steps from what the phase is guaranteed to the most that it lets a member have."""

LOWERED_WINDOWS = 12
"""Windows of a rate that has recovered for each step back. The metrics service needs some before it says low again."""

WINDOW_SECONDS_MAX = 3600


def on_step_rate(state: State, event: e.StepRateLow | e.StepRateRecovered, at: str) -> None:
    """Note that the job is slow, or no longer, and how far its share was raised then."""
    job = state.jobs.get(event.job)
    slow = isinstance(event, e.StepRateLow)
    if not state.elastic or job is None or job.waiting or job.attempt != event.attempt or job.slow == slow:
        return
    # Its writer's clock may be behind the scheduler's time, in which the policy counts.
    now_ns = max(event.at_ns, state.header.now_ns)
    steps = steps_at(job, now_ns)
    job.raised_steps = min(STEPS_MAX, steps + 1) if slow else steps
    job.raised_ns = now_ns
    job.raise_window_seconds = max(1, min(event.window_seconds, WINDOW_SECONDS_MAX))
    job.slow = slow
    job.cause = at
    state.touch(f"job/{job.id}")


def forget(job: Job) -> None:
    """Forget all of it: the attempt has ended."""
    job.slow = False
    job.raised_steps = job.raised_ns = job.raise_window_seconds = 0


def steps_at(job: Job, now_ns: int) -> int:
    """Return how many steps of `STEPS_MAX` the share is raised by."""
    if not job.raised_steps:
        return 0
    passed = max(0, now_ns - job.raised_ns) // _step_ns(job)
    return min(STEPS_MAX, job.raised_steps + passed) if job.slow else max(0, job.raised_steps - passed)


def next_step_ns(job: Job, now_ns: int) -> int | None:
    """Return when the number of steps changes next by the time alone, None where it does not."""
    steps = steps_at(job, now_ns)
    if steps == (STEPS_MAX if job.slow else 0):
        return None
    return job.raised_ns + (abs(steps - job.raised_steps) + 1) * _step_ns(job)


def _step_ns(job: Job) -> int:
    return job.raise_window_seconds * SECOND_NS * (1 if job.slow else LOWERED_WINDOWS)
