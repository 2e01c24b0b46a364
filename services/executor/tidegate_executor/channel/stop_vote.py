"""The vote that makes should_stop() answer alike everywhere: pure, no clock and no I/O.

Members are processes that run in lock-step. When a stop is ordered each is asked how many calls it has made, and holds
its next call once it has answered. When all have answered, `stop_at` = the largest count is told to all: no member has
answered a call of that index or a later one yet, so the call `stop_at` is the first True on every one of them.

Where the members are part of a gang on several nodes (`shared`), the vote does not end by itself: `count` says what it
came to, and `settle` takes what the gang's nodes agreed on.

A member that leaves no longer counts; the vote also ends at `decide_by`, with the answers there are. A member that
carries a decision of an earlier agent (it outlived a restart) settles the vote with it. After a restart members come
back one by one, so no vote is closed before `not_before`.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Order:
    """Why and until when the members are to stop; the times are those of the vote's own clock, in seconds."""

    vote: str
    reason: str
    deadline_ns: int
    not_before: float
    decide_by: float
    shared: bool = False


@dataclass(frozen=True)
class Tell:
    """To be sent to a member: a proposal when `stop_at` is None, else the decision."""

    member: str
    order: Order
    stop_at: int | None


class StopVote:
    """One group of members. Every method returns what to send."""

    def __init__(self) -> None:
        self._answers: dict[str, int | None] = {}
        self._order: Order | None = None
        self._stop_at: int | None = None
        self._settled = False
        self._met = False

    @property
    def decided(self) -> bool:
        """Return whether members have been told when to stop."""
        return self._stop_at is not None

    @property
    def stop_at(self) -> int | None:
        """Return the decision."""
        return self._stop_at

    @property
    def has_members(self) -> bool:
        """Return whether a process takes part now."""
        return bool(self._answers)

    @property
    def ordered(self) -> Order | None:
        """Return the order being voted on."""
        return self._order

    def order(self, order: Order, now: float) -> list[Tell]:
        """Open the vote; a repeated order for an open or closed vote only moves its deadline."""
        if self._order is None:
            self._order = order
            return [Tell(member, order, None) for member in self._answers] + self._close_if_due(now)
        if self._order.deadline_ns == order.deadline_ns and self._order.reason == order.reason:
            return []
        self._order = replace(self._order, reason=order.reason, deadline_ns=order.deadline_ns)
        return [Tell(member, self._order, self._stop_at) for member in self._answers]

    def join(self, member: str, stop_at: int | None, now: float) -> list[Tell]:
        """A process connected; `stop_at` is a decision it already knows."""
        alone = self._met and not self._answers
        self._met = True
        self._answers[member] = None
        if self._order is None:
            return []
        if self._stop_at is None:
            if stop_at is not None:
                return self._decide(stop_at)
            return [Tell(member, self._order, None)]
        if alone and stop_at is None:
            # Nobody is left who stops at the voted call: a process started after them stops at its first.
            self._stop_at = 0
        return [Tell(member, self._order, self._stop_at)]

    def answer(self, member: str, vote: str, calls: int, stop_at: int | None, now: float) -> list[Tell]:
        """A member says how many calls it has made."""
        if self._order is None or vote != self._order.vote or member not in self._answers or self.decided:
            return []
        self._answers[member] = calls
        if stop_at is not None:
            return self._decide(stop_at)
        return self._close_if_due(now)

    def leave(self, member: str, now: float) -> list[Tell]:
        """A process finished or lost its connection."""
        self._answers.pop(member, None)
        return self._close_if_due(now)

    def settle(self, stop_at: int | None, now: float) -> list[Tell]:
        """Take what the gang's nodes agreed on; None: nobody elsewhere votes with these members."""
        self._settled = True
        if self._order is None or self.decided or stop_at is None:
            return self._close_if_due(now)
        return self._decide(stop_at)

    def count(self, now: float) -> int | None:
        """Return what an undecided vote has come to, None while it has not or nobody votes."""
        if self._order is None or self.decided or not self._answers:
            return None
        due = now >= self._order.decide_by or (now >= self._order.not_before and self._all_answered())
        return max(calls or 0 for calls in self._answers.values()) if due else None

    def tick(self, now: float) -> list[Tell]:
        """Time went on: close the vote where its time has come."""
        return self._close_if_due(now)

    def wake_at(self) -> float | None:
        """Return when `tick` has something to do next, or None."""
        if self._order is None or self.decided or not self._answers:
            return None
        return self._order.not_before if self._all_answered() else self._order.decide_by

    def _all_answered(self) -> bool:
        return all(calls is not None for calls in self._answers.values())

    def _close_if_due(self, now: float) -> list[Tell]:
        if self._order is None or (self._order.shared and not self._settled):
            return []
        count = self.count(now)
        return [] if count is None else self._decide(count)

    def _decide(self, stop_at: int) -> list[Tell]:
        assert self._order is not None
        self._stop_at = stop_at
        return [Tell(member, self._order, stop_at) for member in self._answers]
