"""What happens in each recorded journal: real runs of real processes, short, with something going wrong in most."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable

from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import RestartRule
from tidegate_events.subjects import fact

from tests.golden.stage import TENANT, Stage, job_spec

LEASE_OVER_SECONDS = 2.5
PHASES_SCRIPT = """
import time, tidegate
job = tidegate.init()
for name in ("sampling", "learning", "sampling"):
    with job.phase(name):
        time.sleep(2.5)
job.finish(result={"rounds": 3})
"""


async def preemption_storm(stage: Stage) -> None:
    """Four jobs fill two nodes; three of higher priority, one after another, push them out; all come back and end."""
    await stage.scheduler("s1")
    for name in ("n1", "n2"):
        await stage.node(name, 2000)
    low = [await stage.submit(f"j-low{n}", job_spec("sleep", "3", priority=n % 2)) for n in range(4)]
    await stage.until_count(e.JobStarted, 4)
    high = [
        await stage.submit(f"j-high{n}", job_spec("sleep", "1", cpu=1000 * (1 + n % 2), priority=5 + n))
        for n in range(3)
    ]
    await stage.until_ended(*low, *high)


async def node_loss(stage: Stage) -> None:
    """A node dies with its agent, is given up, and comes back with what still runs on it."""
    await stage.scheduler("s1")
    await stage.node("n1", 1000)
    await stage.node("n2", 2000)
    jobs = [await stage.submit(f"j-{n}", job_spec("sleep", "14", cpu=1000)) for n in range(3)]
    await stage.until_count(e.JobStarted, 3)
    stage.kill9("n2")
    await stage.until_count(e.NodeLost)
    await stage.node("n2", 2000)
    await stage.until_ended(*jobs)


async def leader_change(stage: Stage) -> None:
    """The leader is killed, then the next one is stopped past its lease and continued, while jobs come and go."""
    await stage.scheduler("s1")
    await stage.scheduler("s2")
    await stage.node("n1", 2000)
    first = await stage.submit("j-first", job_spec("sleep", "4"))
    await stage.until_count(e.JobStarted, 1)
    stage.kill9("s1")
    second = await stage.submit("j-second", job_spec("sleep", "1"))
    await stage.until_count(e.LeaderElected, 2)
    await stage.until_count(e.JobStarted, 1, job=second)
    await stage.scheduler("s1")
    stage.send("s2", signal.SIGSTOP)
    third = await stage.submit("j-third", job_spec("sleep", "1"))
    await asyncio.sleep(LEASE_OVER_SECONDS)
    await stage.until_count(e.LeaderElected, 3)
    stage.send("s2", signal.SIGCONT)
    await stage.until_ended(first, second, third)


async def gang(stage: Stage) -> None:
    """A gang waits until there is room for all of it, loses a member to its own fault, is tried again, and ends."""
    await stage.scheduler("s1")
    await stage.node("n1", 2000)
    await stage.node("n2", 1000)
    blocker = await stage.submit("j-blocker", job_spec("sleep", "2", cpu=1500))
    await stage.until_count(e.JobStarted, 1)
    script = 'test "$TIDEGATE_ATTEMPT" = 2 || test "$TIDEGATE_RANK" != 1 || exit 7; sleep 2'
    retry = RestartRule(max_attempts=2, backoff_seconds=1)
    together = await stage.submit("j-gang", job_spec("sh", "-c", script, gang_size=3, restart=retry, priority=-1))
    await stage.until_ended(blocker, together)


async def resize(stage: Stage) -> None:
    """A job whose phases need much and little shares a node with one that takes what is lent to it."""
    await stage.scheduler("s1")
    await stage.node("n1", 3000)
    phases = {"default": (1000, 1000), "sampling": (500, 1000), "learning": (2000, 2500)}
    changing = await stage.submit("j-phases", job_spec("python3", "-c", PHASES_SCRIPT, phases=phases, priority=1))
    taking = await stage.submit("j-taking", job_spec("sleep", "10", phases={"default": (500, 3000)}))
    await stage.until_count(e.PhaseChanged, 3)
    await stage.until_ended(changing, taking)


async def poison(stage: Stage) -> None:
    """Frames that claim what their writers may not, come late, twice or absurd, between those of an honest job."""
    await stage.scheduler("s1")
    await stage.node("n1", 2000)
    honest = await stage.submit("j-honest", job_spec("sleep", "4"))
    await stage.until_count(e.JobStarted, 1)
    at_ns = time.time_ns()
    about = {"at_ns": at_ns, "tenant": TENANT, "job": honest}
    member = {"attempt": 1, "rank": 0, "node": "n1"}
    wrong_kind = e.JobCompleted(id="p-1", **about, revision=2, attempt=1, result={"forged": True})  # type: ignore[arg-type]
    await stage.say("node", "n9", 0, wrong_kind)
    lost = e.NodeLost(id="p-2", at_ns=at_ns, node="n1", incarnation=1)
    await stage.say("gateway", "g9", 0, lost)
    others_node = e.SandboxExited(id="p-3", **about, **member, outcome="failed", exit_code=1)  # type: ignore[arg-type]
    await stage.say("node", "n9", 1, others_node)
    await stage.say("node", "n1", 10**9, others_node, on=fact("gateway", "g9"))
    old_attempt = e.SandboxExited(
        id="p-5", **about, attempt=99, rank=0, node="n9", outcome="completed", result={"big": 10**18, "text": "é\u2028"}
    )  # type: ignore[arg-type]
    await stage.say("node", "n9", 2, old_attempt)
    elected = e.LeaderElected(id="p-6", at_ns=at_ns, epoch=10**6, instance="n9")
    await stage.say("metrics", "m9", 0, elected)
    submitted = next(r for r in stage.frames if isinstance(r.frame.events[0], e.JobSubmitted)).frame.events[0]
    await stage.say("gateway", "g9", 1, submitted)
    started = next(r for r in stage.frames if isinstance(r.frame.events[0], e.SandboxStarted))
    await stage.repeat(started)
    huge = job_spec("true", cpu=10**12, priority=2**31 - 1, time_limit_seconds=10**9, expected_seconds=10**9)
    giant = await stage.submit("j-giant", huge)
    many = await stage.submit("j-many", job_spec("true", cpu=0, gang_size=10_000, priority=-(2**31)))
    joined = e.NodeJoined(
        id="p-7", at_ns=2**62, node="n9", incarnation=2**53, capacity=Resources(-5, -5), levels=(), images={}
    )
    await stage.say("node", "n9", 3, joined)
    await stage.until_ended(honest, giant, many)


SCENARIOS: dict[str, Callable[[Stage], Awaitable[None]]] = {
    "preemption-storm": preemption_storm,
    "node-loss": node_loss,
    "leader-change": leader_change,
    "gang": gang,
    "resize": resize,
    "poison": poison,
}
