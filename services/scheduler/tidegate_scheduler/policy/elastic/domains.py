"""What a gang may not go beyond: a switch or a rack where it is intensive, one CPU model where it is strict."""

from __future__ import annotations

import msgspec
import numpy as np

from tidegate_scheduler.policy.elastic.shapes import Fit, Shape
from tidegate_scheduler.policy.elastic.sites import Level
from tidegate_scheduler.policy.elastic.table import Ints, NodeTable


class Domains(msgspec.Struct, frozen=True):
    """The domain of each row, as a number that tells it from the others; `names` are those of all, for ties."""

    numbers: Ints
    names: list[str] | list[tuple[str, str]]

    def sums(self, holds: Ints) -> Ints:
        """Return how many members each domain holds, given what each of its rows does."""
        found = np.zeros(len(self.names), np.int64)
        np.add.at(found, self.numbers, holds)
        return found


def bounded(shape: Shape) -> bool:
    """Say whether the members of a gang must be in one domain."""
    return shape.intensive or shape.alike


def levels(shape: Shape, within: Level | None = None) -> tuple[Level, ...]:
    """Return in one of what several nodes of the gang may be, the narrowest first; no wider than `within`."""
    if not shape.intensive:
        return ("cluster",)
    if within == "node":
        return ()
    return ("switch", "rack") if shape.rack_wide and within is None else ("switch",)


def domains_of(shape: Shape, table: NodeTable, rows: Ints, level: Level | None = None) -> Domains:
    """Return in which domain each of the rows is: at that level, or at the widest that the gang may take.

    All are in one where nothing bounds the gang.
    """
    level = level or levels(shape)[-1]
    if not shape.alike:
        if level in ("switch", "rack"):
            return Domains(table.sites.numbers(level)[rows], table.sites.names(level))
        return Domains(np.zeros(len(rows), np.int64), [""])
    known = {kind.cpu_model for kind in table.kind_list()}
    models = {model: number for number, model in enumerate(sorted(known))}
    of_kind = np.array([models[kind.cpu_model] for kind in table.kind_list()], np.int64)
    keys = of_kind[table.kind[rows]]
    if "" in models:  # nodes that tell no model are like no other
        keys = np.where(keys == models[""], len(models) + rows, keys)
    if level in ("switch", "rack"):
        keys = keys + table.sites.numbers(level)[rows] * (len(models) + len(table))
    _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
    return Domains(numbers, [_name(level, table, int(rows[position])) for position in first])


def narrowest(fit: Fit) -> Level | None:
    """Return the narrowest thing that could hold an intensive gang when empty, None where only the widest could."""
    if fit.most_on_one() >= fit.shape.gang_size:
        return "node"
    return "switch" if fit.shape.rack_wide and _most_below_one_switch(fit) >= fit.shape.gang_size else None


def _most_below_one_switch(fit: Fit) -> int:
    """Return how many members the nodes below one switch could hold when empty, of one CPU model for a strict gang."""
    table = fit.table
    if fit.most_below_one_switch[0] != table.nodes_changed:
        below = domains_of(fit.shape, table, np.arange(len(table)), "switch").sums(fit.holds_empty())
        fit.most_below_one_switch = (table.nodes_changed, int(below.max(initial=0)))
    return fit.most_below_one_switch[1]


def _name(level: Level, table: NodeTable, row: int) -> tuple[str, str]:
    where = table.sites.names(level)[table.sites.numbers(level)[row]] if level in ("switch", "rack") else ""
    return where, table.kinds[row].cpu_model or table.names[row]
