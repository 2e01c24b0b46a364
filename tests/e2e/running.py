"""A whole stack in a test: started and ended by its own commands, its services killed by their pids."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
from tidegate.client import Client, EventFilter, Unavailable
from tidegate_local.demo.observed import Entry
from tidegate_local.home import Home, StackRecord

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "cartpole"
COMMAND_SECONDS_MAX = 150.0
POLL_SECONDS = 0.1
# Both jobs need 1100 thousandths of a CPU, so they never fit beside each other, whatever the machine has.
NODE_CPU_MILLIS = 2000
# What the jobs train: so little that their start takes longer, so much that the low one is in the midst of it when the
# high one comes.
STEPS = 256
UPDATES = 6
HIGH_UPDATES = 1
PAGE = 1000
LOG_LINES = 15
SANDBOX = ("SandboxStarted", "SandboxExited")
ENDED = frozenset({"completed", "failed", "cancelled", "rejected"})

JsonObject = dict[str, Any]


def command(
    home: Home, *argv: str, check: bool = True, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of the installed commands against the stack in `home`."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name(argv[0])), *argv[1:]],
        env={**os.environ, **(environment or {}), "TIDEGATE_HOME": str(home.root)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )
    if check and done.returncode:
        raise AssertionError(f"{' '.join(argv)} exited {done.returncode}\n{done.stdout}\n{done.stderr}\n{logs(home)}")
    return done


def logs(home: Home) -> str:
    """Return the end of every log, for the message of a test that fails."""
    ends = []
    for file in sorted(home.logs_dir.glob("*.log")):
        lines = [line for line in file.read_text(errors="replace").splitlines() if '"event": "request"' not in line]
        ends.append(f"--- {file.name}\n" + "\n".join(lines[-LOG_LINES:]))
    return "\n".join(ends)


class RunningStack:
    """One stack, up."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.ended = False
        self.client = Client(self.record.gateway_url)

    @classmethod
    def start(cls, root: Path, *options: str, environment: Mapping[str, str] | None = None) -> RunningStack:
        """Bring a stack up and return when it is ready; `environment` is what its services are told besides."""
        home = Home(root)
        argv = ("up", "--home", str(root), "--cpu-millis", str(NODE_CPU_MILLIS), "--json", *options)
        command(home, "tidegate", *argv, environment=environment)
        return cls(home)

    @property
    def record(self) -> StackRecord:
        """Return what the stack says of itself now."""
        record = self.home.read_record()
        assert record is not None
        return record

    def end(self) -> list[JsonObject]:
        """Take the stack down and return what is left of it."""
        self.ended = True
        self.client.close()
        done = command(self.home, "tidegate", "down", "--home", str(self.home.root), "--json", check=False)
        left: list[JsonObject] = json.loads(done.stdout)["leftovers"]
        return left

    def kill(self, service: str) -> None:
        """Kill a service where it stands, and return when the supervisor has started it again."""
        killed = self.record.services[service].pid
        os.kill(killed, signal.SIGKILL)
        self.until(lambda: self.record.services[service].pid not in {0, killed}, f"{service} started again", 30)

    def submit(self, file: str, updates: int, *options: str) -> str:
        """Submit the example, to run `updates` updates whatever it reaches, and return the job's id."""
        spec = json.loads((EXAMPLE / file).read_text())
        learner = next(component for component in spec["components"] if component["kind"] == "learner")
        budget = ("--max-updates", str(updates), "--steps", str(STEPS))
        learner["command"] = ["python", "learner.py", "--quick", *budget, *options]
        spec["isolation"] = self.record.level
        return self.client.submit(spec, workdir=EXAMPLE).job_id

    def submit_main_job(self) -> tuple[str, str]:
        """Submit the low job, and once it has learnt something the high one, which does not fit beside it."""
        low = self.submit("job.json", UPDATES)
        self.until(lambda: self.step(low) >= 1, "the low job's first update")
        return low, self.submit("job-high.json", HIGH_UPDATES)

    def until(self, condition: Callable[[], object], what: str, seconds: float = 240.0) -> None:
        """Wait until `condition` holds; while a service is away it does not."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except (Unavailable, httpx.TransportError):
                pass  # a service was killed and comes back: what the test waits for will show
            if time.monotonic() > deadline:
                raise AssertionError(f"not seen within {seconds:g} s: {what}\n{self.story()}\n{logs(self.home)}")
            time.sleep(POLL_SECONDS)

    def completed(self, *jobs: str) -> list[JsonObject]:
        """Wait until the jobs have completed; return them."""

        def all_ended() -> bool:
            states = {self.client.job(job)["state"] for job in jobs}
            assert not states & {"failed", "cancelled", "rejected"}, f"{states}\n{self.story()}\n{logs(self.home)}"
            return states == {"completed"}

        self.until(all_ended, f"{jobs} completed")
        return [self.client.job(job) for job in jobs]

    def events(self, *kinds: str, job: str | None = None) -> list[Entry]:
        """Return the journal's events of these kinds, void ones left out."""
        found: list[Entry] = []
        params = {**EventFilter(job=job, kinds=kinds).params(), "after": "0", "limit": str(PAGE)}
        while True:
            answer = httpx.get(f"{self.record.gateway_url}/v1/events", params=params, timeout=10)
            answer.raise_for_status()
            page = answer.json()
            found += msgspec.convert(page["events"], list[Entry])
            if page.get("next") is None:
                return [entry for entry in found if not entry.void]
            params["after"] = page["next"]

    def is_idle(self) -> bool:
        """Return whether it runs, and every job in it has ended."""
        try:
            return not self.ended and {job["state"] for job in self.client.jobs()} <= ENDED
        except (Unavailable, httpx.TransportError):
            return False

    def step(self, job: str) -> int:
        """Return the job's last step that was seen."""
        return self.client.job(job)["step"] or 0

    def story(self) -> str:
        """Return the journal in short, for the message of a test that fails."""
        try:
            entries = self.events()
        except (httpx.HTTPError, httpx.TransportError) as error:
            return f"no story: {error!r}"
        return "\n".join(
            f"{entry.seq}.{entry.index} {entry.job_id} {entry.kind} attempt={entry.attempt} {str(entry.data)[:160]}"
            for entry in entries[-60:]
        )

    def verify(self) -> JsonObject:
        """Recompute history; it must be equal."""
        report: JsonObject = json.loads(command(self.home, "tidegate", "history", "verify", "--json").stdout)
        assert report["ok"]
        assert report["decisions_verified"] == report["decisions"] > 0
        return report

    def assert_nothing_ran_twice(self, *jobs: str) -> None:
        """No attempt of these jobs was placed or started twice, and no two sandboxes of them were alive at once."""
        entries = [entry for entry in self.events("JobPlaced", *SANDBOX) if entry.job_id in jobs]
        placed = [(entry.job_id, entry.attempt) for entry in entries if entry.kind == "JobPlaced"]
        started = [(entry.job_id, entry.attempt, entry.rank) for entry in entries if entry.kind == "SandboxStarted"]
        assert {job for job, _, _ in started} == set(jobs)
        assert len(placed) == len(set(placed)), self.story()
        assert len(started) == len(set(started)), self.story()
        alive: set[tuple[str, int | None]] = set()
        for entry in entries:
            if entry.kind not in SANDBOX:
                continue
            key = (entry.job_id, entry.attempt)
            if entry.kind == "SandboxStarted":
                alive.add(key)
                assert len(alive) == 1, self.story()
            else:
                alive.discard(key)
