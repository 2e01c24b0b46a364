"""Dead letters for tests that only count them."""

from __future__ import annotations

from tidegate_events.deadletter import DeadLetter, State


def letter(consumer: str = "checkpoint", seq: int = 1, state: State = "dead") -> DeadLetter:
    """Return a letter."""
    return DeadLetter(
        consumer=consumer,
        seq=seq,
        index=0,
        kind="CheckpointSaved",
        state=state,
        error_type="ValueError",
        error_text="no",
        attempts=5,
        first_at_ns=1,
        last_at_ns=2,
    )
