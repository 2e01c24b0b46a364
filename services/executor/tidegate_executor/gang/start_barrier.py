"""When the commands of a gang may begin: not before every member's sandbox stands. Pure.

Each node tells the leading one, that of rank 0, when all its members stand; that one tells them to begin. What is said
once stays true, so it does not matter how often or in which order it arrives.
"""

from __future__ import annotations

from tidegate_events.orders import GangPlace


class StartBarrier:
    """One attempt on one node. `open`: its members may begin."""

    def __init__(self, node: str, place: GangPlace) -> None:
        self._here: set[int] = set()
        self._size = place.local_size
        self._awaited = set(place.nodes[1:]) if place.nodes[:1] == (node,) else {place.nodes[0]}
        self._leads = place.nodes[0] == node
        self.open = False

    @property
    def ready(self) -> bool:
        """Say whether every member here stands, or has begun already."""
        return self.open or len(self._here) >= self._size

    @property
    def missing(self) -> list[str]:
        """Return the nodes that have not said yet what this one waits for."""
        return [] if self.open else sorted(self._awaited)

    def stands(self, rank: int) -> None:
        """The sandbox of a member here is made."""
        self._here.add(rank)
        self._look()

    def has_begun(self) -> None:
        """A member here has begun, so all were allowed to: an agent that starts again knows no more than that."""
        self.open = True

    def on_ready(self, node: str) -> None:
        """Every member of that node stands; only the leading node hears that."""
        if self._leads:
            self._awaited.discard(node)
            self._look()

    def on_go(self) -> None:
        """The leading node says that every member stands."""
        self._awaited.clear()
        self._look()

    def _look(self) -> None:
        self.open = self.open or (self.ready and not self._awaited)
