"""Questions over core NATS request-reply."""

from __future__ import annotations

from typing import Any

import msgspec
import nats.errors
from nats.aio.client import Client

from tidegate_gateway.asks.base import BadAnswerError, NobodyAnsweredError, unless_busy

_decoder = msgspec.json.Decoder(dict[str, Any])


class NatsAsker:
    """Asks over one connection."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def connected(self) -> bool:
        """Say whether the connection stands."""
        return bool(self._client.is_connected)

    async def ask(self, subject: str, question: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        """Ask as the port says."""
        try:
            answer = await self._client.request(subject, msgspec.json.encode(question), timeout=timeout_seconds)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise NobodyAnsweredError(f"nobody answered on {subject} within {timeout_seconds:g} s") from error
        try:
            said = _decoder.decode(answer.data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadAnswerError(f"the answer on {subject} is no JSON object: {error}") from error
        return unless_busy(said)
