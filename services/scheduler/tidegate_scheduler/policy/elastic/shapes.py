"""Jobs that are alike to every node, and where one of them fits: worked out once, then only for rows that changed."""

from __future__ import annotations

import msgspec
import numpy as np
from tidegate_events.resources import GpuDevice, Resources

from tidegate_scheduler.isolation import isolates
from tidegate_scheduler.policy.elastic import peaks, stranded
from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS, Which, accepts, members_of
from tidegate_scheduler.policy.elastic.extents import extent_of
from tidegate_scheduler.policy.elastic.sites import Domain
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, MEMORY, SHARE, Flags, Ints, Kind, NodeTable

NOWHERE = np.iinfo(np.int64).max
NOT_NEEDED = -(1 << 62)
"""Less than nothing, which is what promises may leave: of what a shape does not need, any amount is enough."""

PLACE_BITS, CPU_BITS, GPU_BITS = 20, 24, 12
"""A score packs, from the highest bits down: whether a whole device is broken up, devices left, CPU left, place."""

GPUS_MAX, CPU_MAX = (1 << GPU_BITS) - 1, (1 << CPU_BITS) - 1

ROWS_LOOKED_AT_MAX = 2048
ROWS_ONE_BY_ONE_MAX = 24
"""When more rows changed, they are scored at once: that is cheaper then."""


