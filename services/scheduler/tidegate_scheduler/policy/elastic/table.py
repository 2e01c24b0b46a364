"""The room of every node as numpy columns: what is free, what will be, and what may be taken at once.

`free` is what nobody holds. `later` is what will be free when all who are leaving have left, less what is promised: so
room that is being left is counted once, and for whom it was freed. What may be taken now is the smaller of the two; of
parts of a device that all who have some are leaving, only where it is kept for nobody as a whole.

Rows are numbered in the order in which nodes became known, which no decision may depend on: ties are broken by `place`,
the position of the node's name among all names.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from tidegate_events.resources import GpuDevice, Resources

from tidegate_scheduler.policy.elastic.changes import Changes
from tidegate_scheduler.policy.elastic.devices import Devices, accepts, use
from tidegate_scheduler.policy.elastic.numbering import Numbering
from tidegate_scheduler.policy.elastic.peaks import NONE as NO_PEAK
from tidegate_scheduler.policy.elastic.peaks import Asked, Peak, Peaks
from tidegate_scheduler.policy.elastic.sites import NUMBERS_SPARE, Sites

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

CPU, MEMORY, GPUS, SHARE = 0, 1, 2, 3
"""Rows of the amounts. SHARE is the largest part of one device, in thousandths, that is free beside others' parts."""

ROWS_FIRST = 64
SCORES_KEPT = 1024


