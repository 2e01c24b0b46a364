"""What Prometheus reads: names and labels of the catalogue alone, and every name that people use elsewhere is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tidegate_events import events as e
from tidegate_events.deadletter import StoredLetter
from tidegate_events.telemetry import CheckpointTiming, GpuReading
from tidegate_metrics.catalogue import BY_NAME, CATALOGUE, render
from tidegate_metrics.exposition import render as exposed
from tidegate_metrics.feed.base import Message, read
from tidegate_metrics.ledger import Ledger, Stored
from tidegate_metrics.polls import JournalBytes, PassTimes, SchedulerAnswer, WaitingCount
from tidegate_metrics.rates import Thresholds
from tidegate_metrics.signals import RateWatch, Verdict
from tidegate_metrics.state import State

from tests.metrics.conftest import parsed, shown
from tests.metrics.letters import letter
from tests.metrics.samples import SECOND, START, Node
from tests.metrics.test_journal_metrics import Story

ROOT = Path(__file__).parents[2]
NOW = START + 100 * SECOND
REQUIRED = {
    "tidegate_pending_jobs": ("queue", "reason"),
    "tidegate_oldest_pending_age_seconds": ("queue",),
    "tidegate_queue_wait_seconds": ("queue",),
    "tidegate_preemptions_total": ("queue",),
    "tidegate_preemption_latency_seconds": ("queue",),
    "tidegate_lost_gpu_seconds_total": ("queue",),
    "tidegate_gpus": ("state",),
    "tidegate_journal_bytes": ("kind",),
    "tidegate_deadletters": ("consumer",),
    "tidegate_deadletters_total": ("consumer",),
    "tidegate_journal_generation": (),
    "tidegate_projection_lag_seconds": (),
    "tidegate_pass_seconds": (),
    "tidegate_wake_seconds": (),
    "tidegate_env_steps_total": ("tenant", "job", "component", "node"),
    "tidegate_checkpoint_seconds": ("tenant", "job", "component", "node"),
}


def message(seq: int, *samples: Any) -> Message:
    return Message("s", seq, NOW - SECOND, samples)


@pytest.fixture
def state() -> State:
    """Everything there is to show, shown."""
    made = State(window_seconds=10)
    story = Story()
    story.place(40)
    story.leave(100, 104, acknowledged=False)
    made.journal, made.caught_up = story.metrics, True
    made.ledger = Ledger(Stored(), START)
    waiting = (WaitingCount("lab-a", "Resources", 3),)
    wakes = PassTimes((0.001, 0.01), (1, 2, 4), 1.5)
    made.scheduler = SchedulerAnswer(waiting, PassTimes((0.001, 0.01), (4, 2, 1), 0.5), wakes)
    made.journal_bytes, made.projection_lag, made.database_up = JournalBytes(10, 100, 3, 1), (1.5, 3), True
    made.letters.forget(0)
    made.letters.apply(StoredLetter(letter(seq=1), 1))
    made.letters.forget(2)
    node = Node()
    gauges = {name.removeprefix("tidegate_node_"): 1.0 for name in _names("tidegate_node_", "gauge")}
    counters = {
        name.removeprefix("tidegate_node_").removesuffix("_total"): 1.0 for name in _names("tidegate_node_", "counter")
    }
    gpu = GpuReading(index=0, gauges={n.removeprefix("tidegate_gpu_"): 1.0 for n in _names("tidegate_gpu_", "gauge")})
    sandbox = {name.removeprefix("tidegate_sandbox_"): 2.0 for name in _names("tidegate_sandbox_", "gauge")}
    counted = {
        n.removeprefix("tidegate_sandbox_").removesuffix("_total"): 1.0 for n in _names("tidegate_sandbox_", "counter")
    }
    saved = (CheckpointTiming(step=1, copy_seconds=0.5, write_seconds=1.0),)
    metrics = {"queue_depth": 4.0, "buffer_hit_rate": 0.5, "loss": 1.0}
    made.hear(
        message(
            1,
            node.node(NOW, gauges={**gauges, "surprise": 1.0}, counters=counters, gpus=(gpu,)),
            node.sandbox(NOW, gauges=sandbox, counters=counted),
            node.sandbox(NOW, replica=1, gauges=sandbox, counters=counted),
            node.process(NOW, 1, progress=0.5, metrics=metrics, checkpoints=saved, dropped_reports=2),
            node.process(NOW, 3, replica=1, metrics={"queue_depth": 6.0, "buffer_hit_rate": 1.0}),
        ),
        NOW,
    )
    made.close_windows(NOW)
    for second in range(1, 20):
        sample = node.process(NOW + second * SECOND, 1 + 5 * second)
        made.hear(message(1 + second, sample), NOW + second * SECOND)
        made.close_windows(NOW + second * SECOND)
    made.close_windows(NOW + 20 * SECOND)
    return made


def _names(prefix: str, kind: str) -> list[str]:
    return [metric.name for metric in CATALOGUE if metric.name.startswith(prefix) and metric.kind == kind]


def test_everything_in_the_catalogue_can_be_shown_and_nothing_else_is(state: State) -> None:
    text = exposed(state, NOW + SECOND).decode()
    seen: set[str] = set()
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        metric = BY_NAME[name]
        seen.add(name)
        assert (family.type, family.documentation) == (metric.kind, metric.text)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), sample
    assert seen == set(BY_NAME)


def test_the_names_that_were_promised_are_there_with_their_labels() -> None:
    assert {name: BY_NAME[name].labels for name in REQUIRED} == REQUIRED


def test_names_follow_the_conventions() -> None:
    for metric in CATALOGUE:
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric
        assert bool(metric.buckets) == (metric.kind == "histogram"), metric
        assert set(metric.labels) <= {
            *("tenant", "job", "component", "node", "gpu"),
            *("queue", "reason", "state", "kind", "outcome", "consumer"),
        }, metric
        assert not re.search(r"_(ms|millis|mib|percent|minutes)(_|$)", metric.name), metric
    assert len(BY_NAME) == len(CATALOGUE)


def test_replicas_are_taken_together_as_their_meaning_wants(state: State) -> None:
    metrics = parsed(exposed(state, NOW + SECOND).decode())
    about = {"job": "j1", "component": "main", "node": "n1"}
    assert shown(metrics, "tidegate_sandbox_memory_bytes", **about) == 4
    assert shown(metrics, "tidegate_sandbox_memory_peak_bytes", **about) == 2
    assert shown(metrics, "tidegate_queue_depth", **about) == 10
    assert shown(metrics, "tidegate_buffer_hit_ratio", **about) == 0.75
    assert shown(metrics, "tidegate_step", **about) == 96
    assert shown(metrics, "tidegate_steps_per_second", **about) == 5
    assert shown(metrics, "tidegate_checkpoint_seconds_bucket", **about, le="1") == 0
    assert shown(metrics, "tidegate_checkpoint_seconds_bucket", **about, le="2.5") == 1
    assert shown(metrics, "tidegate_checkpoint_seconds_count", **about) == 1
    assert shown(metrics, "tidegate_pass_seconds_bucket", le="0.01") == 6
    assert shown(metrics, "tidegate_pass_seconds_sum") == 0.5
    assert shown(metrics, "tidegate_wake_seconds_bucket", le="0.01") == 3
    assert shown(metrics, "tidegate_pending_jobs", queue="lab-a", reason="Resources") == 3
    assert shown(metrics, "tidegate_telemetry_dropped_total", reason="duplicate") == 0


def test_what_was_not_heard_for_long_is_no_longer_shown(state: State) -> None:
    later = parsed(exposed(state, NOW + 1000 * SECOND).decode())
    assert shown(later, "tidegate_sandbox_memory_bytes") is None
    assert shown(later, "tidegate_step") is None
    assert shown(later, "tidegate_sandbox_cpu_seconds_total") == 2, "a counter stays where it is"


def test_before_the_journal_is_folded_no_counter_of_it_is_shown(state: State) -> None:
    state.caught_up = False
    metrics = parsed(exposed(state, NOW).decode())
    assert shown(metrics, "tidegate_preemptions_total") is None
    assert shown(metrics, "tidegate_metrics_caught_up") == 0


def test_without_a_scheduler_jobs_are_counted_without_their_reasons(state: State) -> None:
    state.scheduler = None
    metrics = parsed(exposed(state, NOW).decode())
    assert shown(metrics, "tidegate_pending_jobs", queue="lab-a", reason="Unknown") == 1
    assert shown(metrics, "tidegate_pass_seconds_count") is None


def test_what_is_no_sample_or_of_another_node_is_counted_and_left_out() -> None:
    state = State(window_seconds=10)
    bad = read("s", 1, NOW, "tg.telemetry.n1", b"nonsense")
    foreign = Message("s", 2, NOW, (), foreign=3)
    for each in (bad, foreign):
        state.hear(each, NOW)
    assert state.dropped_samples() == {"duplicate": 0, "unreadable": 1, "foreign": 3, "full": 0}
    from tidegate_events.telemetry import encode  # noqa: PLC0415 - beside its only use

    (data,) = encode([Node("n2").node(NOW), Node("n1").node(NOW)])
    mixed = read("s", 3, NOW, "tg.telemetry.n1", data)
    assert ([sample.node for sample in mixed.samples], mixed.foreign) == (["n1"], 1)


# ---- step rates, from samples to signals ----


def judged(*, node_speaks: bool, target: int = 100) -> list[Verdict]:
    """Feed a job that makes 10 steps a second for a while and then says nothing."""
    story, state, node = Story(), State(window_seconds=10), Node()
    story.place(START // SECOND - 10)
    story.job.target_steps_per_second = target
    state.journal = story.metrics
    watch = RateWatch(state.journal, Thresholds(windows=2))
    verdicts: list[Verdict] = []
    for second in range(1, 80):
        now_ns = START + second * SECOND
        samples: list[Any] = [node.process(now_ns, second * 10)] if second < 30 else []
        if node_speaks or second < 30:
            samples.append(node.node(now_ns))
        state.hear(Message("s", second, now_ns, tuple(samples)), now_ns)
        verdicts += watch.judge(state.close_windows(now_ns - 2 * SECOND), state.readings.node_heard_ns)
    return verdicts


def test_a_job_that_stands_still_is_low() -> None:
    (verdict,) = judged(node_speaks=True, target=9)
    assert (verdict.signal, verdict.rate_millis, verdict.target_millis) == ("low", 0, 9000)


def test_a_node_that_is_silent_makes_no_job_low() -> None:
    assert judged(node_speaks=False, target=9) == []


def test_a_job_that_is_always_too_slow_is_low_once() -> None:
    (verdict,) = judged(node_speaks=True)
    assert (verdict.signal, verdict.rate_millis) == ("low", 10_000)


def test_a_job_that_is_being_preempted_is_not_judged() -> None:
    story, state, node = Story(), State(window_seconds=10), Node()
    story.place(START // SECOND - 10)
    story.decide(e.PreemptRequested, START // SECOND, attempt=1, grace_seconds=1, deadline_ns=0, for_job="x")
    state.journal = story.metrics
    watch = RateWatch(state.journal, Thresholds(windows=1))
    for second in range(1, 60):
        now_ns = START + second * SECOND
        state.hear(Message("s", second, now_ns, (node.process(now_ns, 1), node.node(now_ns))), now_ns)
        assert watch.judge(state.close_windows(now_ns), state.readings.node_heard_ns) == []


# ---- what people use ----


def _json_of(path: Path) -> Any:
    """Return a file that is JSON below its comments: YAML as well, and without a parser of its own."""
    return json.loads("".join(line for line in path.read_text().splitlines(True) if not line.startswith("#")))


def _expressions(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        for key, value in found.items():
            if key in ("expr", "query", "definition") and isinstance(value, str):
                yield value
            else:
                yield from _expressions(value)
    elif isinstance(found, list):
        for each in found:
            yield from _expressions(each)


def _unknown(text: str) -> set[str]:
    names = set(re.findall(r"\btidegate_[a-z0-9_]+", text))
    parts = {
        metric.name + suffix
        for metric in CATALOGUE
        for suffix in (("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",))
    }
    return names - parts


RULES = ROOT / "infra" / "prometheus" / "alerts.yml"
SCRAPE = ROOT / "infra" / "prometheus" / "prometheus.yml"
DASHBOARD = ROOT / "infra" / "grafana" / "dashboard.json"


@pytest.mark.parametrize("path", [RULES, DASHBOARD], ids=lambda path: path.name)
def test_every_metric_and_label_that_is_used_exists(path: Path) -> None:
    expressions = list(_expressions(_json_of(path)))
    assert len(expressions) > 10
    for expression in expressions:
        assert _unknown(expression) == set(), expression
        for name, selector in re.findall(r"\b(tidegate_[a-z0-9_]+)\{([^}]*)\}", expression):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            labels = BY_NAME.get(name, BY_NAME.get(base))
            assert labels is not None
            assert set(re.findall(r"([a-z]+)(?:=~|!=|=|!~)", selector)) <= {*labels.labels, "le"}, expression


def test_alerts_say_what_happened_and_what_to_do() -> None:
    groups = _json_of(RULES)["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert all(rule["annotations"][part] for part in ("summary", "description"))
        for label in re.findall(r"\$labels\.([a-z]+)", json.dumps(rule["annotations"])):
            used = [
                BY_NAME.get(n, BY_NAME.get(re.sub(r"_(bucket|sum|count)$", "", n))) for n in _metrics_in(rule["expr"])
            ]
            assert any(metric is not None and label in metric.labels for metric in used), rule


def _metrics_in(expression: str) -> list[str]:
    return re.findall(r"\btidegate_[a-z0-9_]+", expression)


def test_the_scrape_file_reads_the_rules_and_the_services_port() -> None:
    document = _json_of(SCRAPE)
    assert [ROOT / "infra" / "prometheus" / name for name in document["rule_files"]] == [RULES]
    (job,) = document["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["127.0.0.1:9464"]
    assert job["job_name"] == "tidegate"


def test_panels_do_not_overlap_and_have_one_id_each() -> None:
    panels = _json_of(DASHBOARD)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_page_is_the_catalogue() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert page.endswith(render()), "its end is the output of: python -m tidegate_metrics.catalogue"
    assert _unknown(page) - set(BY_NAME) == set()
