"""The lease on the lead as a state machine: what was read and written comes in, what to write next goes out. No I/O.

The lease is a record in a bucket that is only ever changed by compare-and-set on its revision. No two machines compare
their clocks: the holder counts its time from *before* it asked for a write, the others count theirs from *after* they
saw the revision change, and add a margin for clocks of different speed. So the holder's belief ends before anybody may
take over. It makes takeover quick and keeps two from working at once; that two never *write* is the guard's doing.
"""

from __future__ import annotations

import math

import msgspec

LEASE_SECONDS_MIN = 0.2
LEASE_SECONDS_MAX = 30.0
RENEWALS_PER_LEASE = 4
CLOCK_MARGIN = 0.05
"""Others wait this part of a lease longer than it lasts: clocks may differ in speed by that much."""
COMPUTATIONS_PER_LEASE = 3
COMPUTATION_HALF_LIFE_SECONDS = 10.0
"""Nothing is renewed while a pass is computed, so a lease holds several of the longest lately.

They fade with time, not with what else is computed: many short answers do not tell that long passes are over.
"""


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the bucket holds. `holder` is one process in its lifetime; `seconds` is how long this record is good for.

    `number` counts the holder's writes, so that it knows each of them again.
    """

    holder: str
    instance: str
    epoch: int
    seconds: float
    since_ns: int
    number: int
    released: bool = False


class Entry(msgspec.Struct, frozen=True):
    """The record at a revision; None is one that this version cannot read, or that somebody deleted."""

    revision: int
    record: LeaseRecord | None


class Write(msgspec.Struct, frozen=True):
    """A record to write if the bucket still is at `expected_revision` (0: holds none)."""

    record: LeaseRecord
    expected_revision: int


class Lease:
    """One process's view of the lease. Times are seconds of a clock of its own that never goes back."""

    def __init__(self, holder: str, instance: str, seconds: float) -> None:
        self._holder = holder
        self._instance = instance
        self._seconds = seconds
        self._longest_computation = 0.0
        self._computed_at = 0.0
        self._revision = 0
        self._entry: Entry | None = None
        self._changed_at = 0.0
        self._read_at: float | None = None
        self._held: LeaseRecord | None = None
        self._deadline = 0.0
        self._asked: Write | None = None
        self._asked_at = 0.0
        self._asked_to_renew = False
        self._writes = 0
        self._newest_epoch = 0
        self._in_doubt = False
        self._not_before = 0.0

    # ---- what it knows ----

    def holds(self, now: float) -> bool:
        """Say whether this process has the lease, for all it can know."""
        return self._held is not None and now < self._deadline

    @property
    def held(self) -> LeaseRecord | None:
        """Return the record of this process's term, None while it has none."""
        return self._held

    @property
    def deadline(self) -> float:
        """Return when the lease ends unless it is renewed."""
        return self._deadline

    @property
    def renewal_seconds(self) -> float:
        """Return the time between two renewals, or between two looks of one that stands by."""
        return self._seconds / RENEWALS_PER_LEASE

    def other_leads(self, now: float) -> LeaseRecord | None:
        """Return the record of another process whose lease has not ended, as far as was seen."""
        record = self._entry.record if self._entry is not None else None
        if record is None or record.holder == self._holder or record.released or now >= self._ends_at():
            return None
        return record

    def wants_read(self) -> bool:
        """Say whether the bucket is to be read before anything is written: always, but for a holder without doubt."""
        return self._held is None or self._in_doubt

    def due_in(self, now: float) -> float:
        """Return in how many seconds there is something to do."""
        if self._in_doubt or (self._held is None and self._read_at is None):
            return 0.0
        if self._held is not None:
            at = min(self._asked_at + self.renewal_seconds, self._deadline)
        else:
            at = (self._read_at or 0.0) + self.renewal_seconds
            if now < self._ends_at():
                at = min(at, self._ends_at())
        return max(0.0, at - now)

    # ---- what happens ----

    def on_read(self, entry: Entry | None, now: float) -> None:
        """Take note of what the bucket held when it was asked; `now` is after its answer came."""
        self._expire(now)
        self._read_at = now
        self._in_doubt = False
        if entry is None or self._entry is None or entry.revision != self._entry.revision:
            self._changed_at = now
        self._entry = entry
        self._revision = entry.revision if entry is not None else 0
        record = entry.record if entry is not None else None
        self._newest_epoch = max(self._newest_epoch, record.epoch if record is not None else 0)
        if record is None or record.holder != self._holder or record.released:
            self._held = None
        elif self._asked is not None and record == self._asked.record:
            self._own(record, now)
        elif self._held is not None and record.epoch != self._held.epoch:
            self._held = None

    def on_written(self, write: Write, revision: int, now: float) -> None:
        """Take note that `write`, the last one proposed, is in the bucket."""
        self._expire(now)
        if self._entry is None or revision != self._entry.revision:
            self._changed_at = now
        self._entry = Entry(revision, write.record)
        self._revision = revision
        self._in_doubt = False
        self._newest_epoch = max(self._newest_epoch, write.record.epoch)
        if not write.record.released:
            self._own(write.record, now)

    def on_doubt(self) -> None:
        """Take note that the last write was refused, or that nobody knows what became of it."""
        self._in_doubt = True

    def on_computed(self, seconds: float, now: float) -> None:
        """Take note of how long a pass or an answer was computed, so that the next lease is long enough for such."""
        self._longest_computation = max(seconds, self._longest_lately(now))
        self._computed_at = now

    def resign(self, now: float) -> None:
        """End the own term at once, and let others go first for a while."""
        self._held = None
        self._asked = None
        self._not_before = now + 2 * self.renewal_seconds

    # ---- what to write ----

    def propose(self, now: float, *, epoch_folded: int, now_ns: int) -> Write | None:
        """Return what is to be written now, None for nothing. `epoch_folded` is the journal's newest term."""
        self._expire(now)
        if self._in_doubt:
            return None
        if self._held is not None:
            if now < self._asked_at + self.renewal_seconds:
                return None
            return self._ask(msgspec.structs.replace(self._held, seconds=self._needed(now)), now)
        if now < self._not_before or not self._free(now):
            return None
        epoch = max(epoch_folded, self._newest_epoch) + 1
        taken = LeaseRecord(
            holder=self._holder,
            instance=self._instance,
            epoch=epoch,
            seconds=self._needed(now),
            since_ns=now_ns,
            number=0,
        )
        return self._ask(taken, now)

    def propose_release(self, now: float) -> Write | None:
        """End the own term at once; return what tells the others, None where the bucket says nothing of us."""
        self._held = None
        record = self._entry.record if self._entry is not None else None
        if record is None or record.holder != self._holder or record.released:
            return None
        return self._ask(msgspec.structs.replace(record, released=True), now)

    def _ask(self, record: LeaseRecord, now: float) -> Write:
        self._asked_to_renew = self._held is not None
        if self._asked_to_renew:
            # It may be written though no answer comes, and the others then count by what it says.
            self._deadline = min(self._deadline, now + record.seconds)
        self._writes += 1
        self._asked = Write(msgspec.structs.replace(record, number=self._writes), self._revision)
        self._asked_at = now
        return self._asked

    def _own(self, record: LeaseRecord, now: float) -> None:
        """Hold the lease by `record`, which was asked for last; a term that has lapsed meanwhile does not come back."""
        lapsed = self._held is None and self._asked_to_renew
        deadline = self._asked_at + record.seconds
        if lapsed or now >= deadline:
            self._held = None
            return
        self._held = record
        self._deadline = deadline

    def _expire(self, now: float) -> None:
        if self._held is not None and now >= self._deadline:
            self._held = None

    def _free(self, now: float) -> bool:
        """Say whether the lease may be taken: nobody has it, its holder let go of it, or it has ended."""
        if self._read_at is None:
            return False
        if self._entry is None:
            return True
        record = self._entry.record
        if record is not None and (record.released or record.holder == self._holder):
            return True
        return now >= self._ends_at()

    def _ends_at(self) -> float:
        """Return when the lease that was last read has ended for its holder, too."""
        record = self._entry.record if self._entry is not None else None
        seconds = record.seconds if record is not None else self._seconds
        return self._changed_at + min(max(seconds, 0.0), LEASE_SECONDS_MAX) * (1 + CLOCK_MARGIN)

    def _longest_lately(self, now: float) -> float:
        return self._longest_computation * math.exp2((self._computed_at - now) / COMPUTATION_HALF_LIFE_SECONDS)

    def _needed(self, now: float) -> float:
        return min(LEASE_SECONDS_MAX, max(self._seconds, COMPUTATIONS_PER_LEASE * self._longest_lately(now)))
