"""Serves /metrics on loopback."""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidegate_metrics.exposition import CONTENT_TYPE

HOST = "127.0.0.1"
CONNECTIONS_MAX = 64
DRAIN_SECONDS_MAX = 1


class Server(uvicorn.Server):
    """A server that leaves signals to the process, which has more to stop than this."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Take no signal."""
        yield


def listen(port: int) -> socket.socket:
    """Take the port before anything else, so that a second service fails at once. Raises OSError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(CONNECTIONS_MAX)  # whoever is told that we are ready is not refused
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def server(render: Callable[[], bytes]) -> Server:
    """Return a server that answers /metrics with what `render` returns."""

    async def metrics(_request: Request) -> Response:
        return Response(render(), headers={"content-type": CONTENT_TYPE})

    config = uvicorn.Config(
        Starlette(routes=[Route("/metrics", metrics)]),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=DRAIN_SECONDS_MAX,
    )
    return Server(config)
