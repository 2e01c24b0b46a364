"""Reads query parameters: a parameter that is unknown, doubled or out of bounds is a problem, never ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.requests import Request

from tidegate_gateway.http.errors import ProblemsError
from tidegate_gateway.submission.problems import Problems, child, listed_names, nearest

PARAMETERS_MAX = 32
_INTEGER = re.compile(r"-?[0-9]{1,19}")


class Parameters:
    """The query of one request; `done` raises with all problems at once."""

    def __init__(self, request: Request, *known: str, repeated: tuple[str, ...] = ()) -> None:
        self.problems = Problems()
        self._values: dict[str, list[str]] = {}
        for name, value in request.query_params.multi_items()[:PARAMETERS_MAX]:
            self._values.setdefault(name, []).append(value)
        for name, values in self._values.items():
            path = "?" + child("", name)
            if name not in known and name not in repeated:
                hint = nearest(name, known)
                self.problems.add(
                    path, "unknown parameter", hint or listed_names((*known, *repeated)) or "no parameters"
                )
            elif len(values) > 1 and name not in repeated:
                self.problems.add(path, "is there more than once", "one value")

    def text(self, name: str, pattern: re.Pattern[str], accepted: str) -> str | None:
        """Return a value that matches `pattern`, None when it is not given."""
        value = self._one(name)
        if value is not None and not pattern.fullmatch(value):
            self.problems.add(f"?{name}", "has a form that cannot be used here", accepted)
            return None
        return value

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """Return a whole number between `low` and `high`."""
        value = self._one(name)
        if value is None:
            return default
        if not _INTEGER.fullmatch(value) or not low <= int(value) <= high:
            self.problems.add(f"?{name}", "is no whole number in bounds", f"a whole number from {low} to {high}")
            return default
        return int(value)

    def choices(self, name: str, known: Mapping[str, object] | tuple[str, ...]) -> frozenset[str]:
        """Return the given words of `known`; each value may hold several, separated by commas."""
        words = [word for value in self._values.get(name, []) for word in value.split(",") if word]
        for word in words:
            if word not in known:
                hint = nearest(word, known)
                problem = "is not a known word" + (f"; did you mean {hint}?" if hint else "")
                self.problems.add(f"?{name}", problem, "one of " + ", ".join(known))
        return frozenset(words)

    def done(self) -> None:
        """Raise ProblemsError if anything was wrong."""
        ProblemsError.raise_if(self.problems)

    def _one(self, name: str) -> str | None:
        values = self._values.get(name)
        return values[0] if values else None