class Shape(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """All that decides where a job fits; jobs of one shape are alike to the nodes.

    An `intensive` gang stays below one switch; where it is `rack_wide`, in one rack. `alike`: a strict gang that has no
    CPU model yet, all of whose members go to nodes of one, whichever that is. `phases` are the needs of a borrower
    beside that of its default phase: a node must have each of them, though they are not held. With `any_image` it asks
    what nodes could hold that had the image.
    """

    isolation: str
    image: str
    need: Resources
    gang_size: int
    intensive: bool = False
    gpu_models: tuple[str, ...] = ()
    cpu_model: str = ""
    alike: bool = False
    rack_wide: bool = False
    phases: tuple[Resources, ...] = ()
    any_image: bool = False

    @property
    def needs(self) -> tuple[Resources, ...]:
        """What a member needs, in each phase that it may enter."""
        return (self.need, *self.phases)


class Fit:
    """One shape against the table: which nodes suit it, and how tightly one member fits on each now."""

    def __init__(self, shape: Shape, table: NodeTable) -> None:
        self.shape = shape
        self.extent = extent_of(shape)
        needs = (shape.need.cpu_millis, shape.need.memory_mib, shape.need.gpus)
        self._least = tuple(each or NOT_NEEDED for each in needs)
        self.wants = peaks.wants_of((shape.need, *shape.phases)) if shape.phases else None
        """What a borrower's member wants at most; None: it wants no more than it holds."""

        self.share_millis = max(each.gpu_millis for each in (shape.need, *shape.phases))
        """The share of a device that a member wants at most."""

        self.table = table
        self._score: Ints = np.zeros(0, np.int64)
        self._seen = -1
        self._holds_of: Ints = np.zeros(0, np.int64)
        self._held_at = -1
        self._renamed_held = -1
        self._renamed = -1
        self._kinds: list[int] = []
        self._renumbered = 0
        self._kind_holds: Ints = np.zeros(0, np.int64)
        self._kind_wholes: Ints = np.zeros((0, 3), np.int64)
        self._suits: Flags = np.zeros(0, np.bool_)
        self._suited = -1
        self._most = (-1, 0)
        self.most_below_one_switch = (-1, 0)
        """For which nodes it was worked out, and how many members those below one switch could hold at most."""

        self._together: dict[Domain, Ints] = {}
        self._sites_moved = -1
        self._nowhere_in = -1
        """The round of the table in which it was last known to fit nowhere."""

        self.holds_gang: dict[bool, tuple[int, bool]] = {}
        """Whether the gang would fit on empty nodes (those that are open: True, or all), and which nodes that was."""

        self.fetched_holds_gang: dict[bool, tuple[int, bool]] = {}
        """The same, if all nodes that may get its image had it."""

    # ---- what nodes of a kind can hold when empty ----

    def holds_empty(self, rows: Ints | None = None) -> Ints:
        """Return how many members each of the rows, or of all, could hold when nothing ran there."""
        return self._holds(np.arange(len(self.table)) if rows is None else rows)

    def most_on_one(self) -> int:
        """Return how many members the node that could hold most of them could hold when empty."""
        if self._most[0] != self.table.nodes_changed:
            self._most = (self.table.nodes_changed, int(self.holds_empty().max(initial=0)))
        return self._most[1]

    def suits(self, rows: Ints | None = None) -> Flags:
        """Return which of the rows (None: of all, to be looked at only) are open and could hold a member when empty."""
        table = self.table
        if self._suited != table.nodes_changed:
            self._suits = (self.holds_empty() > 0) & table.open[: len(table)]
            self._suited = table.nodes_changed
        return self._suits if rows is None else self._suits[rows]

    def _holds(self, rows: Ints) -> Ints:
        if len(self._kinds) < self.table.kind_count or self._renumbered != self.table.renumbered:
            self._learn_kinds()
        return self._kind_holds[self.table.kind[rows]]

    def _learn_kinds(self) -> None:
        if self._renumbered != self.table.renumbered:
            self._renumbered = self.table.renumbered
            self._kinds.clear()
        self._kinds += [_holds_of_kind(self.shape, kind) for kind in self.table.kind_list()[len(self._kinds) :]]
        self._kind_holds = np.array(self._kinds, np.int64)
        if self.wants is not None:
            self._kind_wholes = np.array([_whole_of(kind) for kind in self.table.kind_list()], np.int64)

    # ---- how one more member fits now ----

    def nowhere(self) -> bool:
        """Say whether the gang fits nowhere now, where that is known from before and from the rows that changed.

        It fits nowhere where no row has enough devices for a member, and as long as none has come to hold one that did
        not, or more of them.
        """
        changes, least = self.table.changes, self.shape.need.gpus
        if least and not any(self.table.buckets[least:]):
            self._nowhere_in = changes.this_round
            return True
        known = changes.recent(self._nowhere_in)
        if known is None:
            return False
        rows, room, most = known
        changed = rows[self.enough(room)].tolist() if self.holds_one(most) else []
        if not (changed or changes.grown):
            self._nowhere_in = changes.this_round
            return True
        if len(changed) > ROWS_LOOKED_AT_MAX:
            return False
        looked_at = [*changed, *changes.grown]
        least_cpu, least_memory, least_gpus = self._least
        for row, left in zip(looked_at, self.table.now_on_each(looked_at), strict=True):
            # Most have been taken since: that is seen at a glance.
            if left[GPUS] < least_gpus or left[CPU] < least_cpu or left[MEMORY] < least_memory:
                continue
            if self._score_of(row) != NOWHERE:
                return False
        if len(looked_at) > ROWS_ONE_BY_ONE_MAX:
            changes.gather_anew()
        self._nowhere_in = changes.this_round
        return True

    def found_nowhere(self) -> None:
        """Remember that the gang fits nowhere on the table as it is."""
        self._nowhere_in = self.table.changes.this_round

    def enough(self, room: Ints) -> Flags:
        """Say where there is enough of each amount that is needed: of others there may be less than nothing.

        What is promised behind those who hold it now leaves less than nothing, which is no matter to who needs none.
        """
        need = self.shape.need
        if need.gpus and need.cpu_millis and need.memory_mib:
            enough: Flags = (room[GPUS] >= need.gpus) & (room[CPU] >= need.cpu_millis)
            enough &= room[MEMORY] >= need.memory_mib
            return enough
        enough = np.ones(room.shape[1], np.bool_)
        for amount, each in ((CPU, need.cpu_millis), (MEMORY, need.memory_mib), (GPUS, need.gpus)):
            if each:
                enough &= room[amount] >= each
        return enough

    def holds_one(self, room: list[int]) -> bool:
        """Say whether there is enough of each whole amount that a member needs, as `enough` does for many rows."""
        least_cpu, least_memory, least_gpus = self._least
        return room[GPUS] >= least_gpus and room[CPU] >= least_cpu and room[MEMORY] >= least_memory

    def _score_of(self, row: int) -> int:
        """Return what `_scored` does, for one row: most changes are of few."""
        table, need = self.table, self.shape.need
        room = table.now_on(row)
        if not self.holds_one(room) or not table.is_open[row] or self._holds_kind(table.kind_on(row)) <= 0:
            return NOWHERE
        cpu_left, gpus_left, broken = room[CPU] - need.cpu_millis, room[GPUS] - need.gpus, 0
        if need.gpu_millis and room[SHARE] < need.gpu_millis:
            if gpus_left < 1:
                return NOWHERE
            broken = 1
        if row in table.mixed and (need.gpus or need.gpu_millis) and self._mixed_members(row, room[GPUS], "now") <= 0:
            return NOWHERE
        if self.wants is not None:
            asked, whole = table.peaks.on(row), _whole_of(table.kinds[row])
            return (peaks.tightness(self.wants, room, asked, whole, broken) << PLACE_BITS) | table.place_of(row)
        if table.beside_millis and self.shape.gang_size == 1:
            packed = stranded.tightness(self.shape, room, broken, table.beside_millis)
            return (packed << PLACE_BITS) | table.place_of(row)
        packed = (broken << GPU_BITS) | (min(gpus_left, GPUS_MAX) if gpus_left > 0 else 0)
        packed = (packed << CPU_BITS) | (min(cpu_left, CPU_MAX) if cpu_left > 0 else 0)
        return (packed << PLACE_BITS) | table.place_of(row)

    def _holds_kind(self, kind: int) -> int:
        if kind >= len(self._kinds) or self._renumbered != self.table.renumbered:
            self._learn_kinds()
        return self._kinds[kind]

    def score(self) -> Ints:
        """Return how tightly one member fits on each row now, smaller is tighter; NOWHERE where it does not."""
        table = self.table
        table.note_score(self)
        changed = table.changes.since(self._seen) if self._renamed == table.renamed else None
        if changed is None:
            self._score = np.full(len(table), NOWHERE)
            rows = np.flatnonzero(self.enough(table.now[:, : len(table)]))
            self._score[rows] = self._scored(rows)
        elif len(changed) > ROWS_ONE_BY_ONE_MAX:
            rows = np.fromiter(changed, np.int64, len(changed))
            self._score[rows] = self._scored(rows)
        else:
            for row in changed:
                self._score[row] = self._score_of(row)
        self._seen, self._renamed = table.changes.position, table.renamed
        return self._score

    def forget_score(self) -> None:
        """Drop what `score` returned: it is worked out anew when it is asked for."""
        self._score, self._seen = np.zeros(0, np.int64), -1

    def holds_now(self) -> Ints:
        """Return how many members may be placed on each row now; to be looked at only."""
        table = self.table
        changed = table.changes.since(self._held_at) if self._renamed_held == table.renamed else None
        if changed is None:
            self._holds_of = self.members(table.now)
            self._together.clear()
        elif changed:
            rows = np.fromiter(changed, np.int64, len(changed))
            holds = self.members(table.now, rows)
            self._count(rows, holds - self._holds_of[rows])
            self._holds_of[rows] = holds
        self._held_at, self._renamed_held = table.changes.position, table.renamed
        return self._holds_of

    def holds_together(self, level: Domain) -> Ints:
        """Return how many members may be placed below each switch, or in each rack, now; to be looked at only."""
        holds, sites = self.holds_now(), self.table.sites
        if self._sites_moved != sites.moved:
            self._together.clear()
            self._sites_moved = sites.moved
        found = self._together.get(level)
        if found is None:
            found = self._together[level] = np.zeros(len(sites.names(level)), np.int64)
            np.add.at(found, sites.numbers(level)[: len(holds)], holds)
        return found

    def _count(self, rows: Ints, more: Ints) -> None:
        """Add what the rows hold more to what is held together, if they stand where they stood."""
        if self._sites_moved == self.table.sites.moved:
            for level, held in self._together.items():
                np.add.at(held, self.table.sites.numbers(level)[rows], more)

    def members(self, room: Ints, rows: Ints | None = None, which: Which = "now") -> Ints:
        """Return how many members fit into `room` (as the table's amounts) on each of the rows, or of all."""
        return self.members_in(room[:, : len(self.table)] if rows is None else room[:, rows], rows, which)

    def members_in(self, there: Ints, rows: Ints | None = None, which: Which = "now") -> Ints:
        """Return how many members fit into what is `there` on each of the rows, or of all.

        A row may be named several times, with other room each time; SHARE may be left out where it is not needed.
        """
        able = np.flatnonzero(self.enough(there) & self.suits(rows))
        count = np.zeros(there.shape[1], np.int64)
        count[able] = self._members(there[:, able], able if rows is None else rows[able], which)
        return count

    def _members(self, there: Ints, rows: Ints, which: Which) -> Ints:
        """Return how many members fit on each of the rows, which suit it and hold one by all but parts of devices."""
        need = self.shape.need
        count = np.full(len(rows), self.shape.gang_size, np.int64)
        if self.shape.gang_size > 1:
            for amount, each in ((CPU, need.cpu_millis), (MEMORY, need.memory_mib), (GPUS, need.gpus)):
                if each:
                    count = np.minimum(count, there[amount] // each)
            if self.shape.phases:
                count = np.minimum(count, self._holds(rows))
        singly = self._singly_among(rows) if which != "counted" else []
        if need.gpu_millis:
            parts = there[SHARE] // need.gpu_millis
            most = parts + np.maximum(there[GPUS], 0) * (1000 // need.gpu_millis)
            most[singly] = self.shape.gang_size  # it may have parts of several devices
            count = np.minimum(count, most)
        for position in singly if which != "any" else ():  # where it may be any, no more than the others say
            if count[position]:
                most = self._mixed_members(int(rows[position]), int(there[GPUS, position]), which)
                count[position] = min(count[position], most)
        return count

    def _scored(self, rows: Ints) -> Ints:
        need, room = self.shape.need, self.table.now
        fits = self.enough(room[:, rows]) & self.suits(rows)
        if need.gpu_millis:
            fits &= (room[SHARE, rows] >= need.gpu_millis) | (room[GPUS, rows] >= 1)
        for position in self._mixed_among(rows):
            if fits[position]:
                row = int(rows[position])
                fits[position] = self._mixed_members(row, int(room[GPUS, row]), "now") > 0
        packed = (self.tightness(room, rows) << PLACE_BITS) | self.table.place[rows]
        return np.where(fits, packed, NOWHERE)

    # ---- how well rows suit that hold a member ----

    def tightness(self, room: Ints, rows: Ints, members: int = 1) -> Ints:
        """Return how well each of the rows suits so many members in that room, smaller is better.

        First what a borrower may want yet, or what it would strand, where that counts; then what is left at least.
        """
        table, need, there = self.table, self.shape.need, room[:, rows]
        broken = (there[SHARE] < need.gpu_millis).astype(np.int64) if need.gpu_millis else np.zeros(len(rows), np.int64)
        if self.wants is not None:
            asked, wholes = self._asked(rows), self._wholes(rows)
            return peaks.tightnesses(self.wants.times(members), there, asked, wholes, broken)
        if table.beside_millis and self.shape.gang_size == 1:
            return stranded.tightnesses(self.shape, there, broken, table.beside_millis)
        packed = (broken << GPU_BITS) | np.minimum(np.maximum(there[GPUS] - need.gpus, 0), GPUS_MAX)
        found: Ints = (packed << CPU_BITS) | np.minimum(np.maximum(there[CPU] - need.cpu_millis, 0), CPU_MAX)
        return found

    def members_beside(self, room: Ints, rows: Ints, most: Ints) -> Ints:
        """Return how many members, `most` of them on each row, could have there all that they may want at once."""
        if self.wants is None:
            return most
        return peaks.members_beside(self.wants, room[:, rows], self._asked(rows), most)

    def load(self, room: list[int], row: int, members: int) -> int:
        """Return the part of a row that would be asked for, of what is wanted, by all there and so many members."""
        assert self.wants is not None, "only borrowers ask for more than they hold"
        more = self.wants.times(members)
        left = more.left(room, self.table.peaks.on(row))
        return peaks.load(self.wants, left, _whole_of(self.table.kinds[row]))

    def _asked(self, rows: Ints) -> Ints:
        return self.table.peaks.columns(len(self.table))[:, rows]

    def _wholes(self, rows: Ints) -> Ints:
        """Return all that each of the rows has, as a peak counts it."""
        self._holds(rows)
        found: Ints = self._kind_wholes[self.table.kind[rows]].T
        return found

    def _singly_among(self, rows: Ints) -> list[int]:
        """Return the positions in `rows` of nodes where it is looked at each device, which a part of them may suit."""
        table = self.table
        if self.shape.need.gpu_millis and self.shape.gang_size > 1 and table.parted:
            return np.flatnonzero(np.isin(rows, [*table.mixed, *table.parted])).tolist()
        return self._mixed_among(rows)

    def _mixed_among(self, rows: Ints) -> list[int]:
        """Return the positions in `rows` of nodes whose devices differ, where devices matter."""
        need = self.shape.need
        if not self.table.mixed or not (need.gpus or need.gpu_millis):
            return []
        return [int(position) for position in np.flatnonzero(np.isin(rows, list(self.table.mixed)))]

    def _mixed_members(self, row: int, gpus: int, which: Which) -> int:
        return members_of(self.table.devices[row], self.shape.need, self.shape.gpu_models, gpus, which)


def _whole_of(kind: Kind) -> peaks.Peak:
    return kind.cpu_millis, kind.memory_mib, len(kind.devices) * WHOLE_MILLIS


def _holds_of_kind(shape: Shape, kind: Kind) -> int:
    """Return how many members an empty node of the kind holds, in any of their phases; no more than the gang has."""
    if not isolates(kind, shape.isolation, shape.needs) or not (shape.any_image or has_image(kind, shape.image)):
        return 0
    if shape.cpu_model and kind.cpu_model != shape.cpu_model:
        return 0
    return holds_by_size(shape, kind)


def has_image(kind: Kind, image: str) -> bool:
    """Say whether a node of the kind has the image, by its name or its digest."""
    return any(image in pair for pair in kind.images)


def holds_by_size(shape: Shape, kind: Kind) -> int:
    """Return how many members an empty node of the kind has room for, whether or not it offers what else they need."""
    return min(holds_need(shape, kind, need) for need in shape.needs)


def holds_need(shape: Shape, kind: Kind, need: Resources) -> int:
    """Return how many members that need so much the kind has room for."""
    fits = [shape.gang_size]
    if need.cpu_millis:
        fits.append(kind.cpu_millis // need.cpu_millis)
    if need.memory_mib:
        fits.append(kind.memory_mib // need.memory_mib)
    if need.gpus or need.gpu_millis:
        accepted = sum(
            accepts(GpuDevice(0, "", model, memory_mib), need, shape.gpu_models) for model, memory_mib in kind.devices
        )
        fits.append(accepted // need.gpus if need.gpus else accepted * (1000 // need.gpu_millis))
    return max(0, min(fits))
