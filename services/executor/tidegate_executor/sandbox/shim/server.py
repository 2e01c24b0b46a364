"""The shim's event loop: control socket, replicas' output, children, timers; one thread, epoll."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from typing import Any

from tidegate_executor.cgroups.base import CgroupError
from tidegate_executor.sandbox.shim.connection import Connection
from tidegate_executor.sandbox.shim.replicas import Refused, Replica, Stopping
from tidegate_executor.sandbox.shim.sandbox import ShimSandbox
from tidegate_executor.sandbox.shim.spawn import SpawnError

SOCKET_NAME = "shim.sock"
CLIENTS_MAX = 64
FAREWELL_SECONDS_MAX = 2.0


class Server:
    """Serves one sandbox until it is over."""

    def __init__(self, sandbox: ShimSandbox, state_dir: str) -> None:
        self._epoll = select.epoll()
        self._clients: dict[int, Connection] = {}
        self._outputs: dict[int, Replica] = {}
        self._watches: dict[int, Replica] = {}
        self._listeners: dict[int, Replica] = {}  # of replicas' filters, see `refusals`
        self._paused: dict[int, float] = {}  # of these, until when
        self._alive: int | None = None
        self._renumbered = False
        self._listener = _listen(state_dir)
        self._wake_read, self._wake_write = os.pipe()
        for descriptor in (self._wake_read, self._wake_write):
            os.set_blocking(descriptor, False)
        for descriptor in (self._wake_read, self._listener.fileno()):
            self._epoll.register(descriptor, select.EPOLLIN)
        self.sandbox = sandbox
        sandbox.announce = self._announce
        sandbox.replicas.leaves = self._forget

    def open(self, config: dict[str, Any]) -> None:
        """Have the sandbox that the configuration describes."""
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._alive = self.sandbox.open(config)
        if self._alive is not None:
            # Only its hanging up counts: the job cannot write to it, and nobody reads it.
            self._epoll.register(self._alive, 0)

    def run(self) -> None:
        while not self.sandbox.over:
            left = self._seconds_left()
            self._renumbered = False
            for descriptor, events in self._epoll.poll(-1 if left is None else left):
                self._on_ready(descriptor, events)
                if self.sandbox.over or self._renumbered:
                    break  # what else was heard may be of a descriptor that was closed; what is not is heard again
            self.sandbox.tick()
        self._farewell()

    def _on_ready(self, descriptor: int, events: int) -> None:
        if descriptor == self._alive:
            self.sandbox.on_collapse()
        elif descriptor == self._wake_read:
            os.read(self._wake_read, 4096)
            self.sandbox.on_child_exits()
        elif descriptor == self._listener.fileno():
            self._accept()
        elif descriptor in self._outputs:
            if not self._outputs[descriptor].pump():
                self._epoll.unregister(descriptor)  # everyone closed it; the replica may live on
                del self._outputs[descriptor]
        elif descriptor in self._watches:
            os.read(descriptor, 8)
            self.sandbox.on_oom(self._watches[descriptor])
        elif descriptor in self._listeners:
            self._on_listener(descriptor, events)
        elif descriptor in self._clients:
            self._serve(self._clients[descriptor], events)

    def _seconds_left(self) -> float | None:
        """Until something is due; None: nothing is."""
        now = time.monotonic()
        for descriptor in [each for each, until in self._paused.items() if until <= now]:
            del self._paused[descriptor]
            self._epoll.register(descriptor, select.EPOLLIN)
        left = self.sandbox.seconds_left()
        due = [until - now for until in self._paused.values()] + ([left] if left is not None else [])
        return min(due, default=None)

    # --- replicas -------------------------------------------------------------------------------------------

    def _on_listener(self, descriptor: int, events: int) -> None:
        pause = self.sandbox.on_refused(self._listeners[descriptor]) if events & select.EPOLLIN else 0.0
        if events & select.EPOLLHUP:  # no process with that filter is left, or no guest
            self._epoll.unregister(descriptor)
            del self._listeners[descriptor]
        elif pause:
            self._epoll.unregister(descriptor)
            self._paused[descriptor] = time.monotonic() + pause

    def _watch(self, replica: Replica) -> None:
        self._outputs[replica.output] = replica
        self._epoll.register(replica.output, select.EPOLLIN)
        if replica.oom_watch is not None:
            self._watches[replica.oom_watch] = replica
            self._epoll.register(replica.oom_watch, select.EPOLLIN)
        if replica.refusals is not None:
            self._listeners[replica.refusals.listener] = replica
            self._epoll.register(replica.refusals.listener, select.EPOLLIN)

    def _forget(self, replica: Replica) -> None:
        """Its descriptors are about to be closed, and others will have their numbers.

        Epoll forgets none by itself that a process forked meanwhile has too, as who mounts late has for a moment.
        """
        self._renumbered = True
        tables: tuple[dict[int, Replica], ...] = (self._outputs, self._watches, self._listeners)
        for table in tables:
            for descriptor in [each for each, owner in table.items() if owner is replica]:
                del table[descriptor]
                if self._paused.pop(descriptor, None) is None:
                    self._epoll.unregister(descriptor)

    # --- clients --------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        connected, _ = self._listener.accept()
        client = Connection(connected)
        if client.peer_uid() not in (0, os.geteuid()) or len(self._clients) >= CLIENTS_MAX:
            connected.close()
            return
        self._clients[connected.fileno()] = client
        self._epoll.register(connected.fileno(), select.EPOLLIN)

    def _serve(self, client: Connection, events: int) -> None:
        keep = True
        if events & select.EPOLLOUT:
            keep = client.flush()
        if keep and events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            requests = client.receive()
            keep = requests is not None
            for request in requests or []:
                keep = keep and self._reply(client, request)
        self._settle(client, keep)

    def _settle(self, client: Connection, keep: bool) -> None:
        """Wait for room where output is pending; cut off who is gone or too slow."""
        descriptor = client.socket.fileno()
        if not keep:
            self._renumbered = True
            self._clients.pop(descriptor, None)
            client.socket.close()
            return
        self._epoll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if client.pending else 0))

    def _reply(self, client: Connection, request: dict[str, Any]) -> bool:
        if request.get("op") == "follow":
            return self._follow(client, int(request["offset"]))
        running = set(self.sandbox.replicas.running)
        try:
            answer: dict[str, Any] = {"ok": self.sandbox.answer(request)}
        except Stopping as error:
            answer = {"error": "stopping", "text": str(error)}
        except Refused as error:
            answer = {"error": "refused", "text": str(error)}
        except SpawnError as error:
            answer = {"error": "job" if error.job else "infrastructure", "text": str(error)}
        except (CgroupError, OSError) as error:
            answer = {"error": "infrastructure", "text": str(error)}
        except (KeyError, TypeError, ValueError) as error:
            answer = {"error": "refused", "text": f"malformed request: {error!r}"}
        for key in set(self.sandbox.replicas.running) - running:
            self._watch(self.sandbox.replicas.running[key])
        return client.send(answer)

    def _follow(self, client: Connection, offset: int) -> bool:
        """Send the past from `offset`, then everything new."""
        keep = True
        for line in self.sandbox.history.read_from(offset).splitlines(keepends=True):
            offset += len(line)
            keep = keep and client.send({"event": json.loads(line), "next_offset": offset})
        client.following = True
        return keep

    def _announce(self, event: dict[str, Any], next_offset: int) -> None:
        for client in list(self._clients.values()):
            if client.following:
                self._settle(client, client.send({"event": event, "next_offset": next_offset}))

    def _farewell(self) -> None:
        """Let the clients have the last events, in bounds."""
        deadline = time.monotonic() + FAREWELL_SECONDS_MAX
        while any(client.pending for client in self._clients.values()) and time.monotonic() < deadline:
            for client in list(self._clients.values()):
                if not client.flush():
                    self._settle(client, keep=False)
            time.sleep(0.005)
        for client in self._clients.values():
            client.socket.close()


def _listen(state_dir: str) -> socket.socket:
    """A socket in the state directory, bound by a relative path: an absolute one may exceed what a socket takes."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.chdir(state_dir)
    try:
        listener.bind(SOCKET_NAME)
    finally:
        os.chdir("/")
    listener.listen(16)
    listener.setblocking(False)
    return listener
