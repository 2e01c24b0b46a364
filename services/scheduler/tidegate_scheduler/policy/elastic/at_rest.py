"""Whose plans were worked out since the state changed: once they are for all who ask, no pass is due for them.

It tells when to look again, and never what is decided: an index that is made anew remembers nothing, and decides alike.
"""

from __future__ import annotations


class AtRest:
    """The jobs for which everything was tried in the passes on one state, as long as time alone changes nothing."""

    def __init__(self) -> None:
        self._seq = -1
        self._until_ns: int | None = None
        self._tried: set[str] = set()

    def begin_pass(self, seq: int, now_ns: int) -> None:
        """Forget everything where the state has changed, or time has."""
        if seq != self._seq or (self._until_ns is not None and now_ns >= self._until_ns):
            self._seq, self._until_ns = seq, None
            self._tried.clear()

    def add(self, job: str) -> None:
        """Remember that everything was tried for the job."""
        self._tried.add(job)

    def until(self, at_ns: int | None) -> None:
        """Let it count until that time only, at which somebody may leave who may not yet; None: for ever."""
        if at_ns is not None:
            self._until_ns = at_ns if self._until_ns is None else min(at_ns, self._until_ns)

    def __contains__(self, job: object) -> bool:
        """Say whether everything was tried for the job."""
        return job in self._tried

    def __len__(self) -> int:
        """Return for how many jobs everything was tried."""
        return len(self._tried)
