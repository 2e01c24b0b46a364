"""The client without its I/O: a flow yields what it needs (a call, a pause) and is sent what came of it.

The synchronous and the asynchronous client only differ in the loop that runs a flow; retries, their bounds and the
translation of answers into errors live here, once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Generator, List, Mapping, Optional, Type, TypeVar, Union

from tidegate.client.endpoint import START_REMEDY
from tidegate.client.errors import Conflict, Forbidden, GatewayError, NotFound, Problem, Unavailable, ValidationError
from tidegate.client.packing import Archive

RETRY_DELAYS_SECONDS = (0.1, 0.3, 0.8, 2.0)
"""Pauses between tries of one call; after the last one the call fails. A restarted gateway is back within this."""
RETRY_AFTER_SECONDS_MAX = 10.0
"""The most of a `Retry-After` that is honoured."""
MESSAGE_CHARS_MAX = 500
_RETRIED_STATUSES = frozenset({429, 502, 503, 504})
_KINDS: Dict[int, Type[GatewayError]] = {403: Forbidden, 404: NotFound, 409: Conflict, 410: NotFound}

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """One HTTP request. Every call of this client may be repeated: reads, uploads by digest, and writes with a key."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    content: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    archive: Optional[Archive] = None
    on_sent: Optional[Callable[[int], None]] = None
    """Told the number of bytes of the archive after each piece that was sent."""


@dataclass(frozen=True)
class Reply:
    """What the gateway answered."""

    status: int
    body: bytes
    retry_after: str = ""


@dataclass(frozen=True)
class NoReply:
    """The call got no answer; whether the gateway acted on it is unknown."""

    reason: str


@dataclass(frozen=True)
class Pause:
    """Do nothing for so long."""

    seconds: float


Answer = Union[Reply, NoReply, None]
Flow = Generator[Union[Call, Pause], Answer, T]


@dataclass(frozen=True)
class Emit:
    """Hand this value to whoever reads the stream."""

    value: Any


Stream = Generator[Union[Call, Pause, Emit], Answer, None]


def ask_document(call: Call) -> Flow[Dict[str, Any]]:
    """Make the call, with retries, and return the JSON object that it is answered with."""
    reply = yield from exchange(call)
    try:
        document = json.loads(reply.body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        message = f"What answered {call.method} {call.path} is not a Tidegate gateway: the body is not a JSON object."
        raise GatewayError(message, "Check the URL (TIDEGATE_URL).", reply.status)
    return document


def exchange(call: Call) -> Flow[Reply]:
    """Make the call with retries and return its successful answer; everything else is an error of the client."""
    last: Union[Reply, NoReply] = NoReply("it was not tried")
    for delay in (*RETRY_DELAYS_SECONDS, None):
        answer = yield call
        assert answer is not None, "whoever runs a flow answers every call"
        last = answer
        if isinstance(last, Reply) and last.status not in _RETRIED_STATUSES:
            break
        if delay is not None:
            yield Pause(_pause_seconds(last, delay))
    if isinstance(last, NoReply):
        raise Unavailable(f"The gateway does not answer: {last.reason}.", START_REMEDY)
    if 200 <= last.status < 300:
        return last
    raise _refusal(call, last)


def _pause_seconds(answer: Union[Reply, NoReply], delay: float) -> float:
    asked = answer.retry_after if isinstance(answer, Reply) else ""
    if asked.isdigit():
        return max(delay, min(float(asked), RETRY_AFTER_SECONDS_MAX))
    return delay


def _refusal(call: Call, reply: Reply) -> GatewayError:
    body = _json_or_text(reply.body)
    if reply.status == 422:
        return ValidationError(_problems(body))
    fields: Dict[str, Any] = body if isinstance(body, dict) else {"problem": body}
    message = str(fields.get("problem") or "")[:MESSAGE_CHARS_MAX]
    if not message:
        message = f"{call.method} {call.path} was answered with HTTP status {reply.status}."
    remedy = str(fields.get("accepted") or "")[:MESSAGE_CHARS_MAX]
    code = str(fields.get("code") or "")
    if reply.status in _RETRIED_STATUSES:
        return Unavailable(message, remedy or "It is safe to try again later.", reply.status, code)
    return _KINDS.get(reply.status, GatewayError)(message, remedy, reply.status, code)


def _json_or_text(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace").strip()


def _problems(body: Any) -> List[Problem]:
    """Return the listed problems in one shape, whatever was left out of them."""
    listed = body if isinstance(body, list) else [body]
    problems: List[Problem] = []
    for item in listed:
        found: Dict[str, Any] = item if isinstance(item, dict) else {"problem": str(item)}
        problems.append({key: str(found.get(key, "")) for key in ("path", "problem", "accepted")})
    return problems
