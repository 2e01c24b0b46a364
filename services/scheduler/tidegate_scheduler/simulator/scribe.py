"""Writes the frames of a simulated journal and folds each at once: facts by whoever may say them, and passes."""

from __future__ import annotations

import msgspec
from tidegate_events import events as e
from tidegate_events.contract import WRITERS
from tidegate_events.frame import Frame, Service, Writer
from tidegate_events.journal.base import Recorded
from tidegate_events.subjects import DECISION

from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.state import State

INSTANCE = "simulator"


class Scribe:
    """Owns the folding of `state`. `news` says that facts were folded since somebody last looked."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.news = False
        self._ids = 0

    def lead(self, now_ns: int) -> None:
        """Begin a term of the scheduler."""
        epoch = self.state.header.epoch + 1
        elected = e.LeaderElected(id=self.next_id(), at_ns=now_ns, epoch=epoch, instance=INSTANCE)
        self._append("scheduler", INSTANCE, epoch, (elected,))

    def next_id(self) -> str:
        """Return an id for an event that is to be said."""
        self._ids += 1
        return f"sim-{self._ids}"

    def node_says(self, node: str, *events: e.AnyEvent) -> None:
        """Fold facts of a node's agent."""
        self._append("node", node, self.state.writers.get(f"node/{node}", (1, 0))[0], events)
        self.news = True

    def users_say(self, *events: e.AnyEvent) -> None:
        """Fold what users and operators ask for."""
        self._append("gateway", INSTANCE, 1, events)
        self.news = True

    def scheduler_says(self, *events: e.AnyEvent) -> None:
        """Fold a pass, or what the leader says of nodes and of its policy."""
        self._append("scheduler", INSTANCE, self.state.header.epoch, events)

    def recorded(self, event: e.AnyEvent) -> None:
        """Fold a fact by the service that may say it."""
        services = WRITERS[type(event).__name__]
        if "node" in services and (node := getattr(event, "node", "")):
            self.node_says(node, event)
        elif "gateway" in services:
            self.users_say(event)
        elif "scheduler" in services:
            self.scheduler_says(event)
            self.news = True
        else:
            self._append(_service(services), INSTANCE, 1, (event,))
            self.news = True

    def _append(self, service: Service, instance: str, epoch: int, events: tuple[e.AnyEvent, ...]) -> None:
        state = self.state
        known_epoch, known = state.writers.get(f"{service}/{instance}", (epoch, 0))
        number = known + 1 if known_epoch == epoch else 0
        subject = DECISION if service == "scheduler" else f"tg.fact.{service}.{instance}"
        frame = Frame(Writer(service, instance, epoch, number), events)
        evolve(state, Recorded(state.seq + 1, subject, frame))


def _service(services: frozenset[str]) -> Service:
    return msgspec.convert(min(services), Service)  # type: ignore[no-any-return]
