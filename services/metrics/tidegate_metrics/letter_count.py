"""Counts dead letters, as a mirror of their stream that is read on from where it was. Pure."""

from __future__ import annotations

from collections import Counter

import structlog
from tidegate_events.deadletter import StoredLetter

log = structlog.get_logger()


class LetterCount:
    """What there is to say about dead letters; `revision` is how far their stream was read.

    `set_aside` and `expired` count from the first complete look on: what lay there before is in `open` alone.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.known = False
        self.set_aside: Counter[str] = Counter()
        self.expired: Counter[str] = Counter()
        self._letters: dict[str, StoredLetter] = {}
        self._consumers: set[str] = set()

    def apply(self, stored: StoredLetter) -> None:
        """Take a letter as it is now."""
        letter = stored.letter
        before = self._letters.pop(letter.key, None)
        self.revision = stored.revision
        self._letters[letter.key] = stored
        self._consumers.add(letter.consumer)
        was_open = before is not None and before.letter.is_open
        if self.known and letter.is_open and not was_open:
            self.set_aside[letter.consumer] += 1
        if self.known and letter.state == "dropped":
            about = {"consumer": letter.consumer, "place": letter.place, "by": letter.by, "why": letter.reason}
            log.warning("dead_letter_dropped", job=letter.job, kind=letter.kind, **about)

    def forget(self, oldest: int) -> None:
        """Forget what the stream let go, all below revision `oldest`; those nobody had dealt with count as expired."""
        while (first := next(iter(self._letters.values()), None)) is not None and first.revision < oldest:
            letter = first.letter
            del self._letters[letter.key]
            if letter.is_open:
                self.expired[letter.consumer] += 1
                log.error("dead_letter_expired", consumer=letter.consumer, place=letter.place, job=letter.job)
        self.known = True

    def open(self) -> dict[str, int]:
        """Return how many letters of each consumer wait for somebody."""
        counted = Counter(stored.letter.consumer for stored in self._letters.values() if stored.letter.is_open)
        return {consumer: counted[consumer] for consumer in sorted(self._consumers)}
