"""What both clients need of httpx, which is imported only when a client is made: `tidegate --help` stays quick."""

from __future__ import annotations

import json
from typing import Any, Dict, Optional, Tuple, Type
from urllib.parse import urlsplit

from tidegate.client.endpoint import gateway_url
from tidegate.client.flow import Call, NoReply, Reply
from tidegate.errors import MissingExtraError

CONNECT_SECONDS_MAX = 5.0
READ_SECONDS_MAX = 30.0
WRITE_SECONDS_MAX = 60.0
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Connection:
    """The gateway's address and the translation between calls and httpx's requests."""

    def __init__(self, url: Optional[str]) -> None:
        try:
            import httpx  # noqa: PLC0415
        except ImportError as error:
            message = "The client needs httpx: install it with `pip install 'tidegate[cli]'`."
            raise MissingExtraError(message) from error
        self.url = gateway_url(url)
        self._httpx = httpx
        self.transport_errors: Tuple[Type[Exception], ...] = (httpx.TransportError,)

    def sync_client(self, transport: Any) -> Any:
        """Return an httpx client."""
        return self._httpx.Client(**self._options(transport))

    def async_client(self, transport: Any) -> Any:
        """Return an asynchronous httpx client."""
        return self._httpx.AsyncClient(**self._options(transport))

    def arguments(self, call: Call) -> Dict[str, Any]:
        """Return the request's arguments, without the content of an archive."""
        headers = dict(call.headers)
        arguments: Dict[str, Any] = {"method": call.method, "url": call.path, "params": dict(call.params)}
        if call.archive is not None:
            headers["Content-Type"] = "application/x-tar"
            headers["Content-Length"] = str(call.archive.size_bytes)
        elif call.content is not None:
            headers["Content-Type"] = "application/json"
            arguments["content"] = json.dumps(call.content).encode("utf-8")
        arguments["headers"] = headers
        return arguments

    def reply(self, response: Any) -> Reply:
        """Return what was answered."""
        return Reply(response.status_code, response.content, response.headers.get("retry-after", ""))

    def no_reply(self, error: Exception) -> NoReply:
        """Return why nothing was answered."""
        kind = type(error).__name__
        return NoReply(f"{self.url}: {error}" if str(error) else f"{self.url}: {kind}")

    def _options(self, transport: Any) -> Dict[str, Any]:
        timeout = self._httpx.Timeout(READ_SECONDS_MAX, connect=CONNECT_SECONDS_MAX, write=WRITE_SECONDS_MAX)
        # A proxy from the environment cannot reach this machine's own loopback.
        direct = urlsplit(self.url).hostname in _LOOPBACK
        return {"base_url": self.url, "timeout": timeout, "trust_env": not direct, "transport": transport}
