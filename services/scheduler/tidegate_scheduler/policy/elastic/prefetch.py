"""Hints: which image should be on which node next, because a job waits for it while other nodes have room.

The first job of a line is looked at when no node that has its image can hold it soon. It is hinted on nodes that would
take it now if they had it, as many as it needs. Where the open nodes that have it could not hold the job were they
empty, it is hinted on those that could then, though others have their room: only where its image is can room be kept
for it, and so it starts at last. A node remembers what was hinted there, and is not told again. One that fetches no
images, or could not get it, is passed over; so is one that could not get as many as are remembered, until its agent
joins again: the next that it could not get would push out one, which would be hinted again without end.
"""

from __future__ import annotations

import numpy as np

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.domains import domains_of
from tidegate_scheduler.policy.elastic.fit import could_hold
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.offered import may_come, may_fetch, may_get, with_any_image
from tidegate_scheduler.policy.elastic.queue import Line
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import Flags, Ints
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import HINTS_KEPT, Job, Node

SOON_SECONDS = 600
"""Who has room reserved that is free within this time needs no other node to be made ready."""

LINES_MAX = 8
HINTS_MAX = 4
"""Lines that one pass looks at, and hints that it gives."""

FIRST_LINES_MAX = 32
"""Lines of which the open nodes that have their image could hold no job, of which one pass looks at so many."""

NODES_LOOKED_AT_MAX = 32


class Prefetch:
    """Gives the hints of one pass."""

    def __init__(self, draft: Draft, index: Index) -> None:
        self._draft = draft
        self._index = index
        self._lines_left = LINES_MAX
        self._first_left = FIRST_LINES_MAX
        self._hints_left = HINTS_MAX
        self._fetching: list[int] | None = None
        self._lacking: dict[str, list[int]] = {}
        self._hinted: dict[str, list[str]] = {}
        self._awaited: set[str] | None = None

    def hint(self, job: Job, line: Line, barred: frozenset[int], *, kept: bool) -> None:
        """Hint the image of a job that waits, which it does for room that this pass keeps for it, where `kept`."""
        fit, table = line.fit, self._index.table
        is_first = not could_hold(fit, up_only=True)
        if not self._looks_left(is_first=is_first) or self._soon(job, kept=kept):
            return
        if (is_first and not may_come(fit, up_only=True)) or not (lacking := self._without(fit.shape.image)):
            return
        without = np.isin(table.kind[: len(table)], lacking)
        without[list(barred)] = False
        if is_first:
            self._first_left -= 1
            self._hint_first(fit, without)
        else:
            self._lines_left -= 1
            self._hint_now(fit, without)

    def _looks_left(self, *, is_first: bool) -> bool:
        return self._hints_left > 0 and (self._first_left if is_first else self._lines_left) > 0

    def _hint_now(self, fit: Fit, without: Flags) -> None:
        """Hint the image on nodes that would take the job now: as many as are missing, or none."""
        now = np.where(without, self._index.fit(with_any_image(fit.shape)).holds_now(), 0)
        missing = fit.shape.gang_size - int(fit.holds_now().sum())
        if int(now.sum()) >= missing:
            self._hint_on(now, fit.shape.image, missing)

    def _hint_first(self, fit: Fit, without: Flags) -> None:
        """Hint the image in one domain that could hold the job then: where there is room now, else on empty nodes."""
        table, size, alike = fit.table, fit.shape.gang_size, self._index.fit(with_any_image(fit.shape))
        is_open, now = table.open[: len(table)], np.where(without, alike.holds_now(), 0)
        empty = np.where(without & is_open, alike.holds_empty(), 0)
        domains = domains_of(fit.shape, table, np.arange(len(table)))
        has_now, has_empty = domains.sums(fit.holds_now()), domains.sums(np.where(is_open, fit.holds_empty(), 0))
        able = np.flatnonzero(has_empty + domains.sums(empty) >= size)
        if not len(able):
            return  # the nodes that might get it are barred
        at_once = has_now + domains.sums(now) >= size
        first = np.full(len(at_once), len(table))
        np.minimum.at(first, domains.numbers, table.place[: len(table)])
        best = int(able[np.lexsort((first[able], -has_empty[able], ~at_once[able]))[0]])
        holds, has = (now, has_now) if at_once[best] else (empty, has_empty)
        self._hint_on(np.where(domains.numbers == best, holds, 0), fit.shape.image, size - int(has[best]))

    def _without(self, image: str) -> list[int]:
        """Return the numbers of the kinds of nodes that lack the image and may be able to get it."""
        if (known := self._lacking.get(image)) is None:
            kinds = self._index.table.kind_list()
            known = self._lacking[image] = [number for number in self._which_fetch() if may_get(kinds[number], image)]
        return known

    def _which_fetch(self) -> list[int]:
        """Return the numbers of the kinds of nodes that may be hinted something: of nodes there are, not there were."""
        if self._fetching is None:
            table = self._index.table
            kinds = table.kind_list()
            self._fetching = [number for number in table.kinds_now() if may_fetch(kinds[number])]
        return self._fetching

    def _soon(self, job: Job, *, kept: bool) -> bool:
        """Say whether the job has room soon, or only since this pass, so that the next one knows when."""
        if not job.reserved_nodes:
            return kept
        soon_ns = self._draft.now_ns + SOON_SECONDS * SECOND_NS
        return kept and 0 < job.reserved_start_ns <= soon_ns

    def _hint_on(self, holds: Ints, image: str, missing: int) -> None:
        """Hint the image on rows that would hold so many members, until none is missing."""
        table, nodes = self._index.table, self._draft.state.nodes
        rows = np.flatnonzero(holds > 0)
        for row in rows[np.argsort(table.place[rows])][:NODES_LOOKED_AT_MAX].tolist():
            if missing <= 0 or self._hints_left <= 0 or self._draft.full:
                return
            node = nodes[table.names[row]]
            hinted = self._hinted_on(node)
            if image not in hinted:
                if not self._takes_one(hinted):
                    continue  # it fetches others, and will not have this one
                self._draft.add_prefetch_hint(node, image)
                self._hinted[node.name] = [*hinted, image][-HINTS_KEPT:]
                self._hints_left -= 1
            missing -= int(holds[row])

    def _hinted_on(self, node: Node) -> list[str]:
        """Return what is hinted on the node, by this pass as well: as it will be when the pass is folded."""
        return self._hinted.get(node.name, node.hinted)

    def _takes_one(self, hinted: list[str]) -> bool:
        """Say whether one more hint would push out none that somebody waits for."""
        if len(hinted) < HINTS_KEPT:
            return True
        if self._awaited is None:
            self._awaited = {line.key.shape.image for line in self._index.lines.values()}
        return hinted[0] not in self._awaited
