"""What a job needs of the way to its agent, whichever it is."""

from __future__ import annotations

from threading import Event
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Protocol, Tuple


class Resume(NamedTuple):
    """What the agent said about the checkpoint to continue from: `known` is False when no agent answered."""

    known: bool
    checkpoint_id: Optional[str]


class Patience(NamedTuple):
    """How long a phase is waited for: `seconds` (None: as long as it takes), and not once `given_up` is set."""

    seconds: Optional[float]
    given_up: Event


ReportCall = Tuple[Mapping[str, float], Optional[int], Optional[float], int]
"""Metrics, the newest step, progress, and the call's number from 1. The metrics are not copied."""


class Link(Protocol):
    """A way to the agent. `control` messages are kept until acknowledged; reports may be lost and are counted."""

    def start(self) -> Resume:
        """Connect; returns what the agent named, or that it did not answer in time."""

    def control(self, message: Dict[str, Any]) -> int:
        """Queue a control message and return its sequence number; waits while the queue is full, then raises."""

    def phase(self, name: Optional[str], step: Optional[int]) -> None:
        """The process entered a phase, or with None left the one it was in."""

    def ask(self, name: str, step: Optional[int], patience: Patience) -> Mapping[str, str]:
        """Return once the process may enter the phase, with the variables that tell it its devices there.

        Where phases are only told that is at once. Raises PhaseRefusedError, and PhaseTimeoutError at the end of its
        patience.
        """

    def joined(self, seq: int, key: Tuple[str, str], seconds: float) -> Dict[str, Any]:
        """Wait until it is decided what becomes of a part that message `seq` told of; `key` is (save, id of the part).

        Returns the agent's word. Raises SaveFailedError where the agent took no such message, NotJoinedError where its
        word was not heard.
        """

    def not_freed(self, message: Dict[str, Any]) -> None:
        """Have it said that devices are not handed back, where an agent takes that word."""

    @property
    def report(self) -> Callable[[ReportCall], None]:
        """Return the function that takes metrics to be sent soon. Fetched once and called at every step.

        Of calls that come fast only the newest are kept, so `report_names_change` is called before one that names
        other metrics than the call before it.
        """

    def report_names_change(self) -> None:
        """Keep what was reported so far: the next call names other metrics."""

    def wait_acknowledged(self, seq: int, seconds: float) -> bool:
        """Wait until the agent has made that message durable; False after `seconds`."""

    def close(self, seconds: float) -> bool:
        """Deliver what is queued, for at most `seconds`, and leave; False when something was left behind."""

    @property
    def replicas(self) -> Mapping[str, int]:
        """Return how many processes each component has now whose number may be scaled."""

    @property
    def dropped_reports(self) -> int:
        """Return how many reports were lost so far."""
