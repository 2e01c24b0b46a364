"""Who is on which node: an index that folds keep, so that a fact about one node costs what is on it."""

from __future__ import annotations


class Seating:
    """The nodes of each name, and by node the names that are there."""

    def __init__(self) -> None:
        self.nodes_of: dict[str, tuple[str, ...]] = {}
        """To be read; whoever is nowhere is not in it."""

        self._names_on: dict[str, dict[str, None]] = {}

    def seat(self, name: str, nodes: tuple[str, ...]) -> None:
        """Let the name be on these nodes, each named once, and on no others; on none: it is gone."""
        before = self.nodes_of.get(name, ())
        if nodes == before:
            return
        for node in before:
            if node not in nodes:
                names = self._names_on[node]
                del names[name]
                if not names:
                    del self._names_on[node]
        for node in nodes:
            self._names_on.setdefault(node, {})[name] = None
        if nodes:
            self.nodes_of[name] = nodes
        else:
            del self.nodes_of[name]

    def on(self, node: str) -> tuple[str, ...]:
        """Return the names that are on the node, in the order in which they came."""
        return tuple(self._names_on.get(node, ()))
