"""Step rates: all steps are counted once over the windows, silence is told apart, and odd clocks do no harm."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tidegate_metrics import windows as module
from tidegate_metrics.windows import ProcessKey, StepWindows, WindowRate

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
KEY = ProcessKey("j1", 1, 0, "main", 0)
LAST_SECOND = 120


def fed(samples: list[tuple[float, int]], until: float, window_seconds: int = 10) -> list[WindowRate]:
    """Feed samples (seconds after the start, step) second by second, closing windows on the way."""
    found = StepWindows(window_seconds)
    rates: list[WindowRate] = found.close(START)
    left = sorted(samples)
    for second in range(int(until) + 1):
        while left and left[0][0] < second + 1:
            at, step = left.pop(0)
            found.add(KEY, "n1", START + int(at * SECOND), step)
        rates += found.close(START + (second + 1) * SECOND)
    return rates


def test_a_steady_job_has_its_rate_in_every_window_but_the_first() -> None:
    rates = fed([(second, second * 7) for second in range(45)], until=41)
    assert [rate.rate_millis for rate in rates] == [None, 7000, 7000, 7000]
    assert not any(rate.silent for rate in rates)
    assert all(rate.end_ns - rate.start_ns == 10 * SECOND for rate in rates)


def test_irregular_samples_do_not_blur_the_rate() -> None:
    samples = [(0.2, 0), (9.7, 95), (12.5, 123), (18.1, 179), (29.9, 297)]
    assert [rate.rate_millis for rate in fed(samples, until=30)] == [None, 10_000, 10_000]


def test_silence_is_a_rate_of_nothing_that_says_so() -> None:
    rates = fed([(1, 10), (5, 50)], until=30)
    assert [(rate.rate_millis, rate.silent) for rate in rates] == [(None, False), (0, True), (0, True)]


def test_a_step_that_goes_back_is_no_rate() -> None:
    samples = [(1, 100), (11, 200), (21, 50), (31, 150)]
    assert [rate.rate_millis for rate in fed(samples, until=40)] == [None, 10_000, None, 10_000]


def test_a_process_that_is_long_silent_is_forgotten_and_the_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = fed([(1, 10)], until=400)
    assert len(rates) == 1 + module.SILENT_WINDOWS_MAX + 1
    monkeypatch.setattr(module, "PROCESSES_MAX", 2)
    found = StepWindows(1)
    for rank in range(5):
        found.add(ProcessKey("j1", 1, rank, "main", 0), "n1", START, 1)
    found.close(START)
    assert len(found.close(START + 2 * SECOND)) == 2 * 2
    found.forget("j1")
    assert found.close(START + 3 * SECOND) == []


def test_a_clock_far_ahead_is_not_believed() -> None:
    found = StepWindows(10)
    found.close(START)
    found.add(KEY, "n1", START + SECOND, 10)
    found.add(KEY, "n1", START + 3600 * SECOND, 10**9)
    found.close(START + 10 * SECOND)
    found.add(KEY, "n1", START + 11 * SECOND, 110)
    assert [rate.rate_millis for rate in found.close(START + 20 * SECOND)] == [10_000]


def test_a_long_pause_of_ours_is_no_flood_of_windows() -> None:
    found = StepWindows(1)
    found.close(START)
    found.add(KEY, "n1", START, 1)
    assert len(found.close(START + 86_400 * SECOND)) <= module.SILENT_WINDOWS_MAX + 1


@given(
    st.lists(st.tuples(st.floats(0, LAST_SECOND), st.integers(0, 50)), min_size=1, max_size=60),
    st.integers(1, 20),
)
@example([(0.0, 0), (120.0, 1)], 20)  # the last sample begins a window: that must end before all are counted
def test_the_steps_of_all_windows_add_up_to_the_steps_made(raw: list[tuple[float, int]], window_seconds: int) -> None:
    step, samples = 0, []
    for at, more in sorted(raw):
        step += more
        samples.append((at, step))
    found = StepWindows(window_seconds)
    found.close(START)
    left, made, carried = list(samples), 0.0, None
    for second in range(1, LAST_SECOND + window_seconds + 1):
        while left and left[0][0] < second:
            at, step = left.pop(0)
            found.add(KEY, "n1", START + int(at * SECOND), step)
        for rate in found.close(START + second * SECOND):
            in_window = [s for s in samples if rate.start_ns <= START + int(s[0] * SECOND) < rate.end_ns]
            if not in_window:
                assert rate.silent
                carried = None if carried is None else (max(carried[0], rate.end_ns), carried[1])
                continue
            newest = (START + int(in_window[-1][0] * SECOND), in_window[-1][1])
            if rate.rate_millis is not None:
                assert carried is not None
                assert rate.rate_millis >= 0
                made += rate.rate_millis / 1000 * (newest[0] - carried[0]) / SECOND
            elif carried is not None:
                made += newest[1] - carried[1]  # no time passed between the two
            else:
                made += newest[1] - samples[0][1]
            carried = newest
    assert made == pytest.approx(samples[-1][1] - samples[0][1], abs=0.001 * LAST_SECOND * len(samples) + 1e-6)
