"""Numbers for values that rows share, so that a column can hold them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value", bound=Hashable)


class Numbering(Generic[Value]):
    """Values by their numbers, in the order in which they became known, which no decision may depend on."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[Value, int] = {}

    def __len__(self) -> int:
        return len(self.values)

    def number(self, value: Value) -> int:
        """Return the value's number; a new one is given the next."""
        known = self._numbers.get(value)
        if known is None:
            known = self._numbers[value] = len(self.values)
            self.values.append(value)
        return known

    def renumber(self, column: list[int]) -> list[int]:
        """Forget the values that no row of the column has; return the column with the new numbers."""
        values = [self.values[number] for number in column]
        self.values = list(dict.fromkeys(values))
        self._numbers = {value: number for number, value in enumerate(self.values)}
        return [self._numbers[value] for value in values]
