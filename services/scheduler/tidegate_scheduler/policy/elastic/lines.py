"""Which jobs are alike: the line that a job stands in while it waits."""

from __future__ import annotations

from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec

from tidegate_scheduler.policy.elastic.peaks import phases_of
from tidegate_scheduler.policy.elastic.queue import LineKey
from tidegate_scheduler.policy.elastic.shapes import Shape
from tidegate_scheduler.policy.elastic.work import steps_left
from tidegate_scheduler.policy.limits import time_limit_seconds
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job


def line_key(job: Job, spec: JobSpec, need: Resources) -> LineKey:
    """Return which line a job that needs so much for each member stands in."""
    shape = Shape(
        isolation=spec.isolation,
        image=spec.image,
        need=need,
        gang_size=spec.gang_size,
        intensive=spec.communication == "intensive" and spec.gang_size > 1,
        gpu_models=spec.gpu_models,
        cpu_model=job.cpu_model,
        alike=spec.determinism == "strict" and spec.gang_size > 1 and not job.cpu_model,
        rack_wide=spec.communication == "intensive" and spec.gang_size > 1 and spec.widest_domain == "rack",
        phases=phases_of(spec),
    )
    alone = job.id if job.excluded_nodes or job.reserved_nodes else ""
    limit = time_limit_seconds(job, spec)
    return LineKey(
        job.tenant,
        job.priority,
        shape,
        steps_left(job, spec, need, job.ran_ns),
        alone,
        limit - job.ran_ns // SECOND_NS if limit is not None else None,
        spec.locality_wait_seconds if shape.intensive else 0,
    )
