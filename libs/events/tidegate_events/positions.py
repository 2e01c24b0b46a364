"""Where consumers stand in the journal: one key each in the bucket POSITIONS (`nats kv get POSITIONS <consumer>`)."""

from __future__ import annotations

from typing import Any

import msgspec
from nats.aio.client import Client

from tidegate_events.lanes import Position
from tidegate_events.register.base import Register, RegisterUnavailableError, Stale
from tidegate_events.register.nats import NatsRegister

POSITIONS_BUCKET = "POSITIONS"
POSITIONS_STREAM = f"KV_{POSITIONS_BUCKET}"
POSITIONS_PREFIX = f"$KV.{POSITIONS_BUCKET}"
SAVE_TRIES_MAX = 5


def stream_config(*, max_bytes: int, replicas: int = 1) -> dict[str, Any]:
    """Return the bucket's configuration, as clients make key-value buckets."""
    return {
        "name": POSITIONS_STREAM,
        "subjects": [f"{POSITIONS_PREFIX}.>"],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_bytes": max_bytes,
        "max_msgs_per_subject": 1,
        "num_replicas": replicas,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "deny_delete": True,
    }


def nats_positions(client: Client) -> Positions:
    """Return the positions of one JetStream account."""
    return Positions(NatsRegister(client, POSITIONS_STREAM, POSITIONS_PREFIX))


class Positions:
    """Positions by consumer. A position never goes back: two processes of one consumer keep the further one."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._revisions: dict[str, int] = {}

    async def load(self, consumer: str) -> Position:
        """Return where the consumer stands; the beginning, if it never stood anywhere.

        Raises RegisterUnavailableError, and ValueError for what is no position.
        """
        kept = await self._register.get(consumer)
        self._revisions[consumer] = kept.revision if kept is not None else 0
        if kept is None or not kept.data:
            return Position()
        try:
            return msgspec.json.decode(kept.data, type=Position)
        except msgspec.MsgspecError as error:
            remedy = f"delete the key (`nats kv del {POSITIONS_BUCKET} {consumer}`) to begin anew"
            raise ValueError(f"the position of {consumer} cannot be read ({error}); {remedy}") from error

    async def save(self, consumer: str, position: Position) -> None:
        """Keep a position unless a further one is kept. Raises RegisterUnavailableError."""
        data = msgspec.json.encode(position)
        for _ in range(SAVE_TRIES_MAX):
            answer = await self._register.put(consumer, data, self._revisions.get(consumer, 0))
            if not isinstance(answer, Stale):
                self._revisions[consumer] = answer
                return
            if (await self.load(consumer)).seq >= position.seq:
                return
        raise RegisterUnavailableError(f"others keep moving the position of {consumer}")
