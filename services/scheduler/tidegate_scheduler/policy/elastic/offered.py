"""What nodes could hold, were they empty, if they offered more than they do: what is too large, and what may come."""

from __future__ import annotations

import msgspec
import numpy as np

from tidegate_scheduler.isolation import isolates
from tidegate_scheduler.policy.elastic.fit import could_hold_by
from tidegate_scheduler.policy.elastic.shapes import Fit, Shape, has_image, holds_by_size
from tidegate_scheduler.policy.elastic.table import Ints, Kind
from tidegate_scheduler.state import HINTS_KEPT


def by_size(fit: Fit) -> Ints:
    """Return how many members each row has room for, whether or not it offers what else they need."""
    return _on_rows(fit, [holds_by_size(fit.shape, kind) for kind in fit.table.kind_list()])


def too_large(fit: Fit) -> bool:
    """Say whether all nodes together, or those that may hold one gang, are too small, whatever else they offer."""
    return not could_hold_by(fit, by_size(fit))


def may_come(fit: Fit, *, up_only: bool = False) -> bool:
    """Say whether the gang would fit on empty nodes, open ones or all, if all that may get its image had it."""
    if (known := fit.fetched_holds_gang.get(up_only)) is not None and known[0] == fit.table.nodes_changed:
        return known[1]
    holds = _on_rows(fit, [_holds_fetched(fit.shape, kind) for kind in fit.table.kind_list()])
    if up_only:
        holds = np.where(fit.table.open[: len(holds)], holds, 0)
    may = could_hold_by(fit, holds)
    fit.fetched_holds_gang[up_only] = (fit.table.nodes_changed, may)
    return may


def with_any_image(shape: Shape) -> Shape:
    """Return the shape of a job that is alike, whose image every node has."""
    return msgspec.structs.replace(shape, image="", any_image=True)


def may_fetch(kind: Kind) -> bool:
    """Say whether a node of the kind may be told to get an image."""
    return kind.fetches_images and len(kind.unavailable) < HINTS_KEPT


def may_get(kind: Kind, image: str) -> bool:
    """Say whether a node of the kind lacks the image and may be told to get it."""
    return may_fetch(kind) and image not in kind.unavailable and not has_image(kind, image)


def _holds_fetched(shape: Shape, kind: Kind) -> int:
    if not isolates(kind, shape.isolation, shape.needs) or (shape.cpu_model and kind.cpu_model != shape.cpu_model):
        return 0
    if not (has_image(kind, shape.image) or may_get(kind, shape.image)):
        return 0
    return holds_by_size(shape, kind)


def _on_rows(fit: Fit, of_kinds: list[int]) -> Ints:
    found: Ints = np.array(of_kinds, np.int64)[fit.table.kind[: len(fit.table)]]
    return found
