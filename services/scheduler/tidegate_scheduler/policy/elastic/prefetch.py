"""Hints: which image should be on which node next, because a job waits for it while other nodes have room.

The first job of a line is looked at when no node that has its image can hold it soon. It is hinted on nodes that would
take it now if they had it, as many as it needs; a node remembers what was hinted there, and is not told again. One that
fetches no images, or could not get it, is passed over; so is one that could not get as many as are remembered, until
its agent joins again: the next that it could not get would push out one, which would be hinted again without end.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.queue import Line
from tidegate_scheduler.policy.elastic.table import Ints, Kind
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import HINTS_KEPT, Job, Node

SOON_SECONDS = 600
"""Who has room reserved that is free within this time needs no other node to be made ready."""

LINES_MAX = 8
HINTS_MAX = 4
"""Lines that one pass looks at, and hints that it gives."""

NODES_LOOKED_AT_MAX = 32
IMAGES_LOOKED_AT_MAX = 4


class Prefetch:
    """Gives the hints of one pass."""

    def __init__(self, draft: Draft, index: Index) -> None:
        self._draft = draft
        self._index = index
        self._lines_left = LINES_MAX
        self._hints_left = HINTS_MAX
        self._fetching: list[int] | None = None
        self._lacking: dict[str, list[int]] = {}
        self._hinted: dict[str, list[str]] = {}
        self._awaited: set[str] | None = None

    def hint(self, job: Job, line: Line, barred: frozenset[int], *, kept: bool) -> None:
        """Hint the image of a job that waits, which it does for room that this pass keeps for it, where `kept`."""
        image = line.key.shape.image
        if self._lines_left <= 0 or self._soon(job, kept=kept):
            return
        if not (lacking := self._without(image)):
            return
        self._lines_left -= 1
        holds = self._holds_with_image(line, lacking)
        holds[list(barred)] = 0
        missing = line.key.shape.gang_size - int(line.fit.holds_now().sum())
        if int(holds.sum()) < missing:
            return  # not even with the image would there be room now
        self._hint_on(holds, image, missing)

    def _without(self, image: str) -> list[int]:
        """Return the numbers of the kinds of nodes that lack the image and may be able to get it."""
        if (known := self._lacking.get(image)) is None:
            kinds = self._index.table.kind_list()
            known = self._lacking[image] = [number for number in self._which_fetch() if _may_get(kinds[number], image)]
        return known

    def _which_fetch(self) -> list[int]:
        """Return the numbers of the kinds of nodes that may be hinted something: of nodes there are, not there were."""
        if self._fetching is None:
            table = self._index.table
            kinds = table.kind_list()
            self._fetching = [number for number in table.kinds_now() if _may_fetch(kinds[number])]
        return self._fetching

    def _soon(self, job: Job, *, kept: bool) -> bool:
        """Say whether the job has room soon, or only since this pass, so that the next one knows when."""
        if not job.reserved_nodes:
            return kept
        soon_ns = self._draft.now_ns + SOON_SECONDS * SECOND_NS
        return kept and 0 < job.reserved_start_ns <= soon_ns

    def _holds_with_image(self, line: Line, lacking: list[int]) -> Ints:
        """Return how many members each row that lacks the image would take now, if it had it: as of an image it has."""
        table = self._index.table
        rows, kinds = np.arange(len(table)), table.kind_list()
        others = sorted({kinds[number].images[0][0] for number in lacking if kinds[number].images})
        without = np.isin(table.kind[rows], lacking)
        holds = np.zeros(len(rows), np.int64)
        for image in others[:IMAGES_LOOKED_AT_MAX]:
            alike = self._index.fit(msgspec.structs.replace(line.key.shape, image=image))
            holds = np.maximum(holds, np.where(without, alike.holds_now(), 0))
        return holds

    def _hint_on(self, holds: Ints, image: str, missing: int) -> None:
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


def _may_fetch(kind: Kind) -> bool:
    return kind.fetches_images and len(kind.unavailable) < HINTS_KEPT


def _may_get(kind: Kind, image: str) -> bool:
    return image not in kind.unavailable and not any(image in (name, digest) for name, digest in kind.images)
