"""Hysteresis: a signal needs whole windows in a row, signals alternate, and a rate near the target does not flap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tidegate_metrics.rates import RateState, Signal, Thresholds, advance

TARGET = 100_000
RATES = st.lists(st.one_of(st.none(), st.integers(0, 200_000)), max_size=80)


def run(rates: list[int | None], thresholds: Thresholds, state: RateState | None = None) -> list[Signal | None]:
    state = state or RateState()
    signals: list[Signal | None] = []
    for rate in rates:
        state, signal = advance(state, rate, TARGET, thresholds)
        signals.append(signal)
    return signals


def test_low_after_whole_windows_and_recovered_only_with_a_margin() -> None:
    low, near, good = 99_999, 104_999, 105_000
    signals = run([low, low, low, near, near, near, good, good, good], Thresholds(windows=3, margin_percent=5))
    assert signals == [None, None, "low", None, None, None, None, None, "recovered"]


def test_one_good_window_or_an_unknown_one_begins_the_count_again() -> None:
    thresholds = Thresholds(windows=3)
    assert run([0, 0, TARGET, 0, 0], thresholds) == [None] * 5
    assert run([0, 0, None, 0, 0], thresholds) == [None] * 5


def test_a_job_that_was_low_before_a_restart_is_not_called_low_again() -> None:
    assert run([0] * 9, Thresholds(windows=3), RateState(low=True)) == [None] * 9


@given(RATES, st.integers(1, 5), st.integers(0, 50))
def test_signals_alternate_and_each_has_its_windows_behind_it(
    rates: list[int | None], windows: int, margin_percent: int
) -> None:
    signals = run(rates, Thresholds(windows=windows, margin_percent=margin_percent))
    given_ones = [signal for signal in signals if signal is not None]
    assert given_ones == ["low", "recovered"] * (len(given_ones) // 2) + ["low"] * (len(given_ones) % 2)
    for index, signal in enumerate(signals):
        if signal is None:
            continue
        behind = rates[index - windows + 1 : index + 1]
        assert len(behind) == windows
        if signal == "low":
            assert all(rate is not None and rate < TARGET for rate in behind)
        else:
            assert all(rate is not None and rate * 100 >= TARGET * (100 + margin_percent) for rate in behind)


@given(st.lists(st.integers(TARGET, TARGET * 105 // 100 - 1), max_size=50), st.booleans())
def test_between_target_and_margin_nothing_changes(rates: list[int], low: bool) -> None:
    assert not any(run([*rates], Thresholds(windows=1, margin_percent=5), RateState(low=low)))
