"""What one pass grants of phases that are asked for, and what each row has left to give meanwhile."""

from __future__ import annotations

import msgspec

from tidegate_scheduler.policy.elastic import replicas
from tidegate_scheduler.policy.elastic.claims import spare_mib
from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS, Devices
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.parts import Part, leased_to, lent_by
from tidegate_scheduler.policy.elastic.physical import asking_on, has_mib, need_of
from tidegate_scheduler.policy.elastic.table import CPU, MEMORY
from tidegate_scheduler.policy.elastic.terms import Terms, wanted_need
from tidegate_scheduler.state import Job, Member

Key = tuple[str, int]
"""A job and the rank of a member of it."""


class Ask(msgspec.Struct, frozen=True):
    """A member that waits for a phase."""

    job: Job
    member: Member
    phase: str
    row: int

    @property
    def key(self) -> Key:
        """Return whose it is."""
        return self.job.id, self.member.rank


class Ledger(msgspec.Struct):
    """What of a row this pass may still give: memory and CPU that nobody has, and devices that are lent.

    `lent` is what is lent of each device, less what is leased of it, and `whole` are those that one member lends.
    `claimed_mib`, `claimed_gpus` and `claimed` parts of devices are what those wait for who wait on the row already:
    all of it is recalled at once.
    `leftovers`: sandboxes that were given up still run there, and nobody knows what they hold: nobody gets more.
    """

    spare_mib: int
    spare_millis: int
    lent: dict[int, int]
    whole: tuple[int, ...]
    simulators_mib: int
    claimed_mib: int = 0
    claimed_gpus: int = 0
    claimed: dict[int, int] = {}
    closed: bool = False
    leftovers: bool = False

    def copied(self) -> Ledger:
        """Return a copy, to take from."""
        return msgspec.structs.replace(self, lent=dict(self.lent))

    def lends_whole(self, device: int) -> bool:
        """Say whether one member lends the device, and nobody has it leased."""
        return device in self.whole and self.lent[device] >= WHOLE_MILLIS

    def spare_of(self, devices: Devices, device: int) -> int:
        """Return how much of a device nobody has."""
        return devices.free_of(device) + self.lent.get(device, 0)

    def give(self, parts: tuple[Part, ...]) -> None:
        """Let somebody have what is lent."""
        for device, millis in parts:
            self.lent[device] = self.lent.get(device, 0) - millis


class Grants:
    """Of one pass. `terms` are those of every member that asks, on the rows that were looked at."""

    def __init__(self, index: Index, now_ns: int, placed: int) -> None:
        self.terms: dict[Key, Terms] = {}
        self.by_job: dict[str, list[Key]] = {}
        """Who is granted a phase in this pass, by job."""

        self.decided = placed
        """How many decisions this pass has made that must fit a frame."""

        self.coming_free: set[int] = set()
        """The rows on which somebody is left without something that was its own: the next pass finds that free."""

        self._index = index
        self._now_ns = now_ns
        self._ledgers: dict[int, Ledger] = {}

    def grant(self, ask: Ask, terms: Terms) -> None:
        """Let the member enter the phase, or have what the phase that it is in needs."""
        self.terms[ask.key] = msgspec.structs.replace(terms, granted=ask.phase if ask.member.wanted else "")
        self.by_job.setdefault(ask.job.id, []).append(ask.key)
        self.decided += 1

    # ---- what rows have to give ----

    def ledger(self, row: int) -> Ledger:
        """Return what the row has to give, worked out when it is asked for first."""
        if row not in self._ledgers:
            index, state = self._index, self._index.state
            simulators_mib = replicas.held(index, row, self._now_ns)[0]
            lent, whole, needs_millis = dict[int, int](), list[int](), 0
            for job, member in asking_on(index, row):
                for sign, parts in ((1, lent_by(member)), (-1, leased_to(member))):
                    for device, millis in parts:
                        lent[device] = lent.get(device, 0) + sign * millis
                whole += () if member.lent_millis else member.lent_gpus
                held = state.floors[job.id].cpu_millis + (member.extra.cpu_millis if member.extra else 0)
                needs_millis += need_of(state.specs[job.id], member.phase, member.granted).cpu_millis - held
            spare_millis = index.table.free_on(row)[CPU] - needs_millis
            ledger = Ledger(spare_mib(index, row, simulators_mib), spare_millis, lent, tuple(whole), simulators_mib)
            ledger.closed = ledger.leftovers = self._leftovers(row)
            self._ledgers[row] = ledger
        return self._ledgers[row]

    def enter(self, row: int, ledger: Ledger) -> None:
        """Let that be left of the row."""
        self._ledgers[row] = ledger

    def unused_mib(self, row: int, unused_mib: int) -> int:
        """Return what is left of the memory of a row for more simulators, after what was granted."""
        if self._leftovers(row):
            return min(0, unused_mib)
        ledger = self._ledgers.get(row)
        return unused_mib if ledger is None else min(unused_mib, ledger.spare_mib)

    def _leftovers(self, row: int) -> bool:
        return bool(self._index.state.nodes[self._index.table.names[row]].zombies)

    # ---- memory ----

    def more_mib(self, ask: Ask) -> int:
        """Return the memory that the member needs for its phase beyond what it has."""
        spec, floor = self._index.state.specs[ask.job.id], self._index.state.floors[ask.job.id]
        return max(0, wanted_need(spec, floor, ask.member, ask.phase).memory_mib - has_mib(spec, ask.member))

    def kept_mib(self, row: int) -> int:
        """Return the memory that is free on a row and promised to others."""
        table = self._index.table
        return max(0, table.free_on(row)[MEMORY] - max(0, table.now_on(row)[MEMORY]))
