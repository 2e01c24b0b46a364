"""What the jobs themselves wrote down: who was executed, how often, and which attempts were alive at one time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One member of one attempt, by its own file. Times are microseconds of the machine's clock."""

    name: str
    attempt: int
    rank: int
    begins: int
    first_us: int
    last_us: int
    last_word: str


class Faulty(msgspec.Struct, frozen=True):
    """Something that was executed twice, and how that shows."""

    name: str
    what: str


def read(outputs: Path) -> list[Run]:
    """Return every run below the directory, by name, attempt and rank."""
    return [_run(file) for file in sorted(outputs.glob("*/*-*"))]


def _run(file: Path) -> Run:
    attempt, _, rank = file.name.partition("-")
    words, times = [], []
    for line in file.read_text().splitlines():
        word, _, at_us = line.partition(" ")
        words.append(word)
        times.append(int(at_us))
    return Run(
        name=file.parent.name,
        attempt=int(attempt),
        rank=int(rank),
        begins=words.count("begin"),
        first_us=min(times, default=0),
        last_us=max(times, default=0),
        last_word=words[-1] if words else "",
    )


def started_twice(runs: Iterable[Run]) -> list[Faulty]:
    """Return the runs whose command was executed more than once, and the attempts that lived beside a later one."""
    found = []
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        by_name.setdefault(run.name, []).append(run)
        if run.begins > 1:
            found.append(Faulty(run.name, f"attempt {run.attempt} rank {run.rank} was executed {run.begins} times"))
    for name, own in by_name.items():
        for earlier in own:
            for later in own:
                if later.attempt > earlier.attempt and later.first_us and later.first_us < earlier.last_us:
                    both = f"attempts {earlier.attempt} and {later.attempt}"
                    found.append(
                        Faulty(name, f"{both} lived together for {(earlier.last_us - later.first_us) // 1000} ms")
                    )
    return found
