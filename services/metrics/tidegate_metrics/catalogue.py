"""Every metric that Prometheus can read here: name, kind, labels, meaning. Nothing else is ever exposed.

`docs/reference/metrics.md` holds its tables (`python -m tidegate_metrics.catalogue`), and tests hold both together with
the alerts and the dashboard.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from tidegate_events import telemetry

Kind = Literal["gauge", "counter", "histogram"]

JOB = ("tenant", "job", "component", "node")
NODE = ("node",)
GPU = ("node", "gpu")
QUEUE = ("queue",)
CONSUMER = ("consumer",)
NONE: tuple[str, ...] = ()

WAIT_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
PREEMPTION_BUCKETS = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
PASS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
CHECKPOINT_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metric(msgspec.Struct, frozen=True):
    """One metric. A counter's `name` ends in `_total`; `buckets` are a histogram's upper bounds, in base units."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    text: str
    buckets: tuple[float, ...] = ()


def _of(prefix: str, kind: Kind, labels: tuple[str, ...], texts: dict[str, str]) -> tuple[Metric, ...]:
    suffix = "_total" if kind == "counter" else ""
    return tuple(Metric(f"{prefix}{name}{suffix}", kind, labels, text) for name, text in texts.items())


NODE_PREFIX, GPU_PREFIX, SANDBOX_PREFIX = "tidegate_node_", "tidegate_gpu_", "tidegate_sandbox_"

