"""What the journal says of a chaos run: who was taken in, what was written twice, who led when, how each job ended."""

from __future__ import annotations

from collections import Counter

import msgspec
from tidegate_events import events as e
from tidegate_events.journal.base import Journal

from tidegate_local.chaos.faults import Hit

ENDS = (e.JobCompleted, e.JobFailed, e.JobCancelled, e.JobRejected)
NS_PER_MS = 1_000_000


class Elected(msgspec.Struct, frozen=True):
    """A scheduler took the lead."""

    epoch: int
    instance: str
    at_ns: int


class History(msgspec.Struct, kw_only=True):
    """The whole journal, counted."""

    frames: int = 0
    frame_ids: Counter[str] = msgspec.field(default_factory=Counter)
    submissions: Counter[str] = msgspec.field(default_factory=Counter)
    names: dict[str, set[str]] = {}
    """The ids of the jobs that were taken in under each name: one, since each is submitted under one key."""
    placed: Counter[tuple[str, int]] = msgspec.field(default_factory=Counter)
    started: Counter[tuple[str, int, int]] = msgspec.field(default_factory=Counter)
    ends: dict[str, str] = {}
    elected: list[Elected] = []
    generations: int = 1
    preemptions: int = 0

    def take(self, event: e.AnyEvent) -> None:
        """Count one event."""
        if isinstance(event, e.JobSubmitted):
            self.submissions[event.job] += 1
            self.names.setdefault(event.spec.name, set()).add(event.job)
        elif isinstance(event, e.JobPlaced):
            self.placed[event.job, event.attempt] += 1
        elif isinstance(event, e.SandboxStarted):
            self.started[event.job, event.attempt, event.rank] += 1
        elif isinstance(event, e.PreemptRequested):
            self.preemptions += 1
        elif isinstance(event, e.LeaderElected):
            self.elected.append(Elected(event.epoch, event.instance, event.at_ns))
        elif isinstance(event, e.GenerationOpened):
            self.generations = max(self.generations, event.generation)
        elif isinstance(event, ENDS):
            self.ends[event.job] = type(event).__name__

    @property
    def written_twice(self) -> list[str]:
        """Return frames that lie in the journal twice, jobs submitted twice, and keys that made two jobs."""
        frames = [f"frame {name}" for name, count in self.frame_ids.items() if count > 1]
        jobs = [f"job {job}" for job, count in self.submissions.items() if count > 1]
        keys = [f"name {name}" for name, found in self.names.items() if len(found) > 1]
        return [*frames, *jobs, *keys]


async def read(journal: Journal) -> History:
    """Return the journal from its beginning to its end now."""
    history = History()
    async for recorded in journal.read(0, await journal.end()):
        history.frames += 1
        history.frame_ids[recorded.frame.writer.frame_id] += 1
        for event in recorded.frame.events:
            history.take(event)
    return history


def takeover_ms(hits: list[Hit], elected: list[Elected]) -> list[int]:
    """Return how long after the end of each leader another one led, where one stood by and the whole bus was up.

    Of kills alone: a leader that was stopped may go on before its lease ends. A kill while nobody leads yet, because
    the one before was hit, counts as a part of that.
    """
    found = []
    for hit in hits:
        if hit.what != "kill" or not hit.led or not hit.fair:
            continue
        before = [term for term in elected if term.at_ns <= hit.at_ns]
        after = [term for term in elected if term.at_ns > hit.at_ns]
        if after and before and before[-1].instance == hit.name:
            found.append((after[0].at_ns - hit.at_ns) // NS_PER_MS)
    return found


def percentile(values: list[int], percent: int) -> int | None:
    """Return the value below which `percent` of a hundred lie; None of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)] if ordered else None
