"""How amounts, times and reasons look in tables."""

from __future__ import annotations

from typing import Any

NS_PER_SECOND = 1_000_000_000
NOTHING = "-"


def cell(value: Any) -> str:
    """Return a value as a table shows it; what is not there is a dash."""
    return NOTHING if value is None or value in ("", []) else str(value)


def span(seconds: float) -> str:
    """Return a time span the way people say it: 0.4s, 12s, 3m05s, 2h10m, 4d03h."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def since(then_ns: int | None, now_ns: int) -> str:
    """Return how long ago that was."""
    return NOTHING if then_ns is None else span((now_ns - then_ns) / NS_PER_SECOND)


def offset(at_ns: int, origin_ns: int) -> str:
    """Return a time relative to an origin, to the millisecond in the first minutes: +3.204s, +61m04s."""
    seconds = (at_ns - origin_ns) / NS_PER_SECOND
    return f"{seconds:+.3f}s" if abs(seconds) < 600 else f"{'-' if seconds < 0 else '+'}{span(abs(seconds))}"


def cpus(millis: int) -> str:
    """Return thousandths of a CPU as CPUs: 1.5, 2."""
    return f"{millis / 1000:.3f}".rstrip("0").rstrip(".")


def mib(amount: int) -> str:
    """Return MiB in the largest unit that keeps it short: 512M, 1.5G, 2T."""
    for unit, size in (("T", 1024 * 1024), ("G", 1024)):
        if amount >= size:
            return f"{amount / size:.1f}".removesuffix(".0") + unit
    return f"{amount}M"


def size(count: int) -> str:
    """Return bytes in the largest unit that keeps it short: 812B, 3.2MiB."""
    if count < 1024:
        return f"{count}B"
    value, unit = float(count), "B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):  # noqa: B007
        value /= 1024
        if value < 1024:
            break
    return f"{value:.1f}{unit}"


def reason(found: dict[str, Any]) -> str:
    """Return a reason as a sentence part: its code, what it says, and the numbers behind it."""
    numbers = ", ".join(f"{name} {value}" for name, value in (found.get("numbers") or {}).items())
    parts = [found["code"]]
    if found.get("detail"):
        parts.append(f": {found['detail']}")
    if numbers:
        parts.append(f" ({numbers})")
    return "".join(parts)


def reasons(found: list[dict[str, Any]] | None) -> str:
    """Return all reasons, separated by semicolons."""
    return "; ".join(reason(one) for one in found or [])


def amounts(result: dict[str, Any]) -> str:
    """Return a result's values on one line."""
    return ", ".join(
        f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}" for name, value in result.items()
    )
