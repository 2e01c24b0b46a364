"""The timeline and the ribbon: what they say of each kind of event, and that nothing is left out."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from rich.console import Console
from tidegate.cli import text, timeline
from tidegate.cli.wording import _WORDS, sentence, short
from tidegate_events import events as e

SECOND = 1_000_000_000


def _entry(kind: str, at_seconds: float = 0.0, **more: Any) -> dict[str, Any]:
    data = more.pop("data", {})
    return {"seq": 1, "index": 0, "at_ns": int(at_seconds * SECOND), "kind": kind, "void": False, "data": data, **more}


def _detail(*entries: dict[str, Any], ended: float | None = None, dropped: int = 0) -> dict[str, Any]:
    return {
        "submitter": "ada",
        "priority": 3,
        "submitted_at_ns": 0,
        "ended_at_ns": None if ended is None else int(ended * SECOND),
        "timeline": {"events": list(entries), "dropped": dropped},
    }


def _lines(detail: dict[str, Any], **options: Any) -> list[str]:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(timeline.render(detail, **options))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_every_event_has_its_words() -> None:
    assert {kind.__name__ for kind in get_args(e.AnyEvent)} == set(_WORDS)


@pytest.mark.parametrize("kind", sorted(_WORDS))
def test_words_need_no_optional_field(kind: str) -> None:
    assert sentence(_entry(kind))


def test_a_kind_from_the_future_is_shown_as_it_is() -> None:
    assert sentence(_entry("JobMoved", data={"cell": 2})) == 'JobMoved {"cell": 2}'


def test_reasons_carry_their_numbers() -> None:
    reasons = [{"code": "LeastCost", "detail": "", "numbers": {"lost_seconds": 41}}, {"code": "B", "detail": "d"}]
    assert sentence(_entry("JobStarted", reasons=reasons)) == "running  — LeastCost (lost_seconds 41); B: d"


def test_a_shortage_is_said_in_words_and_only_of_what_is_short() -> None:
    numbers = {"cpu_millis_needed": 1100, "cpu_millis_free": 900, "memory_mib_needed": 1024, "memory_mib_free": 23081}
    assert text.reason({"code": "Resources", "numbers": numbers}) == "Resources: needs 1.1 CPU, 0.9 free"
    gpus = {**numbers, "cpu_millis_free": 2000, "gpus_needed": 4, "gpus_free": 1, "candidates": 2}
    reason = {"code": "Reserved", "detail": "waits for jobs to leave n1", "numbers": gpus}
    assert text.reason(reason) == "Reserved: waits for jobs to leave n1; needs 4 GPU, 1 free (candidates 2)"


def test_infrastructure_and_the_jobs_own_fault_read_differently() -> None:
    lost = _entry("SandboxExited", node="n1", rank=0, data={"outcome": "lost", "detail": "node rebooted"})
    own = _entry("SandboxExited", node="n1", rank=1, data={"outcome": "failed", "exit_code": 0, "oom": True})
    assert sentence(lost) == "sandbox ended on n1: lost, node rebooted"
    assert sentence(own) == "sandbox ended on n1: failed, exit code 0, out of memory (rank 1)"


def test_a_quota_that_is_not_enforced_is_not_said_to_be() -> None:
    quotas = [{"component": "learner", "cpu_millis": 1500, "memory_mib": 1536}]
    told = _entry("QuotaApplied", rank=0, data={"quotas": quotas, "enforced": False})
    assert sentence(told) == "told, but not enforced on this node: [learner 1.5 CPU 1.5G]"


def test_void_events_are_marked() -> None:
    lines = _lines(_detail(_entry("JobPlaced", 1, attempt=1, void=True) | {"void": True}))
    assert any("(came too late, void)" in line for line in lines)


def test_routine_is_summed_up_between_what_matters_and_nothing_else_is() -> None:
    phases = [_entry("PhaseChanged", 1 + i, data={"phase": "ab"[i % 2]}) for i in range(40)]
    entries = [_entry("JobStarted", 0.5), *phases, _entry("PreemptRequested", 50, data={"grace_seconds": 5})]
    lines = _lines(_detail(*entries))
    shown = [line for line in lines if "phase " in line and line.strip().startswith("+")]
    assert len(shown) == timeline.ROUTINE_SHOWN_FIRST + timeline.ROUTINE_SHOWN_LAST
    assert any("… 33s: 34 phase changes …" in line for line in lines)
    assert any("asked to save and leave within 5 s" in line for line in lines)
    whole = _lines(_detail(*entries), everything=True)
    assert len([line for line in whole if "phase " in line and line.strip().startswith("+")]) == 40


def test_a_phase_with_what_follows_from_it_is_one_line() -> None:
    quotas = {"quotas": [{"component": "learner", "cpu_millis": 1500, "memory_mib": 512}]}
    other = {"quotas": [{"component": "learner", "cpu_millis": 100, "memory_mib": 512}]}
    entries = [
        _entry("JobStarted", 0),
        _entry("PhaseChanged", 1, rank=0, data={"phase": "learning", "step": 3}),
        _entry("PhaseChanged", 1.01, rank=1, data={"phase": "sampling"}),
        _entry("QuotaChanged", 1.02, rank=0, data=quotas),
        _entry("QuotaApplied", 1.05, rank=0, data=quotas),
        _entry("QuotaApplied", 1.06, rank=1, data=other),
    ]
    lines = [line.strip() for line in _lines(_detail(*entries))]
    assert "+1.000s  phase learning at step 3 → [learner 1.5 CPU 512M], in the kernel after 50 ms" in lines
    assert "+1.060s  kernel enforces [learner 0.1 CPU 512M] (rank 1)" in lines
    assert not any("quota shall be" in line for line in lines)
    assert any("quota shall be" in line for line in _lines(_detail(*entries), everything=True))


def test_a_quota_that_the_kernel_does_not_enforce_stands_for_itself() -> None:
    quotas = {"quotas": [{"component": "learner", "cpu_millis": 1500, "memory_mib": 512}]}
    entries = [
        _entry("PhaseChanged", 1, rank=0, data={"phase": "learning"}),
        _entry("QuotaChanged", 2, rank=0, data=quotas),
        _entry("QuotaApplied", 3, rank=0, data={**quotas, "enforced": False}),
    ]
    assert any("told, but not enforced" in line for line in _lines(_detail(*entries)))


def test_the_ribbon_of_a_job_that_waits_goes_on_until_now() -> None:
    detail = _detail(_entry("JobSubmitted"), _entry("JobPlaced", 9, attempt=1), _entry("JobSuspended", 18))
    states = _lines(detail, now_ns=72 * SECOND)[1]
    assert states == "state  " + "·" * 9 + "▒" * 9 + "░" * 54


def test_step_rates_are_said_in_steps() -> None:
    data = {"rate_millis": 1500, "target_millis": 20000, "window_seconds": 30}
    assert sentence(_entry("StepRateLow", data=data)) == "step rate below its target: 1.5 of 20 steps/s over 30 s"


def test_phases_that_are_asked_for_are_said_in_words() -> None:
    quotas = [{"component": "learner", "cpu_millis": 500, "memory_mib": 2048}]
    leased = {"cpu_millis": 0, "memory_mib": 1536, "gpus": 1}
    said = [
        ("PhaseRequested", {"phase": "learning", "step": 4}, "waits to enter phase learning at step 4"),
        ("PhaseRequested", {"phase": ""}, "waits for no phase any more"),
        (
            "QuotaChanged",
            {"quotas": quotas, "phase": "learning", "gpu_indices": [2, 3], "leased": leased},
            "quota shall be [learner 0.5 CPU 2G]; may enter phase learning, GPU 2, 3, leased of it 1.5G 1 GPU",
        ),
        (
            "QuotaChanged",
            {"quotas": quotas, "phase": "learning", "gpu_millis": 700, "leased": {"gpu_millis": 250}},
            "quota shall be [learner 0.5 CPU 2G]; may enter phase learning, 0.7 of its GPU, leased of it 0.25 GPU",
        ),
        (
            "HandBackRequested",
            {"deadline_ns": 40 * SECOND, "for_job": "j-2"},
            "told to leave its leased phase within 30 s, for j-2",
        ),
        (
            "HandBackRequested",
            {"deadline_ns": 0, "for_job": ""},
            "may stay in its leased phase: nobody needs that any more",
        ),
        ("ShrinkRefused", {"quotas": quotas}, "memory in use is not taken back: the kernel keeps learner 2G"),
    ]
    entries = [_entry(kind, 10, data=data) for kind, data, _ in said]
    assert [sentence(entry) for entry in entries] == [words for _, _, words in said]
    assert sentence({**entries[0], "rank": 1}).endswith("(rank 1)")


def test_a_quota_that_opens_a_phase_stands_for_itself() -> None:
    quotas = {"quotas": [{"component": "learner", "cpu_millis": 1500, "memory_mib": 512}]}
    entries = [
        _entry("PhaseChanged", 1, rank=0, data={"phase": "default"}),
        _entry("QuotaChanged", 2, rank=0, data={**quotas, "phase": "learning"}),
    ]
    assert any("may enter phase learning" in line for line in _lines(_detail(*entries)))


def test_dropped_events_are_counted() -> None:
    assert any("7 events in the middle" in line for line in _lines(_detail(dropped=7)))


def test_the_ribbon_shows_states_and_phases_in_proportion() -> None:
    detail = _detail(
        _entry("JobSubmitted"),
        _entry("JobPlaced", 10, attempt=1),
        _entry("JobStarted", 20),
        _entry("PhaseChanged", 20, rank=0, data={"phase": "sampling"}),
        _entry("PhaseChanged", 25, rank=1, data={"phase": "other"}),
        _entry("PhaseChanged", 30, rank=0, data={"phase": "saving"}),
        _entry("JobSuspended", 40),
        _entry("JobPlaced", 60, attempt=2),
        _entry("JobResumed", 60),
        _entry("JobCompleted", 72),
        ended=72,
    )
    _, states, phases, legend = _lines(detail)[:4]
    expected = "·" * 10 + "▒" * 10 + "█" * 20 + "░" * 20 + "█" * 12
    assert states == "state  " + expected
    assert phases == "phase  " + " " * 20 + "s" * 10 + "a" * 10
    assert legend.split("   ")[-2:] == ["s sampling", "a saving"]


def test_a_job_without_any_history_still_renders() -> None:
    assert _lines(_detail())[0].startswith("       0s")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1, "0.0s"), (0.44, "0.4s"), (12.9, "12s"), (65, "1m05s"), (3700, "1h01m"), (90000, "1d01h")],
)
def test_spans_read_like_people_say_them(seconds: float, said: str) -> None:
    assert text.span(seconds) == said


def test_amounts_are_short_and_exact() -> None:
    assert [text.cpus(n) for n in (0, 250, 1000, 1500, 64000)] == ["0", "0.25", "1", "1.5", "64"]
    assert [text.mib(n) for n in (0, 512, 1024, 1536, 2 * 1024 * 1024)] == ["0M", "512M", "1G", "1.5G", "2T"]
    assert [text.size(n) for n in (0, 1023, 1024, 5 << 20, 3 << 50)] == ["0B", "1023B", "1.0KiB", "5.0MiB", "3072.0TiB"]
    assert text.offset(3_204_000_000, 0) == "+3.204s"
    assert text.offset(0, 3664 * SECOND) == "-1h01m"
    assert short("sha256:abcdef0123456789") == "abcdef012345"
