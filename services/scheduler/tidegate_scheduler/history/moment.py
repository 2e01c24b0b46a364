"""Moments of history as people write them: a sequence, a date with its zone, Unix nanoseconds, or `-10m`."""

from __future__ import annotations

import re
from datetime import datetime

import msgspec

from tidegate_scheduler.history.errors import UsageError

NS_PER_SECOND = 1_000_000_000
SEQUENCE_MAX = 10**15
"""A whole number up to here is a sequence; Unix nanoseconds of any journal are larger, and seconds are refused."""
NANOSECONDS_MIN = 10**17
NANOSECONDS_MAX = 2**63 - 1

_SPAN = re.compile(r"-?(\d{1,9}(?:\.\d{1,3})?)([smhd])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PLACE = re.compile(r"(\d{1,15})(?:\.(\d{1,6}))?")
ACCEPTED = (
    "Accepted are a sequence (48211), a date and time with its zone (2026-11-29T03:00:00Z, 2026-11-29T04:00+01:00), "
    "Unix nanoseconds (1796000000000000000), and a time span before now (-90s, -10m, -2h, -1d; before the last event, "
    "where --file is given)."
)


class Moment(msgspec.Struct, frozen=True):
    """A point of history: right after sequence `seq`, or at the time `at_ns`; one of the two is None."""

    seq: int | None = None
    at_ns: int | None = None


class Given(msgspec.Struct, frozen=True):
    """A moment as it was written, checked; one that counts back needs to know from when."""

    moment: Moment
    back_ns: int = 0

    def since(self, origin_ns: int) -> Moment:
        """Return the moment, counted back from `origin_ns` where it was written so."""
        return Moment(at_ns=origin_ns - self.back_ns) if self.back_ns else self.moment


def parse(text: str, option: str) -> Given:
    """Return the moment in `text`. Raises UsageError, which says what is accepted."""
    text = text.strip()
    if (span := _SPAN.fullmatch(text)) is not None:
        return Given(Moment(), max(1, int(float(span[1]) * _UNIT_SECONDS[span[2]] * NS_PER_SECOND)))
    if text.isascii() and text.isdigit():
        return Given(_whole_number(int(text), option))
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise UsageError(f"{option} {text!r} is no moment of history.", ACCEPTED) from None
    if moment.tzinfo is None:
        raise UsageError(f"{option} {text!r} does not say its time zone.", ACCEPTED)
    whole = int(moment.replace(microsecond=0).timestamp())
    return Given(Moment(at_ns=whole * NS_PER_SECOND + moment.microsecond * 1000))


def _whole_number(number: int, option: str) -> Moment:
    if number <= SEQUENCE_MAX:
        return Moment(seq=number)
    if NANOSECONDS_MIN <= number <= NANOSECONDS_MAX:
        return Moment(at_ns=number)
    raise UsageError(f"{option} {number} is neither a sequence nor a time in nanoseconds.", ACCEPTED)


def parse_place(text: str) -> tuple[int, int | None]:
    """Return sequence and index of `SEQ` or `SEQ.INDEX`. Raises UsageError."""
    place = _PLACE.fullmatch(text.strip())
    if place is None or int(place[1]) == 0:
        raise UsageError(f"{text!r} names no event.", "Accepted are a sequence, 48211, and an event in it, 48211.2.")
    return int(place[1]), None if place[2] is None else int(place[2])
