"""The agent as a process on a real bus: plain jobs, jobs that use the SDK, its own death, and what it must not leak."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from tidegate_events import orders, subjects
from tidegate_events.events import (
    CheckpointFailed,
    CheckpointSaved,
    NodeJoined,
    PhaseChanged,
    PlacementRejected,
    Quota,
    QuotaApplied,
    SandboxExited,
    SandboxStarted,
)
from tidegate_events.spec import PathBinding, PreemptionRule
from tidegate_executor.workdirs import READ_SECONDS_MAX

from tests.executor.agent.conftest import NODE, WAIT_SECONDS, Agent, Bus, Scheduler, component, job, until

MakeAgent = Callable[..., Agent]

LEVELS = pytest.mark.parametrize("level", ["unisolated", pytest.param("trusted", marks=pytest.mark.isolation)])


def offering(level: str) -> dict[str, bool]:
    return {"offer_trusted": level == "trusted", "offer_unisolated": level == "unisolated"}


async def logs(client: Client, **question: Any) -> dict[str, Any]:
    answer = await client.request(subjects.ask_node(NODE, "logs"), msgspec.json.encode(question), timeout=5)
    decoded: dict[str, Any] = msgspec.json.decode(answer.data)
    return decoded


@LEVELS
async def test_a_job_of_two_components_runs_and_its_output_outlives_it(
    make_agent: MakeAgent, scheduler: Scheduler, client: Client, level: str
) -> None:
    make_agent(**offering(level))
    joined = await scheduler.joined()
    assert joined.levels == (level,)
    assert joined.images["tiny"].startswith("b3:")
    order = job(
        "two",
        component("sim", "import time; print('simulating', flush=True); time.sleep(60)", kind="simulator", replicas=2),
        component("learn", "import os; print('seed', os.environ['TIDEGATE_SEED'])", kind="learner"),
        level=level,
        seed=7,
    )
    scheduler.want(order)
    exited = await scheduler.exit_of("two")
    assert (exited.outcome, exited.exit_code) == ("completed", 0)
    started = await scheduler.first(SandboxStarted, "two")
    assert (started.level, started.image_digest) == (level, joined.images["tiny"])
    answer = await logs(client, job="two", attempt=1, component="learn")
    assert base64.b64decode(answer["data"]).startswith(b"seed ")
    assert answer["components"] == ["sim", "learn"]
    assert (await logs(client, job="two", component="nobody"))["error"].startswith("there is no nobody.0")
    assert len(await scheduler.events(SandboxExited)) == 1


SDK_JOB = """
import time, tidegate
job = tidegate.init()
step = 0
if checkpoint := job.latest_checkpoint():
    step = checkpoint.load("state")["state"]["step"]
    print("resumed at", step, flush=True)
with job.phase("sampling"):
    while not job.should_stop():
        step += 1
        job.report({"loss": 1.0 / step}, step=step, progress=0.1)
        time.sleep(0.01)
        if checkpoint and step > checkpoint.step + 5:
            job.finish(result={"steps": step})
            raise SystemExit(0)
