"""One attempt's state in memory and on disk: changed at once, and durable when a commit's future resolves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec
from tidegate_events.events import AnyEvent
from tidegate_events.orders import SandboxOrder

from tidegate_executor.attempts import state as states
from tidegate_executor.attempts.state import AttemptState
from tidegate_executor.spool.records import UserMessage
from tidegate_executor.spool.spool import Spool

ORDER_SUFFIX = ".order"

_order_encoder = msgspec.json.Encoder()
_order_decoder = msgspec.json.Decoder(SandboxOrder)


class AttemptMemory:
    """`order` is the first one, which says what the sandbox is; later ones only move `state`."""

    def __init__(self, spool: Spool, order: SandboxOrder, state: AttemptState) -> None:
        self._spool = spool
        self.order = order
        self.state = state
        self.durable_marks = dict(state.marks)
        self.changed = asyncio.Event()

    def commit(
        self,
        events: Sequence[AnyEvent] = (),
        *,
        state: AttemptState | None = None,
        user: Sequence[UserMessage] = (),
        droppable: bool = False,
        on_journaled: Callable[[int], None] | None = None,
    ) -> asyncio.Future[None]:
        """Put events and the state (from now on `state`, where given) on disk together.

        Raises SpoolFullError for a droppable commit; then nothing has changed. `on_journaled` as the spool's.
        """
        new = state if state is not None else self.state
        future = self._spool.put(
            events, user=user, states={new.id: states.encode(new)}, droppable=droppable, on_journaled=on_journaled
        )
        self.state = new
        self.changed.set()
        return future

    def commit_first(self) -> asyncio.Future[None]:
        """Put the order and the first state on disk: from then on this attempt is never started afresh."""
        encoded = msgspec.Raw(_order_encoder.encode(self.order))
        return self._spool.put(states={self.state.id: states.encode(self.state), self.state.id + ORDER_SUFFIX: encoded})

    def change(self, state: AttemptState) -> None:
        """Change the state in memory only: for what is seen again after a crash (the sandbox's history, orders)."""
        if state is not self.state:
            self.state = state
            self.changed.set()


def recall(values: Mapping[str, bytes]) -> dict[str, tuple[AttemptState, SandboxOrder | None]]:
    """Return every attempt that the spool's states tell of, by sandbox id; ended ones may have lost their order."""
    found = {}
    for key, value in values.items():
        if not key.endswith(ORDER_SUFFIX):
            order = values.get(key + ORDER_SUFFIX)
            found[key] = (states.decode(value), _order_decoder.decode(order) if order is not None else None)
    return found
