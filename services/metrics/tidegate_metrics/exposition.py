"""Writes the state in Prometheus's text format. Every name and label is the catalogue's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client.registry import Collector

from tidegate_metrics.catalogue import BY_NAME, PREEMPTION_BUCKETS, WAIT_BUCKETS
from tidegate_metrics.histogram import Histogram, cumulated
from tidegate_metrics.state import State
from tidegate_metrics.totals import Series

__all__ = ["CONTENT_TYPE", "render"]

Values = Iterable[tuple[tuple[str, ...], float]]


def render(state: State, now_ns: int) -> bytes:
    """Return all metrics as of `now_ns`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StateCollector(state, now_ns))
    return generate_latest(registry)


class _StateCollector(Collector):
    def __init__(self, state: State, now_ns: int) -> None:
        self._state = state
        self._now_ns = now_ns

    def collect(self) -> Iterator[Metric]:
        """Yield every family that has something to say."""
        state = self._state
        if state.caught_up:  # before that, counters would fall back to where they were long ago
            yield from _journal(state, self._now_ns)
        yield from _polled(state)
        yield from _by_name(state.readings.gauges(self._now_ns) | state.step_rates())
        if state.ledger is not None:
            yield from _totals(state)
        yield from _service(state)


def _simple(name: str, values: Values) -> Metric:
    metric = BY_NAME[name]
    family: GaugeMetricFamily | CounterMetricFamily
    if metric.kind == "gauge":
        family = GaugeMetricFamily(name, metric.text, labels=metric.labels)
    else:
        family = CounterMetricFamily(name.removesuffix("_total"), metric.text, labels=metric.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def _histogram(name: str, values: Iterable[tuple[tuple[str, ...], list[tuple[str, float]], float]]) -> Metric:
    metric = BY_NAME[name]
    family = HistogramMetricFamily(name, metric.text, labels=metric.labels)
    for labels, buckets, total in values:
        family.add_metric(labels, buckets, total)
    return family


def _by_name(values: dict[Series, float]) -> Iterator[Metric]:
    """Yield a family for each name among the series, in the catalogue's order; series in their own."""
    grouped: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for (name, labels), value in values.items():
        grouped.setdefault(name, []).append((labels, value))
    for name in BY_NAME:
        if name in grouped:
            yield _simple(name, sorted(grouped[name]))


def _journal(state: State, now_ns: int) -> Iterator[Metric]:
    journal = state.journal
    yield _pending(state)
    oldest = journal.oldest_waiting_ns()
    yield _simple(
        "tidegate_oldest_pending_age_seconds", (((q,), max(0.0, (now_ns - at) / 1e9)) for q, at in oldest.items())
    )
    yield _simple("tidegate_running_jobs", (((queue,), count) for queue, count in journal.running().items()))
    yield _simple("tidegate_jobs_ended_total", journal.ended.items())
    yield _simple("tidegate_preemptions_total", (((queue,), count) for queue, count in journal.preemptions.items()))
    yield _simple("tidegate_lost_gpu_seconds_total", (((q,), lost / 1e9) for q, lost in journal.lost_gpu_ns.items()))
    yield _simple("tidegate_gpus", (((name,), count) for name, count in journal.gpus().items()))
    statuses = [node.status for node in journal.nodes.values()]
    yield _simple("tidegate_nodes", (((name,), statuses.count(name)) for name in ("up", "unreachable", "lost")))
    yield _histogram("tidegate_queue_wait_seconds", _folded(journal.queue_wait, WAIT_BUCKETS))
    yield _histogram("tidegate_preemption_latency_seconds", _folded(journal.preemption_latency, PREEMPTION_BUCKETS))
    judged = [job for job in journal.jobs.values() if job.target_steps_per_second is not None]
    targets = (((job.tenant, job.id), float(job.target_steps_per_second or 0)) for job in judged)
    yield _simple("tidegate_target_steps_per_second", targets)
    yield _simple("tidegate_step_rate_low", (((job.tenant, job.id), float(job.rate_low)) for job in judged))


def _folded(
    histograms: dict[str, Histogram], bounds: tuple[float, ...]
) -> Iterator[tuple[tuple[str, ...], list[tuple[str, float]], float]]:
    for queue, histogram in sorted(histograms.items()):
        yield (queue,), histogram.buckets(), histogram.sum


def _pending(state: State) -> Metric:
    """Take the reasons from the scheduler; while it is away, count without them."""
    if state.scheduler is not None:
        counts = {(count.tenant, count.reason): float(count.jobs) for count in state.scheduler.waiting}
    else:
        counts = {(queue, "Unknown"): float(jobs) for queue, jobs in state.journal.waiting().items()}
    return _simple("tidegate_pending_jobs", counts.items())


def _polled(state: State) -> Iterator[Metric]:
    if state.journal_bytes is not None:
        sizes = [(("used",), float(state.journal_bytes.used))]
        if state.journal_bytes.limit > 0:
            sizes.append((("limit",), float(state.journal_bytes.limit)))
        yield _simple("tidegate_journal_bytes", sizes)
        yield _simple("tidegate_journal_generation", [((), float(state.journal_bytes.generation))])
        yield _simple("tidegate_journal_sealed_generations", [((), float(state.journal_bytes.sealed))])
    if state.letters.known:
        letters = state.letters
        yield _simple("tidegate_deadletters", (((name,), float(count)) for name, count in letters.open().items()))
        yield _simple("tidegate_deadletters_total", (((name,), n) for name, n in letters.set_aside.items()))
        yield _simple("tidegate_deadletters_expired_total", (((name,), n) for name, n in letters.expired.items()))
    if state.projection_lag is not None:
        yield _simple("tidegate_projection_lag_seconds", [((), state.projection_lag[0])])
        yield _simple("tidegate_projection_lag_events", [((), float(state.projection_lag[1]))])
    if state.scheduler is not None:
        for name, times in (
            ("tidegate_pass_seconds", state.scheduler.passes),
            ("tidegate_wake_seconds", state.scheduler.wakes),
        ):
            if times is not None and len(times.counts) == len(times.bounds_seconds) + 1:
                buckets = cumulated(times.bounds_seconds, times.counts)
                yield _histogram(name, [((), buckets, times.total_seconds)])


def _totals(state: State) -> Iterator[Metric]:
    assert state.ledger is not None
    series = state.ledger.totals.series
    yield from _by_name({key: total.value for key, total in series.items() if key[0] in BY_NAME})
    for metric in BY_NAME.values():
        if metric.kind == "histogram" and metric.labels == BY_NAME["tidegate_checkpoint_seconds"].labels:
            yield _histogram(metric.name, _stored(metric.name, metric.buckets, state))


def _stored(
    name: str, bounds: tuple[float, ...], state: State
) -> Iterator[tuple[tuple[str, ...], list[tuple[str, float]], float]]:
    """Put a histogram together from its series of counters."""
    assert state.ledger is not None
    series = state.ledger.totals.series
    places = sorted(labels for found, labels in series if found == f"{name}_sum")
    for place in places:
        total = series[f"{name}_sum", place].value
        names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
        known = [series.get((f"{name}_bucket", (*place, le))) for le in names]
        yield place, cumulated(bounds, [found.value if found else 0.0 for found in known]), total


def _service(state: State) -> Iterator[Metric]:
    yield _simple("tidegate_telemetry_messages_total", [((), float(state.messages))])
    yield _simple("tidegate_telemetry_dropped_total", (((why,), n) for why, n in state.dropped_samples().items()))
    if state.messages:
        yield _simple("tidegate_telemetry_lag_seconds", [((), state.lag_seconds)])
    yield _simple("tidegate_metrics_rows_total", [((), float(state.rows_written))])
    if state.database_up is not None:
        yield _simple("tidegate_metrics_database_up", [((), float(state.database_up))])
    yield _simple("tidegate_metrics_caught_up", [((), float(state.caught_up))])