job.publish("Leaving", step=step)
job.save(state={"step": step}, step=step)
job.exit_suspended()
"""


@LEVELS
async def test_a_job_that_uses_the_sdk_saves_leaves_and_resumes(
    make_agent: MakeAgent, scheduler: Scheduler, level: str
) -> None:
    make_agent(**offering(level))
    await scheduler.joined()
    first = job("sdk", component("learn", SDK_JOB, kind="learner"), level=level)
    scheduler.want(first)
    phase: PhaseChanged = await scheduler.first(PhaseChanged, "sdk")
    assert phase.phase == "sampling"
    scheduler.change(first, desired="suspend", deadline_ns=time.time_ns() + 20_000_000_000, reason="Preempted")
    exited = await scheduler.exit_of("sdk")
    assert (exited.outcome, exited.acknowledged, exited.exit_code) == ("suspended", True, 75)
    (saved,) = await scheduler.events(CheckpointSaved)
    assert saved.checkpoint.step == exited.last_step
    assert [layer.name for layer in saved.checkpoint.layers] == ["state"]
    facts = [type(event) for event in await scheduler.events()]
    assert facts.index(CheckpointSaved) < facts.index(SandboxExited)

    second = msgspec.structs.replace(first, attempt=2, resume=saved.checkpoint)
    scheduler.want(second)

    async def second_exit() -> SandboxExited | None:
        return next((event for event in await scheduler.events(SandboxExited) if event.attempt == 2), None)

    resumed: SandboxExited = await until(second_exit)
    assert (resumed.outcome, resumed.result) == ("completed", {"steps": saved.checkpoint.step + 6})


async def test_a_job_without_the_sdk_is_ended_by_sigterm_and_its_declared_checkpoint_is_taken_over(
    make_agent: MakeAgent, scheduler: Scheduler
) -> None:
    make_agent()
    await scheduler.joined()
    code = """
import os, pathlib, signal, sys, time
kept = pathlib.Path("kept")
if (kept / "step-7" / "COMPLETE").exists():
    print("found", (kept / "step-7" / "weights").read_text())
    sys.exit(0)
def leave(*_):
    (kept / "step-7").mkdir(parents=True)
    (kept / "step-7" / "weights").write_text("w7")
    (kept / "step-7" / "COMPLETE").touch()
    (kept / "step-8").mkdir()
    (kept / "step-8" / "weights").write_text("half")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
