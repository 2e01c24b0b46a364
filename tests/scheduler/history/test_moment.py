"""Moments on the command line: what is accepted means what it says, and all else is refused with what is accepted."""

from __future__ import annotations

import pytest
from tidegate_scheduler.history.errors import UsageError
from tidegate_scheduler.history.moment import Moment, parse, parse_place

NOW = 1_796_000_000_000_000_000


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("48211", Moment(seq=48211)),
        ("0", Moment(seq=0)),
        ("1796000000000000001", Moment(at_ns=1_796_000_000_000_000_001)),
        ("2026-11-29T03:00:00Z", Moment(at_ns=1_795_921_200_000_000_000)),
        ("2026-11-29T04:00:00.000250+01:00", Moment(at_ns=1_795_921_200_000_250_000)),
        ("-10m", Moment(at_ns=NOW - 600_000_000_000)),
        ("90s", Moment(at_ns=NOW - 90_000_000_000)),
        ("-1.5h", Moment(at_ns=NOW - 5_400_000_000_000)),
    ],
)
def test_what_is_accepted(text: str, moment: Moment) -> None:
    assert parse(text, "--at").since(NOW) == moment


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "2026-11-29T03:00:00", "2026-11-29", "1796000000000000", "-5", "10w", "1e9", "٣", "9" * 40],
)
def test_what_is_refused_says_what_is_accepted(text: str) -> None:
    with pytest.raises(UsageError, match="--at") as refused:
        parse(text, "--at")
    assert refused.value.exit_code == 2
    for accepted in ("sequence", "zone", "nanoseconds", "-10m"):
        assert accepted in refused.value.remedy


def test_a_place_is_a_sequence_and_perhaps_an_index() -> None:
    assert parse_place("7") == (7, None)
    assert parse_place("7.2") == (7, 2)


@pytest.mark.parametrize("text", ["0", "7.", ".2", "7.2.3", "-7", "seven", ""])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(UsageError, match="no event"):
        parse_place(text)
