"""The shim's state machine: what is asked of the sandbox, what happened in it, when it is over."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from tidegate_executor.cgroups.base import Group, Quota
from tidegate_executor.cgroups.detect import driver_from
from tidegate_executor.sandbox.shim.bubblewrap import Bubblewrap
from tidegate_executor.sandbox.shim.containers import ContainerLauncher
from tidegate_executor.sandbox.shim.guarded import GuardedLauncher
from tidegate_executor.sandbox.shim.history import History
from tidegate_executor.sandbox.shim.isolated import BwrapLauncher
from tidegate_executor.sandbox.shim.launching import NotReadyError
from tidegate_executor.sandbox.shim.plain import PlainLauncher
from tidegate_executor.sandbox.shim.processes import kill_descendants, start_ticks
from tidegate_executor.sandbox.shim.refusals import Refusal
from tidegate_executor.sandbox.shim.replicas import Refused, Replica, Replicas, Stopping
from tidegate_executor.sandbox.shim.spawn import Launcher

Reply = dict[str, Any]


class ShimSandbox:
    """One sandbox, which may be made ready before it is known whose it is.

    `config` is what is known of it; `open` adds the rest. `announce` is called with every recorded event and the
    offset after it.
    """

    def __init__(self, config: dict[str, Any], bubblewrap: Bubblewrap | None = None) -> None:
        self._config = config
        self.announce: Callable[[Reply, int], None] = _to_nobody
        described = config["cgroup"]
        self._group: Group | None = driver_from(described).group(config["group"]) if described else None
        self._grounded = False
        self._alive: int | None = None
        self._built: list[list[str]] | None = None
        self.replicas = Replicas(config, self._group)
        self._isolated = BwrapLauncher(config, self.replicas.hold, bubblewrap) if bubblewrap is not None else None
        self._launcher: Launcher = self._isolated or _launcher(config, self.replicas.hold)
        self._history: History | None = None
        self._kill_at: float | None = None
        self._killed = False
        self.over = False

    @property
    def history(self) -> History:
        assert self._history is not None, "it is open"
        return self._history

    def lay_ground(self) -> None:
        """Make its groups, and put into them who will build it and who will run in it first: that takes longest."""
        self._grounded = True
        self.replicas.prepare_groups()
        self._launcher.ground()
        if self._launcher.clones:
            self.replicas.fork_ahead(self._launcher)

    def stand_ready(self) -> None:
        """Build it for nobody yet: all that depends on its image alone."""
        self._build()
        self._built = self._config["plan"]
        self.replicas.await_ahead()
        self.replicas.rehearse()
        json.loads(json.dumps(self._config))
        self.answer({"op": "stats"})

    def open(self, config: dict[str, Any]) -> int | None:
        """It is known now: build it, or add what is missing; return the descriptor that hangs up when it collapses."""
        self._config.update(config)
        if self._built is None:
            self._build()
            self.replicas.bound_anew()
        else:
            late = [entry for entry in config["plan"] if entry not in self._built]
            self._launcher.adopt(late, self._know_anew)
        self._history = History(config["state_dir"])
        self._record("ready", {})
        return self._alive

    def _know_anew(self) -> None:
        if not self.replicas.waits_ahead():
            raise NotReadyError("what waited for the first command in the sandbox that stood ready has ended")
        self.replicas.bound_anew()

    def _build(self) -> None:
        self._launcher.lay_out()
        if not self._grounded:
            self.lay_ground()
        self._alive = self._launcher.open(self._meanwhile)
        self.replicas.enter_ahead(self._launcher.holder)

    def _meanwhile(self) -> None:
        if not self._launcher.clones:
            self.replicas.fork_ahead(self._launcher)

    # --- requests -------------------------------------------------------------------------------------------

    def answer(self, request: dict[str, Any]) -> Reply:
        """Carry one request out. Raises Refused, SpawnError, CgroupError."""
        operations: dict[str, Callable[[dict[str, Any]], Reply]] = {
            "start": self._on_start,
            "resize": self._on_resize,
            "signal": self._on_signal,
            "freeze": self._on_freeze,
            "thaw": self._on_thaw,
            "stats": self._on_stats,
            "stop": self._on_stop,
        }
        operation = operations.get(str(request.get("op")))
        if operation is None:
            raise Refused(f"unknown operation {request.get('op')!r}; known: {', '.join(operations)}")
        return operation(request)

    def _on_start(self, request: dict[str, Any]) -> Reply:
        if self._kill_at is not None:
            raise Stopping("the sandbox is being stopped; nothing starts in it any more")
        self._refuse_frozen()
        replica = self.replicas.start(request, self._launcher)
        fields = {**_names(replica), "pid": replica.pid, "start_ticks": start_ticks(replica.pid)}
        return self._record("started", fields)

    def _on_resize(self, request: dict[str, Any]) -> Reply:
        key = (str(request["component"]), int(request["replica"]))
        seen = self.replicas.resize(key, Quota(*request["limits"]), self._launcher)
        fields = {"component": key[0], "replica": key[1], "limits": seen._asdict()}
        return self._record("resized", fields)

    def _on_signal(self, request: dict[str, Any]) -> Reply:
        if request["signal"] == signal.SIGKILL:
            self._refuse_frozen()
        key = (str(request["component"]), int(request["replica"]))
        self.replicas.signal(key, int(request["signal"]), self._launcher)
        return {}

    def _on_freeze(self, request: dict[str, Any]) -> Reply:
        if self._group is None:
            raise Refused("no control groups on this node, so the sandbox cannot be frozen")
        self._group.freeze()
        return {}

    def _on_thaw(self, request: dict[str, Any]) -> Reply:
        if self._group is not None:
            self._group.thaw()
        return {}

    def _on_stats(self, request: dict[str, Any]) -> Reply:
        found = []
        for replica in self.replicas.running.values():
            group = replica.group
            usage = group.usage()._asdict() if group is not None else None
            limits = group.quota()._asdict() if group is not None else None
            refused = replica.refusals.tally.total if replica.refusals is not None else 0
            found.append(
                {**_names(replica), "pid": replica.pid, "usage": usage, "limits": limits, "calls_refused": refused}
            )
        return {"at_ns": time.time_ns(), "frozen": self._frozen(), "replicas": found}

    def _on_stop(self, request: dict[str, Any]) -> Reply:
        deadline = time.monotonic() + float(request["grace_seconds"])
        first = self._kill_at is None
        self._kill_at = deadline if self._kill_at is None else min(self._kill_at, deadline)
        if self._frozen():
            self._on_thaw({})
        if first:
            for key in list(self.replicas.running):
                self.replicas.signal(key, signal.SIGTERM, self._launcher)
        self.tick()
        return {}

    def _frozen(self) -> bool:
        return self._group is not None and self._group.frozen()

    def _refuse_frozen(self) -> None:
        if self._frozen():
            raise Refused("the sandbox is frozen; thaw it first")

    # --- what happens ---------------------------------------------------------------------------------------

    def seconds_left(self) -> float | None:
        """Until `tick` has something to do; None: nothing planned."""
        due = [each.refusals.tally.due_at() for each in self.replicas.running.values() if each.refusals is not None]
        if not self._killed:
            due.append(self._kill_at)
        known = [at for at in due if at is not None]
        return max(min(known) - time.monotonic(), 0.0) if known else None

    def tick(self) -> None:
        """Tell of refusals in time; kill at the end of the grace; end when a stop has nothing left to wait for."""
        for replica in self.replicas.running.values():
            if replica.refusals is not None:
                self._tell_refused(replica, replica.refusals.tally.overdue(time.monotonic()))
        if self._kill_at is None or self.over:
            return
        if self.replicas.running and not self._killed and time.monotonic() >= self._kill_at:
            self._killed = True
            for replica in self.replicas.running.values():
                replica.kill()
        if not self.replicas.running:
            self._end("stopped")

    def on_child_exits(self) -> None:
        """Reap everything that ended."""
        while not self.over:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if seen is None:
                return
            replica = next((r for r in self.replicas.running.values() if r.pid == seen.si_pid), None)
            isolated = self._isolated
            if isolated is not None and (seen.si_pid == isolated.bwrap or isolated.collapsing()):
                self.on_collapse()
                return
            if replica is not None and replica.group is None:
                replica.kill()
            _, status = os.waitpid(seen.si_pid, 0)
            if replica is not None:
                self._on_exit(replica, os.waitstatus_to_exitcode(status))
            self.tick()

    def _on_exit(self, replica: Replica, code: int) -> None:
        broke = self._launcher.broke(replica.name)
        if broke and not replica.killed and not replica.out_of_memory():
            self.on_collapse(reaped=replica.pid)
            return
        code = -signal.SIGKILL if broke else self._launcher.ending(replica.name, code)
        self._tell_rest(replica)
        oom = self.replicas.end(replica)
        self._launcher.ended(replica.name)
        fields = {
            **_names(replica),
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "oom": oom,
            "stopping": self._kill_at is not None,
        }
        self._record("exited", fields)

    def on_oom(self, replica: Replica) -> None:
        """Version 1 control groups: the kernel killed one process; a replica lives or dies as a whole."""
        replica.oom_seen = True
        replica.kill()

    def on_refused(self, replica: Replica) -> float:
        """The filter asks: say no, and tell of it. Return for how many seconds nobody shall be answered then."""
        if replica.refusals is None:
            return 0.0
        now = time.monotonic()
        self._tell_refused(replica, replica.refusals.answer(now))
        return replica.refusals.pause_seconds(now)

    def _tell_rest(self, replica: Replica) -> None:
        """It ends: tell what it was refused and nobody heard of yet."""
        if replica.refusals is not None:
            self._tell_refused(replica, replica.refusals.rest())

    def _tell_refused(self, replica: Replica, refusals: list[Refusal]) -> None:
        for refusal in refusals:
            self._record("refused", {**_names(replica), **refusal._asdict()})

    def on_collapse(self, reaped: int = 0) -> None:
        """Process 1 went without being asked: a failure of the node, whatever the replicas' exits look like."""
        if not self.over:
            self._end("collapsed", reaped)

    def _end(self, reason: str, reaped: int = 0) -> None:
        self.over = True
        running = list(self.replicas.running.values())
        for replica in running:
            if replica.pid == reaped:
                continue
            # Reap before the place is closed: process 1 cannot end while a process of its namespace is unreaped.
            os.kill(replica.pid, signal.SIGKILL)
            os.waitpid(replica.pid, 0)
        self.replicas.drop_ahead()
        self._launcher.close()
        for replica in running:
            self._tell_rest(replica)
            self.replicas.end(replica)
        if self._isolated is None:
            kill_descendants(os.getpid(), set())
        self.replicas.remove_groups()
        self._record("ended", {"reason": reason})

    def abandon(self) -> None:
        """Undo a half-built sandbox."""
        self.over = True
        self.replicas.drop_ahead()
        self._launcher.close()
        self.replicas.remove_groups()

    def _record(self, kind: str, fields: dict[str, Any]) -> Reply:
        event = self.history.append(kind, fields)
        self.announce(event, self.history.size)
        return event


def _launcher(config: dict[str, Any], place: Callable[[int], None]) -> Launcher:
    if config["backend"] == "docker":
        return ContainerLauncher(config, place)
    return GuardedLauncher(config, place) if config["backend"] == "gvisor" else PlainLauncher()


def _to_nobody(event: Reply, offset: int) -> None:
    """Until somebody can hear."""


def _names(replica: Replica) -> dict[str, Any]:
    return {"component": replica.component, "replica": replica.number}
