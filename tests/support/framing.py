"""A frame as the journal would give it back, without a journal."""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Recorded
from tidegate_events.subjects import DECISION, fact


def framed(seq: int, service: str, instance: str, number: int, events: tuple[e.AnyEvent, ...]) -> Recorded:
    """Return the frame at `seq` that this writer wrote as its `number`th."""
    subject = DECISION if service == "scheduler" else fact(service, instance)
    return Recorded(seq, subject, Frame(Writer(service, instance, 1, number), events))  # type: ignore[arg-type]
