"""Problems of a submission, collected so that a user sees all of them in one answer.

A problem must never quote a submitted value: what was pasted in the wrong place may be a secret.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import msgspec

PROBLEMS_MAX = 100
NAME_CHARS_SHOWN = 64
KNOWN_SHOWN = 30

_PLAIN = re.compile(r"[A-Za-z0-9_.-]+\Z")


class Problem(msgspec.Struct, frozen=True):
    """What is wrong at `path`, and what would be accepted there."""

    path: str
    problem: str
    accepted: str


class Problems:
    """A bounded list of problems; `overflowed` says that there were more than PROBLEMS_MAX."""

    def __init__(self) -> None:
        self._found: list[Problem] = []
        self.overflowed = False

    def add(self, path: str, problem: str, accepted: str) -> None:
        """Note a problem; past the bound only the fact that there are more is kept."""
        if len(self._found) >= PROBLEMS_MAX:
            self.overflowed = True
            return
        self._found.append(Problem(path or "$", problem, accepted))

    @property
    def full(self) -> bool:
        """Say whether further problems would only be counted."""
        return len(self._found) >= PROBLEMS_MAX

    def __bool__(self) -> bool:
        return bool(self._found)

    def extend(self, other: Problems) -> None:
        """Take over the problems of another list."""
        for found in other._found:
            self.add(found.path, found.problem, found.accepted)
        self.overflowed = self.overflowed or other.overflowed

    def listed(self) -> list[Problem]:
        """Return the problems in the order they were found."""
        if self.overflowed:
            return [*self._found, Problem("$", f"more than {PROBLEMS_MAX} problems", "mend these first")]
        return list(self._found)


def child(path: str, name: str) -> str:
    """Return the path of the field `name`; a name with odd or very many characters is shown as what it is."""
    shown = name if _PLAIN.match(name) and len(name) <= NAME_CHARS_SHOWN else f"<name of {len(name)} characters>"
    return f"{path}.{shown}" if path else shown


def item(path: str, index: int) -> str:
    """Return the path of the list element at `index`."""
    return f"{path}[{index}]"


def listed_names(names: Iterable[str]) -> str:
    """Return names for a message: sorted, and cut where there are many."""
    ordered = sorted(names)
    more = f", and {len(ordered) - KNOWN_SHOWN} more" if len(ordered) > KNOWN_SHOWN else ""
    return ", ".join(ordered[:KNOWN_SHOWN]) + more


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` probably meant."""
    close = difflib.get_close_matches(name[:NAME_CHARS_SHOWN].lower(), list(known), n=1, cutoff=0.6)
    return close[0] if close else None
