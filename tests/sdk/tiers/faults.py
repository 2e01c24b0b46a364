"""An HTTP proxy on loopback that loses, cuts, repeats and falsifies what passes through it."""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HANG_SECONDS = 30.0
HOP_HEADERS = {"connection", "transfer-encoding", "keep-alive", "content-length", "date", "server"}

PASS = "pass"
ERROR = "error"
"""The server says that it failed, and did nothing."""
LOST = "lost"
"""The request is done, its answer never comes: the connection ends."""
HANG = "hang"
"""Nothing is done, and nothing is said until the client gives up."""
CUT = "cut"
"""The answer ends before the length that it announced."""
SHORT = "short"
"""The answer is shorter than it should be, and announces just that."""
REPEAT = "repeat"
"""The request is done twice."""
LIE_OK = "lie-ok"
"""A write is said to be done, and is not."""
LIE_BYTES = "lie-bytes"
"""One bit of what is read is another."""
FALSE_BODY = "false-body"
"""One bit of what is written is another: the server keeps that."""
KINDS = (ERROR, LOST, HANG, CUT, SHORT, REPEAT, LIE_OK, LIE_BYTES, FALSE_BODY)

Plan = Callable[[str, str], str]
"""Says by method and path what happens to a request."""


def seeded(seed: int, share: float, kinds: tuple[str, ...] = KINDS) -> Plan:
    """Return a plan under which so large a share of the requests goes wrong, the same for the same seed."""
    chance = random.Random(seed)
    lock = threading.Lock()

    def plan(method: str, path: str) -> str:
        with lock:
            return chance.choice(kinds) if chance.random() < share else PASS

    return plan


class FaultProxy:
    """Passes requests to `host:port`, as `plan` says; `seen` counts what it did."""

    def __init__(self, host: str, port: int) -> None:
        self.plan: Plan = lambda method, path: PASS
        self.seen: Counter[str] = Counter()
        self.released = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Say nothing."""

            def _handle(self) -> None:
                proxy.pass_on(self, host, port)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def pass_on(self, handler: BaseHTTPRequestHandler, host: str, port: int) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        method = handler.command
        kind = self.plan(method, handler.path)
        if kind in (LIE_OK, FALSE_BODY) and method != "PUT":
            kind = PASS
        if kind in (CUT, SHORT, LIE_BYTES) and method != "GET":
            kind = PASS
        self.seen[kind] += 1
        if kind == HANG:
            self.released.wait(HANG_SECONDS)
            handler.close_connection = True
        elif kind == ERROR:
            self._answer(handler, 503, [("Content-Type", "text/plain")], b"")
        elif kind == LIE_OK:
            self._answer(handler, 200, [("ETag", '"00000000000000000000000000000000"')], b"")
        else:
            if kind == FALSE_BODY and body:
                body = bytes([body[0] ^ 1]) + body[1:]
            for _ in range(2 if kind == REPEAT else 1):
                answer = _ask(host, port, handler, body)
            self._pass_back(handler, kind, *answer)

    def _pass_back(
        self, handler: BaseHTTPRequestHandler, kind: str, status: int, headers: list[tuple[str, str]], data: bytes
    ) -> None:
        if kind == LOST:
            handler.close_connection = True
            return
        if kind == LIE_BYTES and data:
            data = bytes([data[0] ^ 1]) + data[1:]
        if kind == SHORT:
            data = data[: len(data) // 2]
        sent = data[: len(data) // 2] if kind == CUT else data
        self._answer(handler, status, headers, sent, announced=len(data))
        if kind == CUT:
            handler.close_connection = True

    def _answer(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        headers: list[tuple[str, str]],
        data: bytes,
        announced: int | None = None,
    ) -> None:
        handler.send_response(status)
        length = len(data) if announced is None else announced
        for name, value in headers:
            if name.lower() == "x-length":
                length = int(value)
            else:
                handler.send_header(name, value)
        handler.send_header("Content-Length", str(length))
        handler.end_headers()
        handler.wfile.write(data)


def _ask(host: str, port: int, handler: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=HANG_SECONDS)
    try:
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in HOP_HEADERS}
        connection.request(handler.command, handler.path, body, {**headers, "Content-Length": str(len(body))})
        answer = connection.getresponse()
        data = answer.read()
        kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in HOP_HEADERS]
        if handler.command == "HEAD":
            kept.append(("x-length", answer.getheader("Content-Length", "0")))
        return answer.status, kept, data
    finally:
        connection.close()
