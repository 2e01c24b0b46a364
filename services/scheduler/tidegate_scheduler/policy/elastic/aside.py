"""Who waits and stands in no line, in the order in which explanations show them: in back-off, and then held.

Whoever is about to be cancelled is among those in back-off, as one whose back-off is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sortedcontainers import SortedList

from tidegate_scheduler.state import Job

_Place = tuple[int, int, str]
_Entry = tuple[bool, str, _Place]
"""Whether the job is held, its tenant, and its place: until when it is in back-off, and when it was submitted."""


class Aside:
    """The jobs by name, in order, and how many of each tenant there are."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._resting: SortedList[_Place] = SortedList()
        self._held: SortedList[_Place] = SortedList()
        self.held: Counter[str] = Counter()
        self.resting: Counter[str] = Counter()

    def add(self, job: Job) -> None:
        """Let a job stand aside that does not yet."""
        place = (0 if job.held else job.not_before_ns, job.submitted_seq, job.id)
        self._entries[job.id] = (job.held, job.tenant, place)
        (self._held if job.held else self._resting).add(place)
        (self.held if job.held else self.resting)[job.tenant] += 1

    def discard(self, name: str) -> None:
        """Take a job out, if it stands aside."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        held, tenant, place = entry
        counts = self.held if held else self.resting
        (self._held if held else self._resting).remove(place)
        counts[tenant] -= 1
        if not counts[tenant]:
            del counts[tenant]

    def first(self, *, held: bool) -> Iterator[str]:
        """Yield those who are held in the order of their submission, or the others in that of their back-offs."""
        return (name for _, _, name in (self._held if held else self._resting))

    def over(self, now_ns: int) -> Iterator[str]:
        """Yield those who are not held and whose back-off is over, if they were in one."""
        return (name for _, _, name in self._resting.irange(None, (now_ns + 1,), inclusive=(True, False)))

    def place(self, name: str) -> tuple[bool, int]:
        """Return whether the job is held, and how many of those who are so too, or are not, stand before it."""
        held, _, place = self._entries[name]
        return held, (self._held if held else self._resting).index(place)

    @property
    def waits(self) -> int:
        """Return how many are not held."""
        return len(self._resting)

    def __iter__(self) -> Iterator[str]:
        """Yield their names."""
        return iter(self._entries)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        """Say whether a job of that name stands aside."""
        return name in self._entries
