"""A real bus, real schedulers and node agents, to record journals from: processes that a script starts and kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nats.aio.client import Client
from tidegate_events import bus, subjects, trace
from tidegate_events import events as e
from tidegate_events.frame import Frame, Writer, encode
from tidegate_events.journal.base import Appended, Recorded
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, PreemptionRule, ResourceRange
from tidegate_local import streams

from tests.support.nats import NatsServer

BIN = Path(sys.executable).parent
JOURNAL_BYTES = 64 * 1024**2
WAIT_SECONDS_MAX = 60
POLL_SECONDS = 0.05
STOP_SECONDS_MAX = 20
POLICY = {"node_lost_seconds": 2, "inadmissible_after_seconds": 1, "retry_backoff_seconds": 1}
TENANT = "lab-a"
IMAGE = "tiny"


def job_spec(
    *command: str, cpu: int = 1000, phases: dict[str, tuple[int, int]] | None = None, **more: object
) -> JobSpec:
    """Return a job of one process; `phases` give the least and the most CPU in each, in thousandths."""
    ranges = phases or {"default": (cpu, cpu)}
    resources = {
        name: ResourceRange(minimum=Resources(least, 64), maximum=Resources(most, 64))
        for name, (least, most) in ranges.items()
    }
    component = Component(name="main", command=command, resources=resources)
    fields: dict[str, object] = {"preemption": PreemptionRule(grace_seconds=3), **more}
    return JobSpec(
        name="recorded", tenant=TENANT, submitter="recorder", image=IMAGE, isolation="unisolated",
        components=(component,), **fields,  # type: ignore[arg-type]
    )  # fmt: skip


class Stage:
    """Everything that one recording needs; `close` ends all of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server = NatsServer(directory)
        self.frames: list[Recorded] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._nodes: list[str] = []
        self._submissions = 0
        self.client: Client
        self.journal: NatsJournal

    async def open(self) -> None:
        """Start the bus and make its streams."""
        await self.server.start()
        self.client = await bus.connect(bus.BusSettings(url=self.server.url))
        await streams.create(self.client, journal_bytes=JOURNAL_BYTES, replicas=1)
        self.journal = NatsJournal(self.client)

    async def close(self) -> None:
        """End every process, and what ran on the nodes."""
        for name in list(self._processes):
            self.end(name)
        for node in self._nodes:
            subprocess.run(  # noqa: ASYNC221 - a moment, when nothing else is to be done
                [BIN / "tidegate-executor", "sweep", "--data-dir", self.directory / node], check=True, env=self._env(),
                stdout=subprocess.DEVNULL, timeout=WAIT_SECONDS_MAX,
            )  # fmt: skip
        await self.client.close()
        self.server.stop()

    # ---- processes ----

    async def scheduler(self, instance: str) -> None:
        """Start a scheduler and wait until it is ready."""
        variables = {"TIDEGATE_INSTANCE": instance, "TIDEGATE_NODE_SILENCE_SECONDS": "2"}
        await self._start(instance, ["tidegate-scheduler"], variables | {"TIDEGATE_POLICY": json.dumps(POLICY)})

    async def node(self, name: str, cpu_millis: int) -> None:
        """Start a node agent with so much CPU and wait until it has joined."""
        if name not in self._nodes:
            self._nodes.append(name)
        layer = self.directory / IMAGE
        layer.mkdir(exist_ok=True)
        (layer / "README").write_text("The image of recorded journals: jobs run plain commands of the machine.\n")
        home = self.directory / name
        settings = {
            "node": name,
            "data_dir": str(home),
            "hot_dir": str(self.directory / "hot"),
            "secrets_dir": str(self.directory / "secrets"),
            "offer_trusted": False,
            "offer_unisolated": True,
            "offer_host_image": False,
            "cpu_millis": cpu_millis,
            "memory_mib": 1024,
            "images": {IMAGE: {"layers": [{"source": str(layer), "target": "/opt/tiny"}]}},
        }
        file = self.directory / f"{name}.json"
        file.write_text(json.dumps(settings))
        await self._start(name, ["tidegate-executor", "--config", str(file)], {})

    async def _start(self, name: str, command: list[str], variables: dict[str, str]) -> None:
        ready = self.directory / f"{name}.ready"
        ready.unlink(missing_ok=True)
        env = self._env() | variables | {"TIDEGATE_READY_FILE": str(ready)}
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: ASYNC220 - a fork of milliseconds
                [BIN / command[0], *command[1:]], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._processes[name] = process
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not ready.exists():
                if process.poll() is not None:
                    raise RuntimeError((self.directory / f"{name}.log").read_text()[-2000:])
                await asyncio.sleep(POLL_SECONDS)

    def _env(self) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
        return {**clean, "TIDEGATE_BUS_URL": self.server.url}

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one of the processes."""
        os.kill(self._processes[name].pid, number)

    def kill9(self, name: str) -> None:
        """End a process where it stands."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(STOP_SECONDS_MAX)

    def end(self, name: str) -> None:
        """End a process in good order, if it does."""
        process = self._processes.pop(name)
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_SECONDS_MAX)

    # ---- what is said and seen ----

    async def submit(self, job: str, spec: JobSpec) -> str:
        """Append a submission as the gateway does."""
        at_ns = time.time_ns()
        submitted = e.JobSubmitted(
            id=f"gateway-g1-1-{self._submissions}-0", at_ns=at_ns, tenant=TENANT, job=job,
            traceparent=trace.traceparent(job), spec=spec,
        )  # fmt: skip
        await self.say("gateway", "g1", self._submissions, submitted)
        self._submissions += 1
        return job

    async def say(self, service: str, instance: str, number: int, *events: e.AnyEvent, on: str = "") -> None:
        """Append a frame, on the subject of its writer or on another one."""
        writer = Writer(service, instance, 1, number)  # type: ignore[arg-type]
        answer = await self.journal.append(on or subjects.fact(service, instance), Frame(writer, events))
        assert isinstance(answer, Appended)

    async def repeat(self, recorded: Recorded) -> None:
        """Write a frame a second time, as a spool does whose acknowledgement came too late for the bus to know it."""
        await self.client.request(recorded.subject, encode(recorded.frame), timeout=WAIT_SECONDS_MAX)

    async def until(self, seen: Callable[[list[Recorded]], bool], what: str) -> None:
        """Read on until `seen` holds of all frames."""
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                while not seen(self.frames):
                    end = await self.journal.end()
                    async for recorded in self.journal.read(len(self.frames), end):
                        self.frames.append(recorded)
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            kinds = [f"{r.seq} {type(x).__name__}" for r in self.frames[-20:] for x in r.frame.events]
            raise RuntimeError(f"{what} did not happen in {WAIT_SECONDS_MAX} s; the last were {kinds}") from None

    async def until_count(self, kind: type[e.Event], count: int = 1, **fields: object) -> None:
        """Wait until so many events of that kind, with these fields, are in the journal."""

        def seen(frames: list[Recorded]) -> bool:
            found = [x for r in frames for x in r.frame.events if isinstance(x, kind)]
            matching = [x for x in found if all(getattr(x, name) == value for name, value in fields.items())]
            return len(matching) >= count

        await self.until(seen, f"{kind.__name__} {fields} {count} times")

    async def until_ended(self, *jobs: str) -> None:
        """Wait until these jobs have ended for good."""
        ends = (e.JobCompleted, e.JobFailed, e.JobCancelled, e.JobRejected)

        def seen(frames: list[Recorded]) -> bool:
            decided = [r.frame.events for r in frames if r.frame.writer.service == "scheduler"]
            return set(jobs) <= {x.job for events in decided for x in events if isinstance(x, ends)}

        await self.until(seen, f"the end of {', '.join(jobs)}")
