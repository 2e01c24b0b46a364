"""Readers of JSON values: each returns a typed value, or MISSING with its problem noted, and never stops at the first.

A reader is called with (value, path, problems). Readers of this module know nothing of jobs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from tidegate_gateway.submission.problems import Problems, child, item, listed_names, nearest
from tidegate_gateway.submission.text import Unusable


class Missing:
    """The type of MISSING."""

    def __bool__(self) -> bool:
        return False


MISSING: Final = Missing()
"""What a reader returns for a value that it could not accept."""

Reader = Callable[[Any, str, Problems], Any]


class Field(msgspec.Struct, frozen=True):
    """A field of an object: how it is read, and whether it must be there."""

    read: Reader
    required: bool = False


def kind_of(value: Any) -> str:
    """Name the JSON type of `value`, for messages."""
    if isinstance(value, Unusable):
        return value.what
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    names = {int: "a number", float: "a number with a fraction", str: "text", list: "a list"}
    return names.get(type(value), "an object")


def integer(low: int, high: int, unit: str, *, example: str = "") -> Reader:
    """Return a reader of whole numbers between `low` and `high`."""
    accepted = f"a whole number of {unit} from {low} to {high}" + (f", {example}" if example else "")

    def read(value: Any, path: str, problems: Problems) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            problems.add(path, f"must be a whole number, not {kind_of(value)}", accepted)
            return MISSING
        if not low <= value <= high:
            problems.add(path, f"{value} is out of bounds", accepted)
            return MISSING
        return value

    return read


def boolean(value: Any, path: str, problems: Problems) -> Any:
    """Read true or false."""
    if isinstance(value, bool):
        return value
    problems.add(path, f"must be true or false, not {kind_of(value)}", "true or false")
    return MISSING


def text(chars_max: int, *, pattern: re.Pattern[str] | None = None, accepted: str = "") -> Reader:
    """Return a reader of text up to `chars_max` characters that matches `pattern` as a whole."""
    described = accepted or f"text of at most {chars_max} characters"

    def read(value: Any, path: str, problems: Problems) -> Any:
        if not isinstance(value, str):
            problems.add(path, f"must be text, not {kind_of(value)}", described)
        elif len(value) > chars_max:
            problems.add(path, f"{len(value)} characters are too many", described)
        elif pattern is not None and not pattern.fullmatch(value):
            problems.add(path, "has characters or a form that cannot be used here", described)
        else:
            return value
        return MISSING

    return read


def choice(*known: str) -> Reader:
    """Return a reader of one of the `known` words."""
    accepted = "one of " + ", ".join(known)

    def read(value: Any, path: str, problems: Problems) -> Any:
        if isinstance(value, str) and value in known:
            return value
        if not isinstance(value, str):
            problems.add(path, f"must be text, not {kind_of(value)}", accepted)
        else:
            hint = nearest(value, known)
            problems.add(path, "is not a known word" + (f"; did you mean {hint}?" if hint else ""), accepted)
        return MISSING

    return read


def optional(read_value: Reader) -> Reader:
    """Return a reader that also takes null, as None."""

    def read(value: Any, path: str, problems: Problems) -> Any:
        return None if value is None else read_value(value, path, problems)

    return read


def sequence(read_item: Reader, count_max: int, *, count_min: int = 0, of: str) -> Reader:
    """Return a reader of lists into tuples; elements that could not be read are left out (their problems are noted)."""
    accepted = f"a list of {count_min} to {count_max} {of}"

    def read(value: Any, path: str, problems: Problems) -> Any:
        if not isinstance(value, list):
            problems.add(path, f"must be a list, not {kind_of(value)}", accepted)
            return MISSING
        if not count_min <= len(value) <= count_max:
            problems.add(path, f"has {len(value)} elements", accepted)
            return MISSING
        read_items = [read_item(element, item(path, index), problems) for index, element in enumerate(value)]
        return tuple(element for element in read_items if element is not MISSING)

    return read


class Keys(msgspec.Struct, frozen=True):
    """Which names an object may have: their pattern, its description, and why a well-formed one is still refused.

    `refuse` returns (problem, accepted) for such a name, else None.
    """

    pattern: re.Pattern[str]
    form: str
    refuse: Callable[[str], tuple[str, str] | None] = lambda name: None


def mapping(keys: Keys, read_value: Reader, count_max: int) -> Reader:
    """Return a reader of objects with free names."""

    def read(value: Any, path: str, problems: Problems) -> Any:
        if not isinstance(value, dict):
            problems.add(path, f"must be an object, not {kind_of(value)}", f"an object whose keys are {keys.form}")
            return MISSING
        if len(value) > count_max:
            problems.add(path, f"has {len(value)} entries", f"at most {count_max}")
            return MISSING
        result = {}
        for position, (name, element) in enumerate(value.items()):
            if not keys.pattern.fullmatch(name):
                # The name itself may be a pasted secret, so only its place is told.
                problems.add(f"{path}.<entry {position}>", "the entry's name cannot be used", keys.form)
                continue
            if (refusal := keys.refuse(name)) is not None:
                problems.add(child(path, name), *refusal)
                continue
            read_element = read_value(element, child(path, name), problems)
            if read_element is not MISSING:
                result[name] = read_element
        return result

    return read


def record(
    value: Any, path: str, problems: Problems, fields: Mapping[str, Field], hints: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return the fields of an object that could be read, None when it is no object.

    Unknown fields are problems; `hints` maps what people write by habit to the field's name here.
    """
    if not isinstance(value, dict):
        problems.add(path, f"must be an object, not {kind_of(value)}", "an object with " + listed_names(fields))
        return None
    result: dict[str, Any] = {}
    for name, element in value.items():
        if (field := fields.get(name)) is None:
            _note_unknown(name, path, problems, fields, hints)
        elif (read_element := field.read(element, child(path, name), problems)) is not MISSING:
            result[name] = read_element
    for name, field in fields.items():
        if field.required and name not in value:
            problems.add(child(path, name), "is missing", "this field is required")
    return result


def _note_unknown(
    name: str, path: str, problems: Problems, fields: Mapping[str, Field], hints: Mapping[str, str]
) -> None:
    if problems.full:  # a search for near names costs, and a body can hold very many
        problems.overflowed = True
        return
    habit = hints.get(name.lower(), "")
    field = habit.split(",", maxsplit=1)[0]
    if field in fields:
        accepted = habit
    elif habit and "resources" in fields:
        accepted = f"resources, and there {habit}"
    elif near := nearest(name, fields):
        accepted = f"{near} (the nearest known name)"
    else:
        accepted = "one of " + listed_names(fields)
    problems.add(child(path, name), "unknown field", accepted)