class Kind(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """All of a node that decides whether a job could ever run there; nodes of one kind are alike to every job."""

    cpu_millis: int
    memory_mib: int
    levels: tuple[str, ...]
    images: tuple[tuple[str, str], ...]
    devices: tuple[tuple[str, int], ...]
    cpu_model: str
    unavailable: tuple[str, ...] = ()
    """Images that the node could not get, so that it is not asked for them again."""

    fetches_images: bool = False
    """Whether it may get others than it has."""

    gpu_levels: tuple[str, ...] | None = None
    """At which levels it passes GPUs; None: at all it offers."""


NO_KIND = Kind(0, 0, (), (), (), "")  # of a row that no node has


class Kept(msgspec.Struct, frozen=True, gc=False):
    """What is kept for one member: its floor, on devices of these models (none: any), and what more it may ask for."""

    need: Resources
    models: tuple[str, ...] = ()
    more: Peak = NO_PEAK


class Scored(Protocol):
    """A shape that keeps how tightly it fits on each row."""

    def forget_score(self) -> None:
        """Drop it."""
        ...


class NodeTable:
    """Columns over nodes; `changes` is the log of rows whose room changed."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.rows: dict[str, int] = {}
        self.devices: list[Devices] = []
        self.kinds: list[Kind] = []
        self.changes = Changes(self)
        self.renamed = 0
        self.nodes_changed = 0
        self.buckets: list[int] = []
        """By number of whole devices, on how many rows just so many may be taken at once."""

        self.mixed: dict[int, None] = {}
        self.parted: dict[int, None] = {}
        """The rows on which somebody holds a part of a device."""

        self._columns: Ints = np.zeros((3, 4, ROWS_FIRST), np.int64)
        self._behind: dict[int, None] = {}
        """The rows that the columns lag behind: most changes are of one row, and seen by those who look at one."""

        self._free: list[list[int]] = []
        self._later: list[list[int]] = []
        self._now: list[list[int]] = []
        self._kind: list[int] = []
        self.is_open: list[bool] = []
        self.open: Flags = np.zeros(ROWS_FIRST, np.bool_)
        self.kind: Ints = np.zeros(ROWS_FIRST, np.int64)
        self.sites = Sites(ROWS_FIRST)
        self.peaks = Peaks()
        self.beside_millis = 0
        self.place: Ints = np.zeros(ROWS_FIRST, np.int64)
        self._places: list[int] = []
        self.renumbered = 0
        """How often kinds were given other numbers: who keeps something by their numbers works it out anew."""

        self._kinds_known: Numbering[Kind] = Numbering()
        self._spare: list[int] = []
        self._there: tuple[int, Ints] = (-1, np.zeros(0, np.int64))
        self._scored: dict[Scored, None] = {}

    def __len__(self) -> int:
        return len(self.names)

    @property
    def free(self) -> Ints:
        """Return what nobody holds."""
        return self._caught_up(0)

    @property
    def later(self) -> Ints:
        """Return what will be free when all who are leaving have left, less what is promised."""
        return self._caught_up(1)

    @property
    def now(self) -> Ints:
        """Return what may be taken at once."""
        return self._caught_up(2)

    def _caught_up(self, which: int) -> Ints:
        if self._behind:
            rows = list(self._behind)
            amounts = [[of[row] for row in rows] for of in (self._free, self._later, self._now)]
            self._columns[:, :, rows] = np.array(amounts, np.int64).transpose(0, 2, 1)
            self._behind.clear()
        column: Ints = self._columns[which]
        return column

    def note_score(self, kept: Scored) -> None:
        """Keep the score of so many shapes, those that were asked for last: each is as long as the table."""
        self._scored.pop(kept, None)
        self._scored[kept] = None
        if len(self._scored) > SCORES_KEPT:
            oldest = next(iter(self._scored))
            del self._scored[oldest]
            oldest.forget_score()

    # ---- nodes ----

    def put(self, name: str, kind: Kind, gpus: tuple[GpuDevice, ...], *, is_open: bool) -> int:
        """Enter a node, or what became of it, as if nothing ran there; return its row."""
        row = self.rows.get(name)
        if row is None:
            row = self._append(name)
        devices = sorted(gpus, key=lambda gpu: (gpu.memory_mib, gpu.index))
        self.devices[row] = Devices({gpu.index: gpu for gpu in gpus}, list(devices), devices)
        self.parted.pop(row, None)
        if len(set(kind.devices)) > 1:
            self.mixed[row] = None
        else:
            self.mixed.pop(row, None)
        self.kinds[row] = kind
        self._number(row, kind)
        self.open[row] = self.is_open[row] = is_open
        for amounts in (self._free, self._later):
            amounts[row] = [kind.cpu_millis, kind.memory_mib, len(gpus), 0]
        self.nodes_changed += 1
        self.changes.gather_anew()  # a node that opens has no more room than before
        self.settle(row)
        return row

    @property
    def kind_count(self) -> int:
        """Return how many kinds of nodes are known; some may be of nodes that are gone."""
        return len(self._kinds_known)

    def kind_list(self) -> list[Kind]:
        """Return the kinds by their numbers in the column `kind`."""
        return self._kinds_known.values

    def kinds_now(self) -> list[int]:
        """Return the numbers of the kinds that a row has now; kind_list() remembers others."""
        numbers: list[int] = np.unique(self.kind[: len(self)]).tolist()
        return numbers

    def rows_there(self) -> Ints:
        """Return the rows of nodes that there are, to be looked at only: those that are gone leave theirs behind."""
        if self._there[0] != self.nodes_changed:
            self._there = (self.nodes_changed, np.array(sorted(self.rows.values()), np.int64))
        return self._there[1]

    def rank_names(self) -> None:
        """Work out `place` anew, after new nodes became known."""
        count = len(self.names)
        self.place[np.array(sorted(range(count), key=self.names.__getitem__), np.int64)] = np.arange(count)
        self._places = self.place[:count].tolist()

    def drop(self, name: str) -> int:
        """Take out a node that is gone; return its row, which suits nobody until another node gets it."""
        row = self.rows.pop(name)
        self._spare.append(row)
        self.names[row] = ""
        self.devices[row], self.kinds[row] = Devices({}, []), NO_KIND
        self.mixed.pop(row, None)
        self.parted.pop(row, None)
        self._number(row, NO_KIND)
        self.sites.drop(row)
        self.open[row] = self.is_open[row] = False
        self._free[row], self._later[row] = [0, 0, 0, 0], [0, 0, 0, 0]
        self.nodes_changed += 1
        self.renamed += 1
        self.settle(row)
        return row

    def _number(self, row: int, kind: Kind) -> None:
        """Give the row the number of its kind; now and then, forget what no row has any more."""
        self.kind[row] = self._kind[row] = self._kinds_known.number(kind)
        self.sites.forget(len(self), len(self.rows))
        if len(self._kinds_known) > 2 * len(self.rows) + NUMBERS_SPARE:
            self._kind = self._kinds_known.renumber(self._kind)
            self.kind[: len(self)] = self._kind
            self.renumbered += 1

    def _append(self, name: str) -> int:
        if self._spare:
            row = self._spare.pop()
            self.names[row], self.rows[name] = name, row
            self.renamed += 1
            return row
        row = len(self.names)
        if row == len(self.open):
            self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=2)
            self.sites.grow()
            for each in ("open", "kind", "place"):
                column = getattr(self, each)
                setattr(self, each, np.concatenate([column, np.zeros_like(column)]))
        self.names.append(name)
        self.rows[name] = row
        self.devices.append(Devices({}, []))
        self.kinds.append(NO_KIND)
        self._free.append([0, 0, 0, 0])
        self._later.append([0, 0, 0, 0])
        self._now.append([0, 0, 0, 0])
        self._kind.append(0)
        self.is_open.append(False)
        self.renamed += 1
        return row

    # ---- room ----

    def occupy(self, row: int, need: Resources, indices: tuple[int, ...], *, leaving: bool = False) -> None:
        """Let a member hold room; that of one who is `leaving` will be free."""
        self._move(row, need, indices, -1)
        if not leaving:
            self._stay(row, need, indices, -1)
        self.settle(row)

    def vacate(self, row: int, need: Resources, indices: tuple[int, ...], *, leaving: bool = False) -> None:
        """Take back what `occupy` did with the same arguments."""
        self._move(row, need, indices, 1)
        if not leaving:
            self._stay(row, need, indices, 1)
        self.settle(row)

    def leave(self, row: int, need: Resources, indices: tuple[int, ...]) -> None:
        """Count the room of a member that stayed until now as free later."""
        self._stay(row, need, indices, 1)
        self.settle(row)

    def stay(self, row: int, need: Resources, indices: tuple[int, ...]) -> None:
        """Take back what `leave` did."""
        self._stay(row, need, indices, -1)
        self.settle(row)

    def promise(self, row: int, kept: Kept) -> None:
        """Keep room for one member from all others.

        A promised part of a device keeps a whole one: which part will be free is not known before.
        """
        self._promise(row, kept, 1)

    def release(self, row: int, kept: Kept) -> None:
        """Take back what `promise` did."""
        self._promise(row, kept, -1)

    def take(self, row: int, need: Resources, models: tuple[str, ...], peak_millis: int = 0) -> tuple[int, ...]:
        """Return the devices that one more member gets, those that waste least; `occupy` takes them.

        A share of a device may become `peak_millis` of it, so it is begun where that much is left.
        """
        devices = self.devices[row]
        if need.gpu_millis:
            kept = len(devices.all) - len(devices.staying_millis) <= devices.promised
            parts = [
                (kept and index not in devices.staying_millis, index not in devices.used_millis, here, index)
                for index in devices.used_millis | devices.leased
                if (here := devices.here_of(index)) >= need.gpu_millis
                and index in devices.all
                and accepts(devices.all[index], need, models)
            ]
            if peak_millis > need.gpu_millis:
                whole = devices.at_hand(need, models) if self._now[row][GPUS] > 0 or not parts else []
                begun = [part[3] for part in parts if not part[0]] or [part[3] for part in parts]
                able = begun + [gpu.index for gpu in whole]
                return (self.peaks.best_device(row, devices, able, peak_millis),)
            return (min(parts)[3],) if parts else (devices.at_hand(need, models)[0].index,)
        return tuple([gpu.index for gpu in devices.at_hand(need, models)[: need.gpus]]) if need.gpus else ()

    def overfull(self, row: int) -> bool:
        """Say whether members hold more than there is: the node came back smaller."""
        devices = self.devices[row]
        if devices.missing or (devices.leased and any(index not in devices.all for index in devices.leased)):
            return True
        return self._free[row][CPU] < 0 or self._free[row][MEMORY] < 0

    def now_on(self, row: int) -> list[int]:
        """Return the amounts that may be taken on one row."""
        return self._now[row]

    def now_on_each(self, rows: list[int]) -> list[list[int]]:
        """Return the amounts that may be taken on each of the rows, to be looked at only."""
        return [self._now[row] for row in rows]

    def place_of(self, row: int) -> int:
        """Return the position of one row's name among all names."""
        return self._places[row]

    def kind_on(self, row: int) -> int:
        """Return the number of one row's kind."""
        return self._kind[row]

    def free_on(self, row: int) -> list[int]:
        """Return the amounts that nobody holds on one row."""
        return self._free[row]

    def later_on(self, row: int) -> list[int]:
        """Return the amounts that will be free on one row."""
        return self._later[row]

    def settle(self, row: int) -> None:
        """Bring what follows from a row's room up to date, and log that it changed."""
        devices, free, later = self.devices[row], self._free[row], self._later[row]
        free[GPUS] = len(devices.free)
        unpromised = len(devices.all) - len(devices.staying_millis) - devices.promised
        # Where devices differ, what is kept of them is for some only (`members_of`).
        later[GPUS] = unpromised + devices.promised if row in self.mixed else unpromised
        share_now = 0
        if devices.parts:
            free[SHARE], later[SHARE], share_now = devices.largest_parts(has_whole_later=unpromised > 0)
            if unpromised < 0:
                later[SHARE] = share_now = 0  # `Devices.waits`
        else:
            free[SHARE] = later[SHARE] = 0
        before = self._now[row]
        cpu, memory, gpus, _ = free
        cpu_later, memory_later, gpus_later, _ = later
        now = self._now[row] = [
            cpu if cpu < cpu_later else cpu_later,
            memory if memory < memory_later else memory_later,
            gpus if gpus < gpus_later else gpus_later,
            share_now,
        ]
        if now[GPUS] != before[GPUS]:
            self._move_bucket(before[GPUS], now[GPUS])
        self._behind[row] = None
        self.changes.note(row, before, now)

    def _move_bucket(self, before: int, now: int) -> None:
        if before > 0:
            self.buckets[before] -= 1
        if now > 0:
            self.buckets += [0] * (now + 1 - len(self.buckets))
            self.buckets[now] += 1

    def _move(self, row: int, need: Resources, indices: tuple[int, ...], sign: int) -> None:
        free = self._free[row]
        free[CPU] += sign * need.cpu_millis
        free[MEMORY] += sign * need.memory_mib
        if indices:
            devices = self.devices[row]
            if need.gpu_millis:
                devices.parts -= sign
                if devices.parts:
                    self.parted[row] = None
                else:
                    self.parted.pop(row, None)
            devices.missing -= sign * use(devices.used_millis, devices, need, indices, -sign)
            used = devices.used_millis
            devices.free = [gpu for gpu in devices.order if gpu.index not in used]

    def _stay(self, row: int, need: Resources, indices: tuple[int, ...], sign: int) -> None:
        later = self._later[row]
        later[CPU] += sign * need.cpu_millis
        later[MEMORY] += sign * need.memory_mib
        if indices:
            devices = self.devices[row]
            use(devices.staying_millis, devices, need, indices, -sign)

    def _promise(self, row: int, kept: Kept, sign: int) -> None:
        later, need = self._later[row], kept.need
        later[CPU] -= sign * need.cpu_millis
        later[MEMORY] -= sign * need.memory_mib
        self.devices[row].keep(need, kept.models, sign)
        self.settle(row)
        if kept.more is not NO_PEAK:
            self.peaks.add(Asked(row, kept.more), sign)