time.sleep(60)
"""
    first = job("plain", component("main", code), preemption=PreemptionRule(checkpoint_dir="kept"))
    scheduler.want(first)
    await scheduler.first(SandboxStarted, "plain")
    await asyncio.sleep(0.5)
    scheduler.change(first, desired="suspend", deadline_ns=time.time_ns() + 20_000_000_000)
    exited = await scheduler.exit_of("plain")
    assert (exited.outcome, exited.acknowledged) == ("stopped", False)
    (saved,) = await scheduler.events(CheckpointSaved)
    assert saved.checkpoint.step == 7
    scheduler.want(msgspec.structs.replace(first, attempt=2, resume=saved.checkpoint))

    async def second_exit() -> SandboxExited | None:
        return next((event for event in await scheduler.events(SandboxExited) if event.attempt == 2), None)

    assert (await until(second_exit)).outcome == "completed"


async def test_a_job_that_ignores_everything_is_killed_at_the_deadline(
    make_agent: MakeAgent, scheduler: Scheduler
) -> None:
    make_agent()
    await scheduler.joined()
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    order = job("deaf", component("main", code))
    scheduler.want(order)
    await scheduler.first(SandboxStarted, "deaf")
    await asyncio.sleep(0.5)
    scheduler.change(order, desired="stop", deadline_ns=time.time_ns() + 1_000_000_000, reason="Cancelled")
    exited = await scheduler.exit_of("deaf")
    assert (exited.outcome, exited.signal) == ("stopped", signal.SIGKILL)


@LEVELS
async def test_quotas_change_on_the_live_sandbox_and_are_read_back(
    make_agent: MakeAgent, scheduler: Scheduler, level: str
) -> None:
    make_agent(**offering(level))
    await scheduler.joined()
    order = job("quota", component("main", "import time; time.sleep(60)"), level=level)
    scheduler.want(order)
    first: QuotaApplied = await scheduler.first(QuotaApplied, "quota")
    if not first.enforced:
        pytest.skip("limits are not enforced on this machine")
    assert first.quotas == order.quotas
    changed = (Quota(component="main", cpu_millis=1500, memory_mib=192),)
    scheduler.change(order, quotas=changed)

    async def applied() -> bool:
        return [event.quotas for event in await scheduler.events(QuotaApplied)][-1] == changed

    await until(applied)
    scheduler.change(order, desired="stop", deadline_ns=0)
    assert (await scheduler.exit_of("quota")).outcome == "stopped"


async def test_the_agent_has_the_last_word_on_what_starts(
    make_agent: MakeAgent, scheduler: Scheduler, tmp_path: Path
) -> None:
    (tmp_path / "allowed").mkdir()
    make_agent(input_roots=[str(tmp_path / "allowed")])
    await scheduler.joined()
    idle = component("main", "import time; time.sleep(60)")
    exposed = tmp_path / "secrets" / "lab"
    exposed.mkdir(parents=True)
    (exposed / "open").write_text("value")
    (exposed / "open").chmod(0o644)
    (tmp_path / "allowed" / "out").symlink_to("/etc")
    cases = {
        "LevelNotOffered": job("c1", idle, level="trusted"),
        "ImageMissing": msgspec.structs.replace(
            (base := job("c2", idle)), spec=msgspec.structs.replace(base.spec, image="other")
        ),
        "SecretMissing": job("c3", idle, secrets={"TOKEN": "absent"}),
        "SecretExposed": job("c4", idle, secrets={"TOKEN": "open"}),
        "PathOutsideRoots": job("c5", idle, inputs=(PathBinding(name="x", source=str(tmp_path / "allowed" / "out")),)),
        "WorkdirUnavailable": job("c6", idle, workdir="0" * 64),
        "CapacityExceeded": job("c7", *(component(f"p{i}", "pass") for i in range(9))),
        "QuotaMissing": msgspec.structs.replace(job("c8", idle), quotas=()),
    }
    for order in cases.values():
        scheduler.want(order)
    for code, order in cases.items():
        rejected: PlacementRejected = await scheduler.first(PlacementRejected, order.job)
        assert rejected.reason.code == code, rejected.reason
    assert "value" not in str(await scheduler.events(PlacementRejected))
    assert not await scheduler.events(SandboxStarted)


async def test_a_failing_component_is_restarted_a_few_times_and_then_fails_the_job(
    make_agent: MakeAgent, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_agent()
    await scheduler.joined()
    order = job(
        "flaky",
        component(
            "sim",
            "import pathlib, sys, time; p = pathlib.Path('tries'); n = len(p.read_text()) if p.exists() else 0; "
            "p.write_text('x' * (n + 1)); time.sleep(60) if n else sys.exit(3)",
            kind="simulator",
            restart="on_failure",
        ),
        component("bad", "import sys, time; time.sleep(3); sys.exit(9)", kind="simulator"),
        component("learn", "import time; time.sleep(60)", kind="learner"),
    )
    scheduler.want(order)
    exited = await scheduler.exit_of("flaky")
    assert (exited.outcome, exited.exit_code) == ("failed", 9)
    assert exited.detail == "component bad replica 0 ended with exit code 9"


async def test_a_command_that_cannot_be_started_is_the_jobs_own_failure(
    make_agent: MakeAgent, scheduler: Scheduler
) -> None:
    make_agent()
    await scheduler.joined()
    order = job("typo", component("main", "pass"))
    spec = order.spec
    broken = msgspec.structs.replace(spec.components[0], command=("no-such-command",))
    scheduler.want(msgspec.structs.replace(order, spec=msgspec.structs.replace(spec, components=(broken,))))
    exited = await scheduler.exit_of("typo")
    assert (exited.outcome, exited.exit_code) == ("failed", 127)
    assert "no-such-command" in exited.detail


async def test_a_stop_ends_the_fetch_of_a_workdir_that_never_comes(
    make_agent: MakeAgent, scheduler: Scheduler, tmp_path: Path
) -> None:
    asked = asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()  # until the agent gives up
        writer.close()

    gateway = await asyncio.start_server(stall, "127.0.0.1", 0)
    make_agent(gateway_url=f"http://127.0.0.1:{gateway.sockets[0].getsockname()[1]}")
    await scheduler.joined()
    order = job("waits", component("main", "pass"), workdir="sha256:" + "0" * 64)
    scheduler.want(order)
    await asyncio.wait_for(asked.wait(), WAIT_SECONDS)
    scheduler.change(order, desired="stop", deadline_ns=time.time_ns() + 60_000_000_000)
    began = time.monotonic()
    exited = await scheduler.exit_of("waits")
    assert exited.outcome == "stopped"
    assert time.monotonic() - began < READ_SECONDS_MAX / 2, "it was not the fetch's own bound that ended it"
    assert not await scheduler.events(PlacementRejected)
    assert [path.name for path in (tmp_path / "node" / "workdirs").iterdir()] == [".boot"]
    gateway.close()


async def test_before_a_job_is_ended_for_a_dead_component_the_others_are_asked_to_save(
    make_agent: MakeAgent, scheduler: Scheduler
) -> None:
    make_agent()
    await scheduler.joined()
    learn = """
