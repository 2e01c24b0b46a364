"""The catalogue of checkpoints: a pure fold of the journal, so that it is whole again after any crash.

It knows of each checkpoint what was said about it, never what lies on disk. It must not read a clock or a file.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from tidegate_events import events as e
from tidegate_events.journal.base import Recorded

from tidegate_checkpoint.saves import Saves

SETTLED_PER_JOB_MAX = 200
"""Checkpoints kept of one job once their verdict is known. Those still to be read are kept until it is."""
ENDED_JOBS_MAX = 10_000
OWN_SUBJECTS = "tg.fact.checkpoint."

Status = Literal["saved", "verified", "failed"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint and what became of it; `place` is where its CheckpointSaved stands in the journal."""

    saved: e.CheckpointSaved
    seq: int
    place: str
    status: Status = "saved"
    failure: e.Reason | None = None

    @property
    def id(self) -> str:
        """Return the checkpoint's id."""
        return self.saved.checkpoint.id

    @property
    def job(self) -> str:
        """Return the id of the job that saved it."""
        return self.saved.job

    @property
    def size_bytes(self) -> int:
        """Return the size of its layers, as reported."""
        return sum(layer.size_bytes for layer in self.saved.checkpoint.layers)

    @property
    def age_key(self) -> tuple[int, int, int]:
        """Return what orders checkpoints of one rank: a later attempt is newer, even at an earlier step."""
        return (self.saved.checkpoint.attempt, self.saved.checkpoint.step, self.seq)


class JobRecord(msgspec.Struct):
    """The checkpoints of one job by id, in the order of their reports; `changes` counts what happened to them."""

    tenant: str
    entries: dict[str, Entry] = {}
    dropped: int = 0
    saves_failed: int = 0
    last_save_failure: e.Reason | None = None
    ended: str = ""
    changes: int = 0

    def newest_first(self) -> list[Entry]:
        """Return every entry: rank 0 before the others, the newest first."""
        return sorted(self.entries.values(), key=lambda entry: (-entry.saved.rank, entry.age_key), reverse=True)


class Catalogue:
    """All that the journal says about checkpoints, up to frame `seq`.

    `last_by_subject` and `epoch_by_subject` are the last frame and the highest epoch on this service's own subjects.
    """

    def __init__(self) -> None:
        self.seq = 0
        self.last_by_subject: dict[str, int] = {}
        self.epoch_by_subject: dict[str, int] = {}
        self._jobs: dict[str, JobRecord] = {}
        self._ended: dict[str, None] = {}
        self._unsettled: dict[tuple[str, str], None] = {}
        self.saves = Saves()

    def apply(self, recorded: Recorded) -> None:
        """Fold the next frame. Raises ValueError for one out of order."""
        if recorded.seq != self.seq + 1:
            raise ValueError(f"frame {recorded.seq} cannot follow frame {self.seq}: every frame is taken in order")
        for index, event in enumerate(recorded.frame.events):
            self._apply(event, recorded.seq, index)
            self.saves.apply(recorded.frame.writer, event)
        if recorded.subject.startswith(OWN_SUBJECTS):
            self.last_by_subject[recorded.subject] = recorded.seq
            epoch = recorded.frame.writer.epoch
            self.epoch_by_subject[recorded.subject] = max(epoch, self.epoch_by_subject.get(recorded.subject, 0))
        self.seq = recorded.seq

    def _apply(self, event: e.Event, seq: int, index: int) -> None:
        match event:
            case e.CheckpointSaved():
                self._on_saved(event, seq, index)
            case e.CheckpointVerified():
                self._settle(event.job, event.checkpoint_id, None)
            case e.CheckpointFailed(stage="verify"):
                self._settle(event.job, event.checkpoint_id, event.reason)
            case e.CheckpointFailed():
                self._on_save_failed(event)
            case e.JobCompleted() | e.JobFailed() | e.JobCancelled() | e.JobRejected():
                self._on_ended(event)

    def _on_saved(self, event: e.CheckpointSaved, seq: int, index: int) -> None:
        record = self._jobs.setdefault(event.job, JobRecord(event.tenant))
        # An agent may report again after a crash of its own: the first report of an id stands.
        if record.ended or event.tenant != record.tenant or event.checkpoint.id in record.entries:
            return
        entry = Entry(saved=event, seq=seq, place=f"{seq}.{index}")
        record.entries[entry.id] = entry
        record.changes += 1
        self._unsettled[(entry.job, entry.id)] = None

    def _settle(self, job: str, checkpoint_id: str, failure: e.Reason | None) -> None:
        record = self._jobs.get(job)
        entry = record.entries.get(checkpoint_id) if record else None
        # A failure may follow a success (it changed since), a success never follows a failure.
        if record is None or entry is None or entry.status == "failed" or (failure is None and entry.status != "saved"):
            return
        status: Status = "verified" if failure is None else "failed"
        record.entries[checkpoint_id] = msgspec.structs.replace(entry, status=status, failure=failure)
        record.changes += 1
        self._unsettled.pop((job, checkpoint_id), None)
        self._forget_oldest(record)
        self._forget_ended()

    def _forget_oldest(self, record: JobRecord) -> None:
        settled = [entry for entry in record.entries.values() if entry.status != "saved"]
        if len(settled) > SETTLED_PER_JOB_MAX:
            oldest = min(settled, key=lambda entry: (entry.status == "verified", entry.age_key))
            del record.entries[oldest.id]
            record.dropped += 1

    def _on_save_failed(self, event: e.CheckpointFailed) -> None:
        record = self._jobs.setdefault(event.job, JobRecord(event.tenant))
        record.saves_failed += 1
        record.last_save_failure = event.reason

    def _on_ended(self, event: e.Decision) -> None:
        record = self._jobs.setdefault(event.job, JobRecord(event.tenant))
        record.ended = type(event).__name__
        self._ended[event.job] = None
        self._forget_ended()

    def _forget_ended(self) -> None:
        """Drop the jobs that ended first, unless one of their checkpoints still waits for its verdict."""
        if len(self._ended) <= ENDED_JOBS_MAX:
            return
        busy = {job for job, _ in self._unsettled}
        for job in [job for job in self._ended if job not in busy][: len(self._ended) - ENDED_JOBS_MAX]:
            del self._ended[job], self._jobs[job]

    def job(self, job: str) -> JobRecord | None:
        """Return what is known of a job's checkpoints; None where it never saved one, or is forgotten."""
        return self._jobs.get(job)

    def records(self) -> list[tuple[str, JobRecord]]:
        """Return every job and what is known of its checkpoints."""
        return list(self._jobs.items())

    def reported(self, job: str, checkpoint_id: str) -> Entry | None:
        """Return a checkpoint; None where it was never reported in time, or is forgotten."""
        record = self._jobs.get(job)
        return record.entries.get(checkpoint_id) if record else None

    def unsettled(self) -> list[Entry]:
        """Return the checkpoints without a verdict, oldest report first."""
        return [self._jobs[job].entries[checkpoint_id] for job, checkpoint_id in self._unsettled]

    def is_unsettled(self, entry: Entry) -> bool:
        """Say whether the checkpoint still has no verdict."""
        return (entry.job, entry.id) in self._unsettled

    def is_newest(self, entry: Entry) -> bool:
        """Say whether no newer checkpoint of the same rank is there to resume from."""
        record = self._jobs.get(entry.job)
        others = record.entries.values() if record else ()
        return not any(
            other.saved.rank == entry.saved.rank and other.status != "failed" and other.age_key > entry.age_key
            for other in others
        )
