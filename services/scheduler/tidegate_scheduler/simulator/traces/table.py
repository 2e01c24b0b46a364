"""A table of comma-separated values, read strictly: whatever is refused is named with its file, line and column."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidegate_scheduler.simulator.errors import InputError

ROWS_MAX = 2_000_000
NUMBER_MAX = 10**12
YEARS_10_SECONDS = 10 * 365 * 24 * 3600
"""No job of a trace is longer: a simulation goes by what happens, and would not come to an end."""

ENCODING = "utf-8-sig"
"""UTF-8, with the mark before it that spreadsheets write, or without."""

_NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)


class Row(msgspec.Struct, frozen=True):
    """One line of a table."""

    path: Path
    line: int
    values: dict[str, str]

    def text(self, column: str) -> str:
        """Return the value of a column, without the spaces around it."""
        return self.values[column]

    def whole(self, column: str, *, least: int = 0, most: int = NUMBER_MAX) -> int:
        """Return a whole number; a decimal is rounded down. Raises InputError for what is outside, or no number."""
        found = _NUMBER.fullmatch(self.values[column])
        if found is None or not least <= (value := float(found[0])) < most + 1:
            raise self.refused(column, f"a number from {least} to {most}")
        return int(value) if found[1] or found[2] else int(found[0])

    def refused(self, column: str, accepted: str) -> InputError:
        """Return the error for the value of a column."""
        found = self.values[column]
        return InputError(f"{self.path}, line {self.line}: {column} is {found!r}; accepted is {accepted}")


def columns(path: Path) -> tuple[str, ...]:
    """Return the names of a table's columns. Raises InputError where there is no such file, or no table in it."""
    try:
        with path.open(encoding=ENCODING, newline="") as file:
            head = next(csv.reader(file), None)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; accepted is a CSV file") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV file in UTF-8: {error}") from error
    if not head:
        raise InputError(f"{path} is empty; accepted is a CSV file whose first line names its columns")
    names = tuple(name.strip() for name in head)
    if doubled := sorted({name for name in names if name and names.count(name) > 1}):
        raise InputError(f"{path} has more than one column {', '.join(doubled)}; accepted is one of each name")
    return names


def rows(path: Path, needed: tuple[str, ...]) -> Iterator[Row]:
    """Yield the rows of a table that has the needed columns. Raises InputError where it is damaged or has no rows."""
    names = columns(path)
    if missing := [name for name in needed if name not in names]:
        raise InputError(f"{path} has no column {', '.join(missing)}; it has {', '.join(names)}")
    count = 0
    try:
        with path.open(encoding=ENCODING, newline="") as file:
            reader = csv.reader(file)
            next(reader)
            for values in reader:
                if not values:
                    continue
                count += 1
                if len(values) != len(names):
                    raise InputError(
                        f"{path}, line {reader.line_num}: {len(values)} values; accepted is one for each of the "
                        f"{len(names)} columns"
                    )
                if count > ROWS_MAX:
                    raise InputError(f"{path} has more than {ROWS_MAX} rows: simulate a part of it")
                yield Row(path, reader.line_num, dict(zip(names, (value.strip() for value in values), strict=True)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a CSV file in UTF-8: {error}") from error
    if not count:
        raise InputError(f"{path} has no rows below its first line: there is nothing to simulate")