import tidegate, time
job = tidegate.init()
for step in range(1, 1000):
    time.sleep(0.05)
    if job.should_stop():
        print("asked because", job.stop_reason, flush=True)
        job.save(state={"step": step}, step=step)
        job.exit_suspended()
"""
    order = job(
        "broken",
        component("sim", "import time, sys; time.sleep(2); sys.exit(5)", kind="simulator"),
        component("learn", learn, kind="learner"),
    )
    scheduler.want(order)
    exited = await scheduler.exit_of("broken")
    assert (exited.outcome, exited.exit_code) == ("failed", 5)
    assert exited.detail == "component sim replica 0 ended with exit code 5"
    (saved,) = await scheduler.events(CheckpointSaved)
    assert saved.checkpoint.step == exited.last_step


async def test_nothing_that_a_job_leaves_behind_ends_the_agent(make_agent: MakeAgent, scheduler: Scheduler) -> None:
    agent = make_agent()
    await scheduler.joined()
    code = r"""
import os, pathlib
hot = pathlib.Path(os.environ["TIDEGATE_CHECKPOINTS"])
for name in ("packs", "manifests", "roots"):
    (hot / name).mkdir()
for number, root in enumerate([b"[]", b"null", b'"x"', b"{}", b"\xff", b"[" * 100000, b'{"id":1,"format":2}']):
    (hot / "roots" / f"{number:012d}-1-aaaaaaaa.json").write_bytes(root)
