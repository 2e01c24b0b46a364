"""How much work a job has left as far as is known, in steps: what orders jobs of one priority, and who leaves for whom.

Work is service: time on so many devices, a member without any counting as one. What is left is what a job expects less
what it has had. Where it says nothing it is as much as it has had: of jobs that ran for longer, more run for longer
still. Who has overrun what it expected by a quarter is judged as if it had said nothing, so that saying little buys
little.
"""

from __future__ import annotations

from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job

UNIT_MILLIS = 60 * 1000
"""The first step is a minute of one device; every doubling of that is one more."""

BELIEVED_PERMILLE = 1250
"""Until when a job is judged by the time that it said; for how long that protects it is for the operator to say."""


def steps_left(job: Job, spec: JobSpec, need: Resources, ran_ns: int) -> int:
    """Return the steps of work that a job has left which ran for so long."""
    return steps_of(seconds_left(job, spec, ran_ns) * size_millis(spec, need))


def seconds_left(job: Job, spec: JobSpec, ran_ns: int) -> int:
    """Return for how long the job will run yet, as far as is known.

    Progress shortens what is expected by half at most, so that reporting it buys little.
    """
    ran_seconds = ran_ns // SECOND_NS
    expected = spec.expected_seconds
    if expected is None or ran_seconds * 1000 > expected * BELIEVED_PERMILLE:
        return ran_seconds
    seconds = max(0, expected - ran_seconds)
    by_progress = expected * (1000 - job.progress_millis) // 1000
    return min(seconds, max(by_progress, seconds // 2))


def size_millis(spec: JobSpec, need: Resources) -> int:
    """Return on how many devices the job runs, in thousandths."""
    return (need.gpus * WHOLE_MILLIS + need.gpu_millis or WHOLE_MILLIS) * spec.gang_size


def steps_of(service_millis: int) -> int:
    """Return the steps of so much service, in seconds of thousandths of a device: they double."""
    return (service_millis // UNIT_MILLIS).bit_length()


def service_of(steps: int) -> int:
    """Return the least service that is so many steps."""
    return (1 << steps >> 1) * UNIT_MILLIS