CLUSTER = (
    Metric("tidegate_pending_jobs", "gauge", ("queue", "reason"), "jobs that wait, by tenant and by why they wait"),
    Metric("tidegate_oldest_pending_age_seconds", "gauge", QUEUE, "how long the longest waiting job has waited"),
    Metric("tidegate_queue_wait_seconds", "histogram", QUEUE, "time from waiting to being placed", WAIT_BUCKETS),
    Metric("tidegate_running_jobs", "gauge", QUEUE, "jobs that hold room"),
    Metric("tidegate_jobs_ended_total", "counter", ("queue", "outcome"), "jobs that ended"),
    Metric("tidegate_preemptions_total", "counter", QUEUE, "jobs asked to leave for another one"),
    Metric(
        "tidegate_preemption_latency_seconds",
        "histogram",
        QUEUE,
        "time from being asked to leave to having left",
        PREEMPTION_BUCKETS,
    ),
    Metric(
        "tidegate_lost_gpu_seconds_total",
        "counter",
        QUEUE,
        "GPU time since the last checkpoint of attempts that ended without one and had to be repeated",
    ),
    Metric(
        "tidegate_gpus",
        "gauge",
        ("state",),
        "GPUs: `capacity` of the nodes, `allocated` to jobs, `lent` of those beyond what the job is guaranteed",
    ),
    Metric("tidegate_nodes", "gauge", ("state",), "nodes that are `up`, `unreachable` or `lost`"),
    Metric(
        "tidegate_journal_bytes",
        "gauge",
        ("kind",),
        "bytes of the journal's newest generation: `used`, and the `limit` where it takes no more",
    ),
    Metric("tidegate_journal_generation", "gauge", NONE, "number of the journal's newest generation"),
    Metric(
        "tidegate_journal_sealed_generations",
        "gauge",
        NONE,
        "generations that are closed and still on the bus, archived or not yet",
    ),
    Metric(
        "tidegate_deadletters",
        "gauge",
        CONSUMER,
        "events that a consumer set aside, not yet retried with success or dropped",
    ),
    Metric("tidegate_deadletters_total", "counter", CONSUMER, "events set aside since the metrics service started"),
    Metric(
        "tidegate_deadletters_expired_total",
        "counter",
        CONSUMER,
        "dead letters that nobody dealt with and that were let go, for age or want of room, since the service started",
    ),
    Metric("tidegate_projection_lag_seconds", "gauge", NONE, "how far the read models are behind the journal"),
    Metric("tidegate_projection_lag_events", "gauge", NONE, "events that the read models have not yet"),
    Metric("tidegate_pass_seconds", "histogram", NONE, "time that a scheduling pass took to decide", PASS_BUCKETS),
    Metric(
        "tidegate_wake_seconds",
        "histogram",
        NONE,
        "time that the leading scheduler took for all it does at a time: to look, decide, write and tell nodes",
        PASS_BUCKETS,
    ),
)
TRAINING = (
    Metric("tidegate_env_steps_total", "counter", JOB, "environment steps: the reported `env_steps`, else the `step`"),
    Metric("tidegate_step", "gauge", JOB, "newest step"),
    Metric("tidegate_steps_per_second", "gauge", JOB, "step rate over the last whole window"),
    Metric("tidegate_target_steps_per_second", "gauge", ("tenant", "job"), "step rate that the job declared"),
    Metric("tidegate_step_rate_low", "gauge", ("tenant", "job"), "1 from StepRateLow to StepRateRecovered, else 0"),
    Metric("tidegate_progress_ratio", "gauge", JOB, "reported progress"),
    Metric("tidegate_queue_depth", "gauge", JOB, "reported `queue_depth`, summed over replicas"),
    Metric("tidegate_buffer_hit_ratio", "gauge", JOB, "reported `buffer_hit_rate`, averaged over replicas"),
    Metric("tidegate_checkpoint_seconds", "histogram", JOB, "time to make a checkpoint durable", CHECKPOINT_BUCKETS),
    Metric("tidegate_checkpoint_wait_seconds_total", "counter", JOB, "time that saves kept the training code waiting"),
    Metric("tidegate_reports_dropped_total", "counter", JOB, "reports that were lost between SDK and agent"),
)
SERVICE = (
    Metric("tidegate_telemetry_messages_total", "counter", NONE, "messages of samples read, since the service started"),
    Metric(
        "tidegate_telemetry_dropped_total",
        "counter",
        ("reason",),
        "samples left out since the service started: `duplicate`, `unreadable`, `foreign` (about another node), `full`",
    ),
    Metric("tidegate_telemetry_lag_seconds", "gauge", NONE, "age of the newest message when it was read"),
    Metric("tidegate_metrics_rows_total", "counter", NONE, "rows written to PostgreSQL since the service started"),
    Metric("tidegate_metrics_database_up", "gauge", NONE, "1 while PostgreSQL takes rows"),
    Metric("tidegate_metrics_caught_up", "gauge", NONE, "1 when the journal is folded up to its end at the start"),
)
CATALOGUE: tuple[Metric, ...] = (
    *CLUSTER,
    *_of(NODE_PREFIX, "gauge", NODE, telemetry.NODE_GAUGES),
    *_of(NODE_PREFIX, "counter", NODE, telemetry.NODE_COUNTERS),
    *_of(GPU_PREFIX, "gauge", GPU, telemetry.GPU_GAUGES),
    *_of(SANDBOX_PREFIX, "gauge", JOB, telemetry.SANDBOX_GAUGES),
    *_of(SANDBOX_PREFIX, "counter", JOB, telemetry.SANDBOX_COUNTERS),
    *TRAINING,
    *SERVICE,
)
BY_NAME: dict[str, Metric] = {metric.name: metric for metric in CATALOGUE}


def render() -> str:
    """Return the catalogue as Markdown tables, one for each level."""
    levels = (
        ("Queue, scheduler and journal", lambda name: name in {metric.name for metric in CLUSTER}),
        ("Nodes", lambda name: name.startswith((NODE_PREFIX, GPU_PREFIX))),
        ("Sandboxes", lambda name: name.startswith(SANDBOX_PREFIX)),
        ("Training processes", lambda name: name in {metric.name for metric in TRAINING}),
        ("The metrics service itself", lambda name: name in {metric.name for metric in SERVICE}),
    )
    lines: list[str] = []
    for title, belongs in levels:
        lines += [f"## {title}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|"]
        for metric in CATALOGUE:
            if belongs(metric.name):
                labels = ", ".join(f"`{label}`" for label in metric.labels)
                lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.text} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(render(), end="")
