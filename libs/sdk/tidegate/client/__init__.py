"""The client of a gateway, synchronous and asynchronous; needs the extra `tidegate[cli]` (httpx)."""

from tidegate.client.asynchronous import AsyncClient
from tidegate.client.core import ENDED_STATES, EventFilter, LogChunk, LogSelection
from tidegate.client.errors import (
    ClientError,
    Conflict,
    Forbidden,
    GatewayError,
    JobEnded,
    NoGatewayError,
    NotFound,
    PackingError,
    SpecError,
    Unavailable,
    ValidationError,
    WaitTimeout,
)
from tidegate.client.operating import KEPT
from tidegate.client.submission import Submission
from tidegate.client.sync import Client

__all__ = [
    "Client",
    "AsyncClient",
    "Submission",
    "LogChunk",
    "LogSelection",
    "EventFilter",
    "ENDED_STATES",
    "ClientError",
    "GatewayError",
    "ValidationError",
    "NotFound",
    "Conflict",
    "Forbidden",
    "KEPT",
    "Unavailable",
    "NoGatewayError",
    "PackingError",
    "SpecError",
    "JobEnded",
    "WaitTimeout",
]
