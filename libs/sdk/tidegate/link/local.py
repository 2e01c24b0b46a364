"""Without an agent: the same words go to a log of JSON lines, so that a laptop run can be read afterwards."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from tidegate.checkpoint.nodepart import NotJoinedError
from tidegate.environment import Identity
from tidegate.link.base import Patience, ReportCall, Resume
from tidegate.link.reports import WINDOW_SECONDS, Reports

LOG_FILE = "log.jsonl"


class LocalLink:
    """Implements link.base.Link with a file. Reports are merged as they are on their way to an agent."""

    def __init__(self, identity: Identity, directory: Path) -> None:
        self._identity = identity
        self._path = directory / LOG_FILE
        self._lock = threading.Lock()
        self._reports = Reports()
        self._seq = 0
        self._window_ends = 0.0

    def report_names_change(self) -> None:
        """Keep what was reported so far: the next call names other metrics."""
        self._reports.merge()

    @property
    def dropped_reports(self) -> int:
        """Return 0: the log takes every window."""
        return self._reports.dropped

    @property
    def replicas(self) -> Mapping[str, int]:
        """Return nothing: nobody scales a local run."""
        return {}

    def start(self) -> Resume:
        """Make the directory and say in the log who begins."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        identity = self._identity
        self._write(
            {
                "kind": "hello",
                "at_ns": time.time_ns(),
                "job": identity.job,
                "component": identity.component,
                "replica": identity.replica,
                "rank": identity.rank,
                "seed": identity.seed,
                "trace_id": identity.trace_id,
            }
        )
        return Resume(False, None)

    def control(self, message: Dict[str, Any]) -> int:
        """Log a message."""
        self._log_reports()
        with self._lock:
            self._seq += 1
            seq = self._seq
        self._write({**message, "seq": seq})
        return seq

    def phase(self, name: Optional[str], step: Optional[int]) -> None:
        """Log a phase change."""
        self.control({"kind": "phase", "at_ns": time.time_ns(), "phase": name, "step": step})

    def ask(self, name: str, step: Optional[int], patience: Patience) -> Mapping[str, str]:
        """Return the devices there are: nobody else needs them."""
        return self._identity.devices

    def joined(self, seq: int, key: Tuple[str, str], seconds: float) -> Dict[str, Any]:
        """Raise NotJoinedError: a local run is on no other node."""
        raise NotJoinedError("a run without an agent has no other nodes: nobody joins what they hold")

    def not_freed(self, message: Dict[str, Any]) -> None:
        """Log it."""
        self.control(message)

    @property
    def report(self) -> Callable[[ReportCall], None]:
        """Return the function that takes metrics; they are logged with the first call after their window."""
        return self._report

    def _report(self, call: ReportCall) -> None:
        self._reports.add(call)
        now = time.monotonic()
        if now >= self._window_ends:
            self._window_ends = now + WINDOW_SECONDS
            self._log_reports()

    def wait_acknowledged(self, seq: int, seconds: float) -> bool:
        """Return True: what was logged is done."""
        return True

    def close(self, seconds: float) -> bool:
        """Log what is left."""
        self._log_reports()
        return True

    def _log_reports(self) -> None:
        self._reports.close_window()
        while report := self._reports.take():
            self._write(report)

    def _write(self, message: Dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":")) + "\n"
        with self._lock, open(self._path, "a", encoding="utf-8") as file:
            file.write(line)
