"""A container engine's HTTP interface over its unix socket, as far as a shim needs it (Docker Engine API 1.41).

Standard library only and synchronous: every call is bounded. The agent itself talks to the engine by aiodocker.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from typing import Any
from urllib.parse import quote, urlencode

API = "/v1.41"
CALL_SECONDS_MAX = 60.0
REMOVAL_SECONDS_MAX, REMOVAL_POLL_SECONDS = 30.0, 0.005
# Of every container and volume: the sandbox by its control group, which names the agent too, for some share an engine.
LABEL = "tidegate.sandbox"


class EngineError(Exception):
    """The engine refused or did not answer; `status` is HTTP's, 0 where there was no answer."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, seconds_max: float) -> None:
        super().__init__("localhost", timeout=seconds_max)
        self._path = path

    def connect(self) -> None:
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connecting.settimeout(self.timeout)
        connecting.connect(self._path)
        self.sock = connecting


class Engine:
    """One engine, by the path of its socket."""

    def __init__(self, path: str) -> None:
        self.path = path

    def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """One request; returns the decoded answer (None where it is empty). Raises EngineError."""
        connection = _Connection(self.path, CALL_SECONDS_MAX)
        target = f"{API}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request(method, target, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"the engine at {self.path} does not answer: {error}") from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise EngineError(_message(data) or answer.reason, answer.status)
        return json.loads(data) if data.strip() else None

    def remove_all(self, group: str) -> None:
        """Remove every container and volume of the sandbox with that control group. Idempotent. Raises EngineError.

        What somebody else is removing just now is waited for: a volume cannot go before the last container with it.
        """
        filters = json.dumps({"label": [f"{LABEL}={group.strip('/')}"]})
        deadline = time.monotonic() + REMOVAL_SECONDS_MAX
        while True:
            containers = self.call("GET", "/containers/json", all="true", filters=filters)
            volumes = self.call("GET", "/volumes", filters=filters)["Volumes"] or []
            if not containers and not volumes:
                return
            if time.monotonic() > deadline:
                raise EngineError(f"{len(containers)} containers and {len(volumes)} volumes of {group} are not removed")
            for container in containers:
                self.remove_container(container["Id"])
            for volume in volumes:
                self._forgiving("DELETE", f"/volumes/{quote(volume['Name'])}", force="true")
            time.sleep(REMOVAL_POLL_SECONDS)

    def groups(self) -> set[str]:
        """Return the control groups of all sandboxes, of any agent, that it has containers or volumes of."""
        filters = json.dumps({"label": [LABEL]})
        found = self.call("GET", "/containers/json", all="true", filters=filters)
        found += self.call("GET", "/volumes", filters=filters)["Volumes"] or []
        return {str(each["Labels"][LABEL]) for each in found}

    def remove_container(self, container: str) -> None:
        self._forgiving("DELETE", f"/containers/{container}", force="true", v="true")

    def _forgiving(self, method: str, path: str, **query: str) -> None:
        """A call whose object may be gone, or on its way there."""
        try:
            self.call(method, path, **query)
        except EngineError as error:
            if error.status not in (404, 409):
                raise


def _message(data: bytes) -> str:
    try:
        found = json.loads(data)
    except ValueError:
        return data.decode(errors="replace")[:500]
    return str(found.get("message", "")) if isinstance(found, dict) else ""
