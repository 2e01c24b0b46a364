"""How amounts, times and reasons look in tables."""

from __future__ import annotations

from collections.abc import Callable
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


def count(number: int, one: str, many: str = "") -> str:
    """Return how many there are of something: 1 job, 2 jobs; `many` where that is not one with an s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def cpus(millis: int) -> str:
    """Return thousandths of a CPU as CPUs: 1.5, 2."""
    return f"{millis / 1000:.3f}".rstrip("0").rstrip(".")


def mib(amount: int) -> str:
    """Return MiB in the largest unit that keeps it short: 512M, 1.5G, 2T."""
    for unit, size in (("T", 1024 * 1024), ("G", 1024)):
        if amount >= size:
            return f"{amount / size:.1f}".removesuffix(".0") + unit
    return f"{amount}M"


def gpus(amount: dict[str, Any]) -> str:
    """Return how many GPUs an amount is, shares of one included: 2, 0.25."""
    return cpus(amount["gpus"] * 1000 + amount.get("gpu_millis", 0))


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
    """Return a reason as a sentence part: its code, what it says, what is short, and the other numbers behind it."""
    numbers = dict(found.get("numbers") or {})
    said = [found["detail"]] if found.get("detail") else []
    said += _short(numbers)
    rest = ", ".join(f"{name} {value}" for name, value in numbers.items())
    parts = [found["code"]]
    if said:
        parts.append(f": {'; '.join(said)}")
    if rest:
        parts.append(f" ({rest})")
    return "".join(parts)


_AMOUNTS: dict[str, tuple[str, Callable[[int], str]]] = {
    "cpu_millis": ("CPU", cpus),
    "memory_mib": ("memory", mib),
    "gpus": ("GPU", str),
}


def _short(numbers: dict[str, int]) -> list[str]:
    """Take the pairs needed and free out of `numbers`; return in words those of which too little is free."""
    pairs: list[tuple[bool, str]] = []
    for name, (unit, show) in _AMOUNTS.items():
        needed, free = numbers.get(f"{name}_needed"), numbers.get(f"{name}_free")
        if needed is None or free is None:
            continue
        del numbers[f"{name}_needed"], numbers[f"{name}_free"]
        pairs.append((needed > free, f"needs {show(needed)} {unit}, {show(free)} free"))
    short = [words for is_short, words in pairs if is_short]
    return short or [words for _, words in pairs]


def reasons(found: list[dict[str, Any]] | None) -> str:
    """Return all reasons, separated by semicolons."""
    return "; ".join(reason(one) for one in found or [])


def amounts(result: dict[str, Any]) -> str:
    """Return a result's values on one line."""
    return ", ".join(
        f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}" for name, value in result.items()
    )


def place(node: dict[str, Any]) -> str:
    """Return where a node stands in the network, as its reasons name it; empty where it does not say."""
    rack, switch = node.get("rack") or "", node.get("switch") or ""
    if not switch:
        return f"rack {rack}" if rack else ""
    return f"{switch} in {rack}" if rack else switch
