"""What an operator reads: events filtered, looked back over and waited for; the line; one snapshot for a screen."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events.telemetry import NodeSample, ProcessSample, SandboxSample
from tidegate_gateway.history import journal as journal_history
from tidegate_gateway.live import Live

SHORT: dict[str, Any] = {
    "name": "short",
    "command": ["true"],
    "resources": {"default": {"minimum": {"cpu_millis": 100, "memory_mib": 64}}},
}
NS = 1_000_000_000


async def rejected(bench: Any, *jobs: str) -> None:
    await bench.history.decide(
        *[e.JobRejected(**bench.history.stamp(), tenant="default", job=job, revision=0) for job in jobs]
    )
    await bench.settle()


async def ask(bench: Any, **params: Any) -> Any:
    answer = await bench.client.get("/v1/events", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_events_are_filtered_by_kind_tenant_and_time(bench: Any) -> None:
    first, second = [(await bench.submit(SHORT)).json()["job_id"] for _ in range(2)]
    await bench.history.node()
    await rejected(bench, first, second)
    whole = (await ask(bench))["events"]
    assert [each["kind"] for each in whole] == [*["JobSubmitted"] * 2, "NodeJoined", *["JobRejected"] * 2]
    kinds = await ask(bench, kind="JobRejected,NodeJoined")
    assert [each["kind"] for each in kinds["events"]] == ["NodeJoined", "JobRejected", "JobRejected"]
    assert {each["tenant"] for each in (await ask(bench, tenant="default"))["events"]} == {"default"}
    middle = whole[3]["at_ns"]
    assert [each["at_ns"] for each in (await ask(bench, since=middle, kind="JobRejected"))["events"]] == [
        middle,
        whole[4]["at_ns"],
    ]
    assert middle not in [each["at_ns"] for each in (await ask(bench, until=middle))["events"]]
    of_job = await ask(bench, job=first, kind="JobRejected")
    assert [each["job_id"] for each in of_job["events"]] == [first]
    assert of_job["dropped"] == 0


async def test_the_newest_events_are_given_in_order(bench: Any) -> None:
    jobs = [(await bench.submit(SHORT)).json()["job_id"] for _ in range(5)]
    await bench.settle()
    newest = await ask(bench, last=2)
    assert [each["job_id"] for each in newest["events"]] == jobs[-2:]
    assert newest["complete"] is True
    of_one = await ask(bench, last=1, kind="JobSubmitted", tenant="nobody")
    assert (of_one["events"], of_one["complete"]) == ([], True)
    assert (await ask(bench, after=newest["cursor"]))["events"] == []


async def test_looking_back_is_bounded_and_says_so(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(6):
        await bench.submit(SHORT)
    await bench.settle()
    monkeypatch.setattr(journal_history, "FRAMES_PER_LOOK_BACK", 1)
    monkeypatch.setattr(journal_history, "LOOK_BACK_FRAMES_MAX", 3)
    page = await ask(bench, last=5)
    assert len(page["events"]) == 3
    assert page["complete"] is False


async def test_a_filter_moves_on_over_what_it_leaves_out(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [(await bench.submit(SHORT)).json()["job_id"] for _ in range(5)]
    await rejected(bench, jobs[-1])
    monkeypatch.setattr(journal_history, "FRAMES_PER_ANSWER", 2)
    page = await ask(bench, kind="JobRejected")
    assert (page["events"], page["next"], page["cursor"]) == ([], "2", "2")
    seen, rounds = [], 0
    while page["next"] is not None:
        page = await ask(bench, kind="JobRejected", after=page["next"])
        seen += [each["job_id"] for each in page["events"]]
        rounds += 1
    assert (seen, rounds) == ([jobs[-1]], 2)


@pytest.mark.parametrize("of_one", [False, True], ids=["journal", "job"])
async def test_who_waits_gets_what_comes(bench: Any, of_one: bool) -> None:
    job = (await bench.submit(SHORT)).json()["job_id"]
    await bench.settle()
    filters = {"job": job} if of_one else {}
    cursor = (await ask(bench, **filters))["cursor"]
    waiting = asyncio.ensure_future(ask(bench, after=cursor, wait_seconds=20, kind="JobRejected", **filters))
    await bench.submit(SHORT)
    await bench.settle()
    assert not waiting.done()
    await rejected(bench, job)
    async with asyncio.timeout(10):
        page = await waiting
    assert [(each["kind"], each["job_id"]) for each in page["events"]] == [("JobRejected", job)]


async def test_waiting_ends_after_its_time(bench: Any) -> None:
    page = await ask(bench, wait_seconds=1)
    assert (page["events"], page["next"], page["end"]) == ([], None, 0)


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("kind=Nonsense", "?kind"),
        ("since=yesterday", "?since"),
        ("until=-1", "?until"),
        ("last=0", "?last"),
        ("last=5&after=1", "?last"),
        ("last=5&limit=1", "?last"),
        ("wait_seconds=5&until=5", "?wait_seconds"),
        ("wait_seconds=26", "?wait_seconds"),
    ],
)
async def test_what_cannot_be_asked_is_refused(bench: Any, query: str, path: str) -> None:
    answer = await bench.client.get(f"/v1/events?{query}")
    assert answer.status_code == 422
    assert path in [problem["path"] for problem in answer.json()]


# ---- the line ----


async def test_the_queue_is_in_the_scheduler_s_words(bench: Any) -> None:
    low = (await bench.submit(SHORT)).json()["job_id"]
    high = (await bench.submit({**SHORT, "priority": 50})).json()["job_id"]
    await bench.settle()
    said = [
        {"job": high, "state": "pending", "position": 1, "reasons": [{"code": "Reserved"}], "starts_at_ns": 7 * NS,
         "starts_basis": "deadline"},
        {"job": low, "state": "pending", "position": 2, "reasons": [{"code": "Priority"}]},
    ]  # fmt: skip
    bench.asker.answerers["tg.ask.scheduler.queue"] = lambda _: {"total": 2, "queue": said}
    answer = (await bench.client.get("/v1/queue")).json()
    assert (answer["answered_by"], answer["total"]) == ("scheduler", 2)
    first, second = answer["queue"]
    assert (first["job_id"], first["position"], first["starts_at_ns"], first["starts_basis"]) == (
        high, 1, 7 * NS, "deadline",
    )  # fmt: skip
    assert (second["job_id"], second["starts_at_ns"], second["reasons"][0]["code"]) == (low, None, "Priority")
    assert (await bench.client.get("/v1/queue?tenant=nobody")).json()["queue"] == []
    assert len((await bench.client.get("/v1/queue?limit=1")).json()["queue"]) == 1


@pytest.mark.parametrize("answer", [None, {"queue": 5}], ids=["away", "unclear"])
async def test_without_the_scheduler_the_queue_is_by_priority(bench: Any, answer: Any) -> None:
    if answer is not None:
        bench.asker.answerers["tg.ask.scheduler.queue"] = lambda _: answer
    low = (await bench.submit(SHORT)).json()["job_id"]
    high = (await bench.submit({**SHORT, "priority": 50})).json()["job_id"]
    await bench.settle()
    found = (await bench.client.get("/v1/queue")).json()
    assert found["answered_by"] == "gateway"
    assert [each["job_id"] for each in found["queue"]] == [high, low]
    assert {each["starts_at_ns"] for each in found["queue"]} == {None}


# ---- nodes and the snapshot ----


async def test_a_node_says_why_nothing_is_placed_there(bench: Any) -> None:
    await bench.history.node("n1")
    await bench.history.node("n2", levels=())
    await bench.history.node("n3", sandboxes=(e.HeldSandbox(job="j-gone", attempt=1, rank=0),))
    await bench.history.node("n4")
    away = [e.NodeUnreachable(**bench.history.stamp(), node=name, incarnation=1) for name in ("n1", "n4")]
    lost = e.NodeLost(**bench.history.stamp(), node="n4", incarnation=1)
    await bench.history.decide(e.LeaderElected(**bench.history.stamp(), epoch=1, instance="s1"))
    await bench.history.decide(*away, lost)
    await bench.history.node("n5")
    await bench.settle()
    nodes = {node["node"]: node for node in (await bench.client.get("/v1/nodes")).json()["nodes"]}
    codes = {name: node["reason"] and node["reason"]["code"] for name, node in nodes.items()}
    assert codes == {"n1": "NoHeartbeat", "n2": "NoLevel", "n3": "Leftovers", "n4": "NodeLost", "n5": None}
    assert nodes["n4"]["state_since_ns"] == lost.at_ns
    assert nodes["n5"]["state_since_ns"] == nodes["n5"]["joined_at_ns"]


def process(at: float, step: int | None, **fields: Any) -> ProcessSample:
    about: dict[str, Any] = {"tenant": "t", "job": "j", "attempt": 1, "rank": 0, "component": "learner", "replica": 0}
    return ProcessSample(node="n1", at_ns=int(at * NS), seq=1, incarnation=1, step=step, **{**about, **fields})


def usage(at: float, replica: int, **gauges: float) -> SandboxSample:
    return SandboxSample(
        node="n1", at_ns=int(at * NS), seq=1, incarnation=1, tenant="t", job="j", attempt=1, rank=0,
        component="simulator", replica=replica, gauges=gauges,
    )  # fmt: skip


def test_a_sample_that_only_tells_of_a_checkpoint_does_not_hide_the_last_report() -> None:
    live = Live()
    live.hear((process(100, 10, metrics={"loss": 0.5}),))
    live.hear((process(101, None),))
    assert live.of_job("j", 1, 101 * NS)["metrics"] == {"loss": 0.5}
    assert live.of_job("j", 1, 101 * NS)["step"] == 10


def test_live_knows_rates_only_from_two_samples_and_forgets_what_is_old() -> None:
    live = Live()
    live.hear((process(100, 10, metrics={"loss": 0.5}),))
    assert live.of_job("j", 1, 100 * NS)["steps_per_second"] is None
    live.hear((process(104, 30), usage(104, 0, cpu_cores=0.5, memory_bytes=100.0), usage(104, 1, cpu_cores=0.25)))
    seen = live.of_job("j", 1, 105 * NS)
    assert (seen["steps_per_second"], seen["step"], seen["cpu_cores"], seen["memory_bytes"]) == (5.0, 30, 0.75, 100.0)
    assert live.of_job("j", 1, 140 * NS)["cpu_cores"] is None
    assert live.of_job("j", 1, 200 * NS)["steps_per_second"] is None
    assert live.of_job("j", 2, 105 * NS)["step"] is None
    live.hear((process(106, 5),))
    assert live.of_job("j", 1, 106 * NS)["steps_per_second"] is None


def test_live_takes_the_process_that_counts_steps() -> None:
    live = Live()
    live.hear((process(1, 10), process(2, None, component="simulator", metrics={"x": 1.0}), process(3, 12)))
    assert live.of_job("j", 1, 3 * NS)["steps_per_second"] == 1.0


def test_live_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate_gateway.live.PROCESSES_MAX", 3)
    live = Live()
    live.hear(tuple(process(1, 1, job=f"j{number}") for number in range(10)))
    assert [live.of_job(f"j{number}", 1, NS)["step"] for number in (6, 7, 8, 9)] == [None, 1, 1, 1]


async def test_top_is_one_snapshot(bench: Any) -> None:
    await bench.history.node()
    job = (await bench.submit(SHORT)).json()["job_id"]
    sample = NodeSample(node="n1", at_ns=bench.clock.now_ns(), seq=1, incarnation=1, gauges={"cpu_ratio": 0.5})
    bench.gateway.live.hear((sample,))
    await bench.settle()
    top = (await bench.client.get("/v1/top")).json()
    assert [each["job_id"] for each in top["queue"]] == [job]
    assert (top["jobs"], top["job_counts"], top["journal"]["lag"]) == ([], {"pending": 1}, 0)
    (node,) = top["nodes"]
    assert node["live"] == {"cpu_ratio": 0.5, "memory_used_bytes": None}
