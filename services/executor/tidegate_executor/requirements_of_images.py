"""What an image says it needs of GPUs (NVIDIA_REQUIRE_CUDA), compared with what a node has. Pure.

Words separated by spaces are alternatives, of which one must hold; in a word, all that commas separate must hold:
`cuda>=12.4 brand=tesla,driver>=535,driver<536`. What a node does not know of itself does not hold.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

VARIABLE = "NVIDIA_REQUIRE_CUDA"
DISABLED = "NVIDIA_DISABLE_REQUIRE"
_CONSTRAINT = re.compile(r"([a-z]+)(>=|<=|!=|=|>|<)([A-Za-z0-9.]+)\Z")
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


def unmet(env: Mapping[str, str], known: Mapping[str, str]) -> str:
    """Return why the image cannot run with these versions ("cuda", "driver", "brand"); empty where it can."""
    wanted = env.get(VARIABLE, "").split()
    if not wanted or env.get(DISABLED, "").lower() in ("1", "true"):
        return ""
    if any(all(_holds(constraint, known) for constraint in word.split(",")) for word in wanted):
        return ""
    here = ", ".join(f"{name} {value}" for name, value in sorted(known.items())) or "no driver"
    return f"the image needs {' or '.join(wanted)}; here is {here}"


def _holds(constraint: str, known: Mapping[str, str]) -> bool:
    match = _CONSTRAINT.match(constraint)
    if match is None or match[1] not in known:
        return False
    here, wanted = known[match[1]], match[3]
    numbers = _version(here), _version(wanted)
    if None in numbers:
        return _COMPARED[match[2]](here.lower(), wanted.lower()) if match[2] in ("=", "!=") else False
    return _COMPARED[match[2]](*_same_length(*numbers))


def _version(text: str) -> tuple[int, ...] | None:
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else None


def _same_length(
    here: tuple[int, ...] | None, wanted: tuple[int, ...] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Fill up with zeros: 12 is 12.0."""
    assert here is not None
    assert wanted is not None
    size = max(len(here), len(wanted))
    return here + (0,) * (size - len(here)), wanted + (0,) * (size - len(wanted))
