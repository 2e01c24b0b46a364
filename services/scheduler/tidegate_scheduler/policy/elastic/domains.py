"""What a gang may not go beyond: one switch where it is intensive, one CPU model where it is strict."""

from __future__ import annotations

import msgspec
import numpy as np

from tidegate_scheduler.policy.elastic.shapes import Shape
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


def domains_of(shape: Shape, table: NodeTable, rows: Ints) -> Domains:
    """Return in which domain each of the rows is; all are in one where nothing bounds the gang."""
    if not shape.alike:
        if shape.intensive:
            return Domains(table.switch[rows], table.switches)
        return Domains(np.zeros(len(rows), np.int64), [""])
    known = {kind.cpu_model for kind in table.kind_list()}
    models = {model: number for number, model in enumerate(sorted(known))}
    of_kind = np.array([models[kind.cpu_model] for kind in table.kind_list()], np.int64)
    keys = of_kind[table.kind[rows]]
    if "" in models:  # nodes that tell no model are like no other
        keys = np.where(keys == models[""], len(models) + rows, keys)
    if shape.intensive:
        keys = keys + table.switch[rows] * (len(models) + len(table))
    _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
    return Domains(numbers, [_name(shape, table, int(rows[position])) for position in first])


def _name(shape: Shape, table: NodeTable, row: int) -> tuple[str, str]:
    return table.switches[table.switch[row]] if shape.intensive else "", table.kinds[row].cpu_model or table.names[row]
