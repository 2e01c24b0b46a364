"""The way to the node agent: one background thread that owns the socket, and comes back when the agent does."""

from __future__ import annotations

import logging
import platform
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from tidegate import protocol
from tidegate.environment import Identity
from tidegate.errors import FrameError, JobClosedError, PhaseRefusedError, ProtocolMismatchError, TidegateError
from tidegate.link.asks import AskGate
from tidegate.link.base import Patience, ReportCall, Resume
from tidegate.link.connection import Connection, Wake
from tidegate.link.joins import JoinGate
from tidegate.link.outbox import Outbox
from tidegate.link.phases import PhaseLane
from tidegate.link.reports import WINDOW_SECONDS, Reports
from tidegate.recall import Recall
from tidegate.stop import StopGate
from tidegate.version import VERSION

CONNECT_SECONDS_MAX = 10.0
"""How long init() waits for the agent's welcome."""
WELCOME_SECONDS_MAX = 10.0
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.05, 0.5
UNSENT_BYTES_MAX = 256 * 1024

_log = logging.getLogger("tidegate.link")


class AgentLink:
    """Implements link.base.Link over the agent's unix socket."""

    def __init__(self, identity: Identity, client: str, gate: StopGate, recall: Recall) -> None:
        assert identity.socket is not None
        self._identity = identity
        self._client = client
        self._gate = gate
        self._recall = recall
        self._path = Path(identity.socket)
        self._outbox = Outbox()
        self._phases = PhaseLane(self._outbox.put)
        self._asks = AskGate()
        self._joins = JoinGate()
        self._version = protocol.PROTOCOL_MAX
        self._reports = Reports()
        self._wake = Wake()
        self._welcomed = threading.Event()
        self._closing = threading.Event()
        self._closed = threading.Event()
        self._connected = False
        self._fatal: Optional[TidegateError] = None
        self._resume = Resume(False, None)
        self._replicas: Mapping[str, int] = {}
        self._paused_until = 0.0
        self._close_limit = 0.0
        self._thread = threading.Thread(target=self._run, name="tidegate-link", daemon=True)

    @property
    def report(self) -> Callable[[ReportCall], None]:
        """Return the function that takes metrics; the thread sends them when their window ends."""
        return self._reports.add

    def report_names_change(self) -> None:
        """Keep what was reported so far: the next call names other metrics."""
        self._reports.merge()

    @property
    def dropped_reports(self) -> int:
        """Return how many reports were lost so far."""
        return self._reports.dropped

    @property
    def replicas(self) -> Mapping[str, int]:
        """Return what the agent said last."""
        return self._replicas

    def start(self) -> Resume:
        """Start the thread and wait for the agent's welcome, or go on without it after CONNECT_SECONDS_MAX."""
        self._thread.start()
        if not self._welcomed.wait(CONNECT_SECONDS_MAX):
            _log.warning("the agent does not answer on %s: going on, and trying again all the time", self._path)
        if self._fatal is not None:
            raise self._fatal
        return self._resume

    def control(self, message: Dict[str, Any]) -> int:
        """Queue a control message."""
        self._check()
        if message["kind"] in ("suspended", "finished"):
            self._phases.flush()
        seq = self._outbox.put(message)
        self._wake.set()
        return seq

    def phase(self, name: Optional[str], step: Optional[int]) -> None:
        """Queue a phase change, merged with others where they are too fast or the agent is away."""
        self._check()
        self._phases.change(name, step, direct=self._connected)
        if name is not None:
            self._wake.set()

    def ask(self, name: str, step: Optional[int], patience: Patience) -> Mapping[str, str]:
        """Ask for a phase where this job must, and wait until it is granted."""
        if self._identity.phase_entry != "asked":
            return self._identity.devices
        # The phase before was left: the agent hears that first, so that nothing of it is held while this one waits.
        self._check()
        self._phases.flush()
        seq = self.control({"kind": "ask", "at_ns": time.time_ns(), "phase": name, "step": step})
        try:
            return self._asks.wait((name, seq), patience, self._hindrance)
        except BaseException:
            if not self._closing.is_set() and self._fatal is None:
                self.control({"kind": "ask", "at_ns": time.time_ns(), "phase": None, "step": step})
            raise

    def _hindrance(self, name: str, seq: int) -> Optional[TidegateError]:
        """Return why the phase cannot be waited for any longer, None while it can."""
        if self._fatal is not None:
            return self._fatal
        if self._closing.is_set():
            return JobClosedError(f"phase {name!r} was refused: the job was closed while it was waited for")
        if self._gate.reason is not None:
            return PhaseRefusedError(
                f"phase {name!r} was refused: the job is asked to leave ({self._gate.reason}); save and call "
                "exit_suspended()"
            )
        if (why := self._outbox.refusal(seq)) is not None:
            return PhaseRefusedError(f"phase {name!r} was refused: {why}")
        if self._version < protocol.PROTOCOL_ASKS:
            return ProtocolMismatchError(
                f"phase {name!r} was refused: it must be asked for, and this agent speaks protocol {self._version}; "
                f"{protocol.PROTOCOL_ASKS} is needed"
            )
        return None

    def joined(self, seq: int, key: Tuple[str, str], seconds: float) -> Dict[str, Any]:
        """Wait until the agent says what became of a part; asked again of an agent that comes back."""

        def hindrance() -> Optional[str]:
            if self._fatal is not None:
                return str(self._fatal)
            return self._outbox.refusal(seq)

        return self._joins.wait(key, seconds, self._wake.set, hindrance)

    def not_freed(self, message: Dict[str, Any]) -> None:
        """Say that devices are not handed back; an agent that does not know the word sees the recall unanswered."""
        if self._version >= protocol.PROTOCOL_NOT_FREED:
            self.control(message)

    def wait_acknowledged(self, seq: int, seconds: float) -> bool:
        """Wait until the agent has made the message durable."""
        if self._outbox.wait_acknowledged(seq, seconds):
            return True
        self._check()
        return False

    def close(self, seconds: float) -> bool:
        """Deliver what is queued and leave."""
        if not self._closing.is_set():
            self._reports.close_window()
            if self._fatal is None:
                self._phases.flush()
            self._close_limit = time.monotonic() + seconds
            self._closing.set()
            self._asks.look()
            self._wake.set()
        self._thread.join(seconds + WELCOME_SECONDS_MAX)
        return self._outbox.empty

    def _check(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    # The thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        retry = RETRY_SECONDS_MIN
        while self._fatal is None and not self._may_leave():
            self._joins.rewind()
            try:
                with Connection(self._path, self._wake) as connection:
                    self._converse(connection)
                    retry = RETRY_SECONDS_MIN
            except ProtocolMismatchError as error:
                self._fatal = error
            except (OSError, FrameError) as error:
                if self._connected:
                    _log.info("the agent went away (%s): keeping messages until it is back", error)
                    retry = RETRY_SECONDS_MIN
                self._connected = False
                self._reports.close_window()
                self._wake.wait(retry)
                retry = min(retry * 2, RETRY_SECONDS_MAX)
        self._connected = False
        self._outbox.fail(self._fatal)
        self._asks.look()
        self._welcomed.set()

    def _may_leave(self) -> bool:
        if not self._closing.is_set():
            return False
        return self._outbox.empty or time.monotonic() >= self._close_limit

    def _converse(self, connection: Connection) -> None:
        connection.send(self._hello())
        limit = time.monotonic() + WELCOME_SECONDS_MAX
        window_ends = 0.0
        welcomed = False
        while True:
            for message in connection.exchange(WINDOW_SECONDS):
                if self._handle(connection, message):
                    welcomed = True
            now = time.monotonic()
            if not welcomed:
                if now > limit:
                    raise OSError("no welcome came")
                continue
            if self._may_leave():
                self._leave(connection)
                return
            if now >= window_ends:
                self._reports.close_window()
                window_ends = now + WINDOW_SECONDS
            self._pump(connection, now)

    def _leave(self, connection: Connection) -> None:
        while report := self._reports.take():
            connection.send(report)
        connection.send({"kind": "bye"})
        connection.finish(1.0)

    def _pump(self, connection: Connection, now: float) -> None:
        self._phases.tick()
        while now >= self._paused_until and connection.unsent_bytes < UNSENT_BYTES_MAX:
            frame = self._outbox.next_frame()
            if frame is None:
                break
            connection.send_frame(frame)
        if self._version >= protocol.PROTOCOL_JOINS:
            for message in self._joins.unsaid():
                connection.send(message)
        while connection.unsent_bytes < UNSENT_BYTES_MAX:
            report = self._reports.take()
            if report is None:
                return
            connection.send(report)

    def _hello(self) -> Dict[str, Any]:
        identity = self._identity
        self._outbox.rewind()
        return {
            "kind": "hello",
            "protocol": protocol.protocol_versions(),
            "client": self._client,
            "component": identity.component,
            "replica": identity.replica,
            "pid": self._wake.pid,
            "first_seq": self._outbox.first_seq,
            "stop_group": identity.stop_group,
            "stop_at": self._gate.stop_at,
            "sdk": VERSION,
            "python": platform.python_version(),
        }

    def _handle(self, connection: Connection, message: Dict[str, Any]) -> bool:
        """Act on a message from the agent; return whether it was the welcome."""
        kind = message.get("kind")
        if kind == "welcome":
            self._outbox.acknowledge(message["acked"])
            if not self._welcomed.is_set():
                self._resume = Resume(True, message["resume"])
            self._replicas = message.get("replicas", {})
            self._version = message["protocol"]
            if "hand_back" in message:  # an agent that has just started does not know yet
                self._recall.on_hand_back(message["hand_back"])
            self._connected = True
            self._paused_until = 0.0
            if message.get("stop"):
                connection.send(self._gate.on_stop(message["stop"]))
            self._asks.look()
            self._welcomed.set()
            return True
        if kind == "ack":
            self._outbox.acknowledge(message["seq"])
        elif kind == "stop":
            connection.send(self._gate.on_stop(message))
            self._asks.look()
        elif kind == "granted":
            self._asks.on_granted(message)
        elif kind == "hand_back":
            self._recall.on_hand_back(message["deadline_ns"])
        elif kind == "joined":
            self._joins.on_joined(message)
        elif kind == "replicas":
            self._replicas = message["counts"]
        elif kind == "error":
            self._on_error(message)
        return False

    def _on_error(self, message: Dict[str, Any]) -> None:
        code, seq = message["code"], message.get("seq")
        if code == "protocol_mismatch":
            raise ProtocolMismatchError(message["message"])
        if code == "rate_limited" and seq is not None:
            # The agent takes control messages in order, so what was sent after this one comes again too.
            self._paused_until = time.monotonic() + message.get("retry_after_ms", 100) / 1000
            self._outbox.rewind(seq)
        elif code == "out_of_order":
            if time.monotonic() >= self._paused_until:
                self._outbox.rewind(message["expected"])
        elif code == "rate_limited":
            self._reports.lost(1)
        else:
            _log.warning("the agent refused a message (%s): %s", code, message.get("message"))
            if seq is not None:
                self._outbox.refuse(seq, f"{code}: {message.get('message')}")
                self._asks.look()
