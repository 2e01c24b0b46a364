"""Answers take no more than their share of the time, saved up a little, and who is refused knows when to come again."""

from __future__ import annotations

import pytest
from tidegate_scheduler.allowance import Allowance

SHARE = 0.1
SAVED_SECONDS = 0.5


@pytest.mark.parametrize("answer_seconds", [0.001, 0.05, 0.4, 3.0])
def test_a_flood_gets_its_share_and_no_more(answer_seconds: float) -> None:
    allowance, now, spent = Allowance(SHARE, SAVED_SECONDS), 0.0, 0.0
    while now < 100:
        if allowance.wait_seconds(now) == 0:
            allowance.spend(answer_seconds)
            spent += answer_seconds
            now += answer_seconds
        else:
            now += 0.1
    assert spent <= SHARE * now + SAVED_SECONDS + answer_seconds
    assert spent >= SHARE * 100 - answer_seconds


def test_who_waits_as_long_as_it_was_told_is_answered() -> None:
    allowance, now = Allowance(SHARE, SAVED_SECONDS), 0.0
    for seconds in (0.7, 0.01, 5.0, 0.3):
        assert allowance.wait_seconds(now) == 0
        allowance.spend(seconds)
        wait = allowance.wait_seconds(now)
        assert wait == 0 or wait <= seconds / SHARE + 1
        now += wait + 0.001


def test_a_quiet_hour_saves_up_no_more_than_the_bound() -> None:
    allowance = Allowance(SHARE, SAVED_SECONDS)
    allowance.spend(0.2)
    assert allowance.wait_seconds(0.0) == 0
    assert allowance.wait_seconds(3600.0) == 0
    allowance.spend(SAVED_SECONDS)
    assert allowance.wait_seconds(3600.0) == 1
