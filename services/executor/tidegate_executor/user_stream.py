"""Users' own events on their way to the stream USER: stored at least once, quick duplicates dropped by the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client

from tidegate_executor.spool.records import UserMessage

STORE_TIMEOUT_SECONDS = 2.0
RETRY_WAIT_SECONDS = 1.0
SERVER_BUSY_CODE = 503

log = structlog.get_logger()


class NatsUserStream:
    """The stream behind the subjects `tg.user.<tenant>`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.refused = 0

    async def store(self, messages: Sequence[UserMessage]) -> None:
        """Return when each message is stored; one that the stream refuses for good is counted and dropped."""
        for message in messages:
            while not await self._try(message):  # noqa: ASYNC110 - a retry's wait, nothing to be told of
                await asyncio.sleep(RETRY_WAIT_SECONDS)

    async def _try(self, message: UserMessage) -> bool:
        try:
            answer = await self._client.request(
                message.subject,
                bytes(message.body),
                timeout=STORE_TIMEOUT_SECONDS,
                headers={"Nats-Msg-Id": message.id},
            )
        except (nats.errors.Error, TimeoutError, OSError) as error:
            log.warning("user_events_wait", why=repr(error))
            return False
        refusal = msgspec.json.decode(answer.data).get("error")
        if refusal is None:
            return True
        if refusal.get("code") == SERVER_BUSY_CODE:
            return False
        self.refused += 1
        log.warning("user_event_refused", id=message.id, why=refusal.get("description"), refused=self.refused)
        return True