kept = pathlib.Path("kept") / "step-1"
kept.mkdir(parents=True)
(kept / "COMPLETE").touch()
os.symlink("/etc/passwd", os.fsencode(kept) + b"/\xff")
"""
    order = job("hostile", component("main", code + "raise SystemExit(1)"))
    spec = msgspec.structs.replace(order.spec, preemption=PreemptionRule(checkpoint_dir="kept"))
    scheduler.want(msgspec.structs.replace(order, spec=spec))
    exited = await scheduler.exit_of("hostile")
    assert (exited.outcome, exited.exit_code) == ("failed", 1)
    (failed,) = await scheduler.events(CheckpointFailed)
    assert "could not be taken over" in failed.reason.detail
    scheduler.want(job("next", component("main", "pass")))
    assert (await scheduler.exit_of("next")).outcome == "completed"
    assert agent.alive


async def test_a_stop_for_a_member_that_never_came_is_answered(make_agent: MakeAgent, scheduler: Scheduler) -> None:
    make_agent()
    await scheduler.joined()
    scheduler.want(msgspec.structs.replace(job("ghost", component("main", "pass")), desired="stop"))
    assert (await scheduler.exit_of("ghost")).outcome == "stopped"
    await asyncio.sleep(0.5)
    assert len(await scheduler.events(SandboxExited)) == 1


@LEVELS
async def test_killing_the_agent_kills_no_job(make_agent: MakeAgent, scheduler: Scheduler, level: str) -> None:
    agent = make_agent(**offering(level))
    await scheduler.joined()
    code = (
        "import time, tidegate; job = tidegate.init(); time.sleep(0.2)\n"
        "with job.phase('sampling'): time.sleep(4)\n"
        "job.finish(result={'pid_kept': True})"
    )
    over = job("over", component("main", "print('done')"), level=level)
    order = job("survivor", component("sim", "import time; time.sleep(60)"), component("main", code), level=level)
    scheduler.want(order)
    await scheduler.first(PhaseChanged, "survivor")
    scheduler.want(over)
    await scheduler.first(SandboxStarted, "over")
    agent.end(signal.SIGKILL)
    await asyncio.sleep(1)
    agent.start()
    joined = await scheduler.joined(times=2)
    assert joined.incarnation == 2
    exited = await scheduler.exit_of("survivor")
    assert (exited.outcome, exited.result) == ("completed", {"pid_kept": True})
    assert (await scheduler.exit_of("over")).outcome == "completed"
    await asyncio.sleep(1)
    assert sorted(event.job for event in await scheduler.events(SandboxExited)) == ["over", "survivor"]
    assert len([event for event in await scheduler.events(SandboxStarted) if event.job == "survivor"]) == 1


async def test_the_agent_may_be_killed_at_any_instant_of_a_start(make_agent: MakeAgent, scheduler: Scheduler) -> None:
    """What was ordered before a kill is completed or reported as lost; it is never started twice, nor forgotten."""
    agent = make_agent()
    await scheduler.joined()
    code = "open('starts', 'a').write('x'); print(len(open('starts').read()), flush=True); import time; time.sleep(0.5)"
    for number, delay in enumerate((0.0, 0.03, 0.06, 0.1, 0.15, 0.25), start=1):
        scheduler.want(job(f"k{number}", component("sim", "import time; time.sleep(60)"), component("main", code)))
        await asyncio.sleep(0.1 + delay)
        agent.end(signal.SIGKILL)
        agent.start()
        await scheduler.joined(times=number + 1)
        exited = await scheduler.exit_of(f"k{number}")
        assert exited.outcome in ("completed", "lost"), exited
        written = agent.data_dir / "logs" / f"k{number}.1.0"
        assert [path.read_text() for path in written.glob("main.0*")] in ([], ["1\n"])
    exits = [event.job for event in await scheduler.events(SandboxExited)]
    assert sorted(exits) == sorted(set(exits))


async def test_what_a_killed_agent_did_not_get_to_remove_is_removed_at_the_next_start(
    make_agent: MakeAgent, scheduler: Scheduler
) -> None:
    agent = make_agent()
    await scheduler.joined()
    agent.end(signal.SIGKILL)
    left = [agent.data_dir / place / "gone.1.0" for place in ("channels", "checkpoint-dirs")]
    for path in left:
        path.mkdir()
        (path / "file").touch()
    agent.start()
    await scheduler.joined(times=2)
    assert [path for path in left if path.exists()] == []


async def test_a_job_may_end_while_the_agent_is_away(make_agent: MakeAgent, scheduler: Scheduler) -> None:
    agent = make_agent()
    await scheduler.joined()
    scheduler.want(job("brief", component("main", "import time; time.sleep(1.5); print('ended alone')")))
    await scheduler.first(SandboxStarted, "brief")
    assert agent.end(signal.SIGTERM) == 0
    await asyncio.sleep(2.5)
    agent.start()
    assert (await scheduler.exit_of("brief")).outcome == "completed"


async def test_facts_wait_for_a_bus_that_is_away(
    make_agent: MakeAgent, scheduler: Scheduler, bus: Bus, tmp_path: Path
) -> None:
    make_agent()
    await scheduler.joined()
    scheduler.want(job("offline", component("main", "import time; time.sleep(2); open('/dev/null'); print('x')")))
    await scheduler.first(SandboxStarted, "offline")
    bus.kill()
    await asyncio.sleep(4)
    bus.start()
    assert (await scheduler.exit_of("offline")).outcome == "completed"
    await asyncio.sleep(0.5)
    assert len(await scheduler.events(SandboxExited)) == 1


async def test_what_was_swept_is_reported_as_lost(make_agent: MakeAgent, scheduler: Scheduler) -> None:
    agent = make_agent()
    await scheduler.joined()
    scheduler.want(job("swept", component("main", "import time; time.sleep(60)")))
    await scheduler.first(SandboxStarted, "swept")
    agent.end(signal.SIGTERM)
    assert "swept.1.0" in agent.sweep()
    assert agent.sweep() == "0 sandboxes ended: none were left\n"
    agent.start()
    exited = await scheduler.exit_of("swept")
    assert exited.outcome == "lost"
    joined = await scheduler.joined(times=2)
    assert joined.sandboxes == ()
    kinds = [type(event).__name__ for event in await scheduler.events()]
    assert kinds.index("SandboxExited") < len(kinds) - 1 - kinds[::-1].index("NodeJoined")


async def test_an_agent_that_was_forgotten_joins_again_with_what_it_holds(
    make_agent: MakeAgent, scheduler: Scheduler, client: Client
) -> None:
    make_agent()
    first = await scheduler.joined()
    scheduler.want(job("here", component("main", "import time; time.sleep(60)")))
    await scheduler.first(SandboxStarted, "here")
    forgotten = orders.NodeOrders(node=NODE, incarnation=orders.FORGOTTEN_INCARNATION, epoch=1, at_seq=1, sandboxes=())

    async def joined_again() -> list[Any] | None:
        await client.publish(subjects.order(NODE), orders.encode(forgotten))
        joins = await scheduler.events(NodeJoined)
        return joins if len(joins) > 1 else None

    again = (await until(joined_again))[-1]
    assert (again.incarnation, again.capacity) == (first.incarnation, first.capacity)
    assert [(held.job, held.attempt) for held in again.sandboxes] == [("here", 1)]
    scheduler.change(scheduler.wanted["here.1.0"], desired="stop")
    await scheduler.exit_of("here")


CANARY = "canary-5f0e2b6c9d"


@LEVELS
async def test_a_secret_reaches_the_job_and_nothing_else(
    make_agent: MakeAgent, scheduler: Scheduler, client: Client, tmp_path: Path, level: str
) -> None:
    store = tmp_path / "secrets" / "lab"
    store.mkdir(parents=True)
    (store / "token").write_text(CANARY + "\n")
    (store / "token").chmod(0o600)
    agent = make_agent(**offering(level))
    await scheduler.joined()
    code = "import os, time; t = os.environ['TOKEN']; print(len(t), t, flush=True); time.sleep(2)"
    scheduler.want(job("canary", component("main", code), level=level, secrets={"TOKEN": "token"}))
    await scheduler.first(SandboxStarted, "canary")
    assert _seen_in_arguments(CANARY) == []
    assert (await scheduler.exit_of("canary")).outcome == "completed"
    answer = await logs(client, job="canary", component="main")
    assert base64.b64decode(answer["data"]) == f"{len(CANARY)} [redacted]\n".encode()
    assert CANARY not in str(await scheduler.events())
    assert CANARY not in agent.log.read_text()
    # `os.walk` passes over what vanishes under it: the sandbox is being removed meanwhile.
    found = [Path(directory, name) for directory, _, names in os.walk(agent.data_dir) for name in names]
    kept = [path for path in found if path.is_file() and CANARY in _read(path)]
    assert kept == []


def _seen_in_arguments(text: str) -> list[str]:
    return [str(path) for path in Path("/proc").glob("[0-9]*/cmdline") if text in _read(path)]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


async def test_sigterm_leaves_sandboxes_running_and_a_second_agent_is_refused(
    make_agent: MakeAgent, scheduler: Scheduler, tmp_path: Path
) -> None:
    agent = make_agent()
    await scheduler.joined()
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    scheduler.want(job("kept", component("main", code)))
    await scheduler.first(SandboxStarted, "kept")
    assert agent.end(signal.SIGTERM) == 0
    log = next((agent.data_dir / "logs" / "kept.1.0").iterdir())
    pid = int(log.read_text())
    os.kill(pid, 0)
