"""Strict JSON: what `json` lets through but no job may hold (NaN, duplicate keys, huge numbers, depth) is a problem."""

from __future__ import annotations

import json
import re
from typing import Any

from tidegate_gateway.submission.problems import Problems, child, item

DEPTH_MAX = 24
INTEGER_DIGITS_MAX = 18

# Possessive, and content with a string that never ends: no bytes make it look twice.
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


class Unusable:
    """Stands for a number that JSON text can name and no field can hold."""

    def __init__(self, what: str) -> None:
        self.what = what


class _Object(dict[str, Any]):
    """A JSON object that remembers which keys came twice."""

    doubled: tuple[str, ...] = ()


def parse(body: bytes, problems: Problems) -> Any:
    """Return the JSON value in `body`, or None with problems noted. Never raises on any bytes."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        problems.add("$", f"the body is not UTF-8 (byte {error.start})", "a JSON object in UTF-8")
        return None
    if (depth := _depth(body)) > DEPTH_MAX:
        problems.add("$", f"nested {depth} levels deep or deeper", f"at most {DEPTH_MAX} levels")
        return None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=Unusable,
            parse_int=_integer,
            parse_float=_float,
        )
    except ValueError as error:
        where = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        problems.add("$", f"the body is not JSON{where}", "a JSON object in UTF-8")
        return None
    _inspect(value, "", problems)
    return value


def _depth(body: bytes) -> int:
    """Return the depth of nesting, counted only as far as the bound, before a parser recurses into it."""
    depth = deepest = 0
    for match in _TOKENS.finditer(body):
        first = match[0][:1]
        if first in b"[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > DEPTH_MAX:
                break
        elif first in b"]}":
            depth -= 1
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        doubled: dict[str, None] = {}
        for key, _ in pairs:
            if key in seen:
                doubled[key] = None
            seen.add(key)
        found.doubled = tuple(doubled)
    return found


def _integer(digits: str) -> Any:
    return int(digits) if len(digits) <= INTEGER_DIGITS_MAX + 1 else Unusable("a huge number")


def _float(text: str) -> Any:
    value = float(text)
    return value if abs(value) < 1e18 else Unusable("a huge number")


def _inspect(value: Any, path: str, problems: Problems) -> None:
    """Note what no place of a job may hold; depth is bounded already."""
    if isinstance(value, str):
        _inspect_text(value, path, problems)
    elif isinstance(value, list):
        for index, element in enumerate(value):
            _inspect(element, item(path, index), problems)
    elif isinstance(value, _Object):
        for key in value.doubled:
            problems.add(child(path, key), "the key is there twice", "each key once")
        for key, element in value.items():
            _inspect_text(key, path, problems)
            _inspect(element, child(path, key), problems)


def _inspect_text(text: str, path: str, problems: Problems) -> None:
    if "\x00" in text:
        problems.add(path, "holds a NUL character", "text without NUL")
    if any("\ud800" <= char <= "\udfff" for char in text):
        problems.add(path, "holds half of a surrogate pair, which is no character", "valid Unicode text")
