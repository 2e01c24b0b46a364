"""The jobs of a chaos run: tiny programs that write down that they ran, and a client that submits until it is answered.

Each member appends to a file of its own, named by attempt and rank: who began, every sign of life, how it ended. A
command that was executed twice has begun twice in its file.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tidegate_local.chaos import image
from tidegate_local.chaos.schedule import Planned

ANSWER_SECONDS_MAX = 4.0
RETRY_SECONDS = 0.3
SUBMIT_SECONDS_MAX = 90.0
MEMORY_MIB = 64
GRACE_SECONDS = 3
ATTEMPTS_MAX = 20
JOURNAL_FULL = "journal_full"
FILLER_VARIABLES = 6
FILLER_CHARS = 16_000
FILLER_CPU_MILLIS = 100

JOB = """\
exec 9>>"$TIDEGATE_OUTPUT_RECORD/$TIDEGATE_ATTEMPT-$RANK"
say() { printf '%s %s\\n' "$1" "${EPOCHREALTIME/./}" >&9; }
trap 'say leave; exit 75' TERM
say begin
end=$(( ${EPOCHREALTIME/./} + $1 ))
while (( ${EPOCHREALTIME/./} < end )); do sleep 0.1; say alive; done
say end
"""

Spec = dict[str, Any]


def record_directory(outputs: Path, name: str) -> Path:
    """Return where the members of the job `name` write; made so that those of several nodes can."""
    directory = outputs / name
    directory.mkdir(exist_ok=True)
    directory.chmod(0o777)
    return directory


def spec_of(planned: Planned, outputs: Path, level: str) -> Spec:
    """Return the job as it is submitted."""
    return {
        "name": planned.name,
        "tenant": "chaos",
        "isolation": level,
        "image": image.NAME,
        "command": ["bash", "-c", JOB, "job", str(round(planned.seconds * 1_000_000))],
        "resources": {"cpu_millis": planned.cpu_millis, "memory_mib": MEMORY_MIB},
        "priority": planned.priority,
        "gang_size": planned.members,
        "preemption": {"grace_seconds": GRACE_SECONDS},
        "restart": {"max_attempts": ATTEMPTS_MAX, "backoff_seconds": 1},
        "outputs": [{"name": "record", "source": str(record_directory(outputs, planned.name))}],
    }


def filler(number: int, seed: int, outputs: Path, level: str) -> Spec:
    """Return a small job whose specification takes about 100 kB of the journal, which no compression shrinks much."""
    draw = random.Random(f"{seed}/filler/{number}")
    planned = Planned(
        at_seconds=0,
        name=f"filler-{number}",
        kind="filler",
        cpu_millis=FILLER_CPU_MILLIS,
        seconds=0.1,
        priority=5,
        members=1,
    )
    text = {f"FILLER_{n}": draw.randbytes(FILLER_CHARS // 2).hex() for n in range(FILLER_VARIABLES)}
    return {**spec_of(planned, outputs, level), "env": text}


class Refused(Exception):
    """The gateway refused a job for good: the run itself is wrong."""


class Submitter:
    """Submits jobs under a key of their own, again and again until an answer comes, and keeps what was acknowledged."""

    def __init__(self, gateway_url: str, seed: int) -> None:
        self._client = httpx.AsyncClient(base_url=gateway_url, timeout=ANSWER_SECONDS_MAX)
        self._seed = seed
        self.acked: dict[str, str] = {}
        self.unanswered: set[str] = set()
        self.refusals: Counter[str] = Counter()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def submit(self, spec: Spec, *, until_refused_with: str = "") -> str:
        """Return the job's id once it is acknowledged; "" when no answer came within SUBMIT_SECONDS_MAX.

        Also "" as soon as it is refused with the code `until_refused_with`. Raises Refused.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SUBMIT_SECONDS_MAX
        self.unanswered.add(spec["name"])
        while loop.time() < deadline:
            try:
                answer = await self._client.post(
                    "/v1/jobs",
                    content=msgspec.json.encode(spec),
                    headers={"Idempotency-Key": f"{self._seed}-{spec['name']}", "Content-Type": "application/json"},
                )
            except httpx.TransportError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if answer.is_success:
                return self._acknowledged(spec["name"], answer)
            code = self._refused(spec["name"], answer)
            if code == until_refused_with:
                return ""
            await asyncio.sleep(RETRY_SECONDS)
        return ""

    def _acknowledged(self, name: str, answer: httpx.Response) -> str:
        job: str = answer.json()["job_id"]
        self.acked[name] = job
        self.unanswered.discard(name)
        return job

    def _refused(self, name: str, answer: httpx.Response) -> str:
        """Return why it was refused for now. Raises Refused for anything else."""
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            raise Refused(f"{name}: {answer.status_code} {answer.text[:500]}")
        body = answer.json()
        code = str(body.get("code"))
        self.refusals[code] += 1
        if not (body.get("problem") and body.get("accepted")):
            raise Refused(f"{name}: a 503 that does not say what is the matter: {answer.text[:500]}")
        return code

    async def states(self, names: Iterable[str]) -> dict[str, str]:
        """Return the states of these acknowledged jobs, as far as the gateway gives them in time."""

        async def ask(name: str) -> None:
            try:
                answer = await self._client.get(f"/v1/jobs/{self.acked[name]}")
            except httpx.TransportError:
                return
            if answer.is_success:
                found[name] = answer.json()["state"]

        found: dict[str, str] = {}
        async with asyncio.TaskGroup() as asking:
            for name in names:
                asking.create_task(ask(name))
        return found
