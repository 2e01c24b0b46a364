"""The main job, played through the client as a user would: a low job, a high one that does not fit beside it, both to
the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
from tidegate.client import Client, ClientError

from tidegate_local.demo import kernel
from tidegate_local.demo.observed import Entry, JsonObject, Observed
from tidegate_local.home import Home

ENDED = frozenset({"completed", "failed", "cancelled", "rejected"})
POLL_SECONDS = 0.2
SCENARIO_SECONDS_MAX = 210.0
HEARTBEAT_SECONDS = 3.0
# The low job has learnt something by then, so that losing it would show.
UPDATES_BEFORE_HIGH = 3
EVENTS_PAGE = 1000
HTTP_SECONDS_MAX = 10.0

Tell = Callable[[str, JsonObject], None]


class ScenarioError(Exception):
    """The run did not come to its end; the text says what was waited for."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Where the scenario plays."""

    gateway_url: str
    level: str
    example: Path
    home: Home
    low: str = "job.json"
    high: str = "job-high.json"


class Scenario:
    """One run. `tell(kind, facts)` is called for whatever a watcher may want to see."""

    def __init__(self, stage: Stage, tell: Tell) -> None:
        self._stage = stage
        self._tell = tell
        self._client = Client(stage.gateway_url)
        self._http = httpx.Client(base_url=stage.gateway_url, timeout=HTTP_SECONDS_MAX)
        self._cursor = "0"
        self._began = time.monotonic()
        self._told_at = self._began
        self.observed = Observed(level=stage.level, low="", high="", gateway_url=stage.gateway_url)

    def run(self) -> Observed:
        """Play it to the end. Raises ScenarioError when it does not get there in time."""
        self.observed.low = self._submit(self._stage.low)
        self._watch(self._low_has_learnt, f"{UPDATES_BEFORE_HIGH} updates of the low job and its first quota change")
        self.observed.high = self._submit(self._stage.high)
        self._watch(self._both_ended, "the end of both jobs")
        self.observed.wall_seconds = time.monotonic() - self._began
        for job in (self.observed.low, self.observed.high):
            self.observed.jobs[job] = self._client.job(job)
        self._read_events()
        return self.observed

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._http.close()

    def _submit(self, file: str) -> str:
        path = self._stage.example / file
        spec = json.loads(path.read_text())
        spec["isolation"] = self._stage.level  # `unisolated` only because the operator and the caller said so
        answer = self._client.submit(spec, workdir=self._stage.example)
        self._tell("submitted", {"job": answer.job_id, "name": spec["name"], "trace_id": answer.trace_id})
        return answer.job_id

    def _low_has_learnt(self) -> bool:
        steps = [entry.data.get("step") or 0 for entry in self.observed.of(self.observed.low, "PhaseChanged")]
        quotas = self.observed.of(self.observed.low, "QuotaApplied")
        return max(steps, default=0) >= UPDATES_BEFORE_HIGH and bool(quotas)

    def _both_ended(self) -> bool:
        return all(self._state(job) in ENDED for job in (self.observed.low, self.observed.high))

    def _state(self, job: str) -> str:
        return str(self.observed.jobs.get(job, {}).get("state", "pending"))

    def _watch(self, is_reached: Callable[[], bool], goal: str) -> None:
        while True:
            self._look()
            if is_reached():
                return
            early = [job for job in (self.observed.low,) if self._state(job) in ENDED and not self.observed.high]
            if early:
                raise ScenarioError(f"the low job is {self._state(early[0])} before {goal} was seen")
            if time.monotonic() - self._began > SCENARIO_SECONDS_MAX:
                raise ScenarioError(f"not seen within {SCENARIO_SECONDS_MAX:.0f} s: {goal}")
            time.sleep(POLL_SECONDS)

    def _look(self) -> None:
        self._sample_kernel()
        try:
            self._read_events()
            for job in filter(None, (self.observed.low, self.observed.high)):
                self.observed.jobs[job] = self._client.job(job)
        except (httpx.TransportError, ClientError) as error:
            self._tell("gateway_away", {"error": str(error)})
            return
        if time.monotonic() - self._told_at > HEARTBEAT_SECONDS:
            self._told_at = time.monotonic()
            self._tell("progress", dict(self.observed.jobs))

    def _sample_kernel(self) -> None:
        for job in filter(None, (self.observed.low, self.observed.high)):
            seen = kernel.quotas(self._stage.home, job, ("simulator", "learner"))
            self.observed.kernel.setdefault(job, set()).update(seen)

    def _read_events(self) -> None:
        while True:
            params = {"after": self._cursor, "limit": str(EVENTS_PAGE)}
            answer = self._http.get("/v1/events", params=params)
            if answer.status_code != httpx.codes.OK:
                raise httpx.TransportError(f"{answer.status_code} from /v1/events: {answer.text[:200]}")
            page = answer.json()
            entries = msgspec.convert(page["events"], list[Entry])
            for entry in entries:
                self.observed.events.append(entry)
                self._tell("event", {"entry": entry})
            if entries:
                self._cursor = f"{entries[-1].seq}.{entries[-1].index}"
            if page.get("next") is None:
                return
