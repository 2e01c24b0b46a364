"""Moments in time as people write and read them: `10m`, `2026-11-29 03:00`, and back."""

from __future__ import annotations

import re
import time
from datetime import datetime, timezone

from tidegate.cli import exits
from tidegate.cli.exits import CommandError
from tidegate.cli.text import NOTHING, NS_PER_SECOND

_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse(given: str, option: str) -> int:
    """Return a moment in Unix nanoseconds: so long ago (`90s`, `10m`, `2h`, `1d`), or an ISO 8601 date and time.

    Without an offset a date is in this machine's time zone. Raises CommandError.
    """
    span = _SPAN.fullmatch(given)
    if span is not None:
        return time.time_ns() - int(float(span[1]) * _UNIT_SECONDS[span[2]] * NS_PER_SECOND)
    return _date(given, option, "a time span before now (90s, 10m, 2h, 1d)")


def _date(given: str, option: str, or_else: str) -> int:
    try:
        moment = datetime.fromisoformat(given.replace("Z", "+00:00"))
        return int(moment.timestamp() * NS_PER_SECOND)
    except (ValueError, OverflowError, OSError):
        message = f"{option} {given!r} is no moment in time."
        remedy = f"Accepted are {or_else} and a date: 2026-11-29, '2026-11-29 03:00'."
        raise CommandError(message, remedy, exits.USAGE) from None


def seconds(given: str, option: str) -> int:
    """Return a time span in whole seconds: `90s`, `30m`, `2h`, `1d`, or several: `1h30m`. Raises CommandError."""
    parts = _SPAN.findall(given)
    if not parts or "".join(number + unit for number, unit in parts) != given:
        raise CommandError(f"{option} {given!r} is no time span.", "Accepted are 90s, 30m, 2h, 1d, 1h30m.", exits.USAGE)
    return max(1, int(sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)))


def ahead(given: str, option: str, from_ns: int) -> int:
    """Return a moment in Unix nanoseconds: a time span after `from_ns`, or a date and time. Raises CommandError."""
    if _SPAN.match(given):
        return from_ns + seconds(given, option) * NS_PER_SECOND
    return from_ns if given == "now" else _date(given, option, "now, a time span ahead (90s, 30m, 2h, 1h30m)")


def stamp(at_ns: int) -> str:
    """Return date and time of day to the millisecond, in this machine's time zone."""
    moment = datetime.fromtimestamp(at_ns / NS_PER_SECOND, timezone.utc).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{at_ns // 1_000_000 % 1000:03d}"


def date_and_time(at_ns: int | None) -> str:
    """Return date and time of day to the second, in this machine's time zone."""
    return NOTHING if at_ns is None else stamp(at_ns).partition(".")[0]


def time_of_day(at_ns: int) -> str:
    """Return the time of day to the second, in this machine's time zone."""
    return date_and_time(at_ns).partition(" ")[2]
