"""What is accepted, what is refused, and that a refusal names every problem at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tidegate_events.events import JobSubmitted
from tidegate_events.resources import GpuDevice, Resources

AMOUNTS = {"cpu_millis": 100, "memory_mib": 64}
SHORT = {"command": ["true"], "resources": AMOUNTS}


async def test_an_accepted_job_is_one_frame_in_the_journal(bench: Any, valid: Any) -> None:
    answer = await bench.submit(valid)
    assert answer.status_code == 201
    body = answer.json()
    assert set(body) == {"job_id", "trace_id", "tenant", "state"}
    assert (body["tenant"], body["state"]) == ("lab-a", "pending")
    assert answer.headers["traceparent"].split("-")[1] == body["trace_id"]
    assert await bench.journal.end() == 1
    recorded = await bench.journal.last("tg.fact.gateway.g1")
    (event,) = recorded.frame.events
    assert isinstance(event, JobSubmitted)
    assert (event.job, event.tenant, event.traceparent) == (body["job_id"], "lab-a", answer.headers["traceparent"])
    assert event.spec.components[1].resources["default"].ceiling == Resources(1000, 256)
    assert recorded.frame.writer.epoch == bench.clock.now_ns()


async def test_the_shorthand_makes_one_component(bench: Any) -> None:
    forms = [
        AMOUNTS,
        {"minimum": AMOUNTS, "maximum": {"cpu_millis": 300}},
        {"default": AMOUNTS},
        {"default": {"minimum": AMOUNTS}},
    ]
    for form in forms:
        job_id = (await bench.submit({"command": ["true"], "resources": form})).json()["job_id"]
        spec = (await bench.client.get(f"/v1/jobs/{job_id}")).json()["spec"]
        (component,) = spec["components"]
        assert (component["name"], component["kind"], component["command"]) == ("main", "main", ["true"])
        assert component["resources"]["default"]["minimum"]["cpu_millis"] == 100
        assert (spec["tenant"], spec["submitter"]) == ("default", "unknown")


async def test_a_target_rate_may_be_declared_and_left_out(bench: Any) -> None:
    for target in (None, 1, 10_000):
        answer = await bench.submit({**SHORT, "target_steps_per_second": target})
        assert answer.status_code == 201, answer.text
        recorded = await bench.journal.last("tg.fact.gateway.g1")
        assert recorded.frame.events[0].spec.target_steps_per_second == target


async def test_the_submitter_may_come_from_the_header(bench: Any) -> None:
    answer = await bench.client.post("/v1/jobs", json=SHORT, headers={"x-tidegate-submitter": "ada"})
    job = (await bench.client.get(f"/v1/jobs/{answer.json()['job_id']}")).json()
    assert job["submitter"] == "ada"


async def test_all_problems_come_in_one_answer(bench: Any, valid: Any) -> None:
    valid["priorty"] = 3
    valid["components"][0]["replicas"] = 0
    valid["components"][1]["name"] = "simulator"
    valid["components"][1]["resources"]["default"]["maximum"]["cpu_millis"] = 1
    valid["env"]["1BAD"] = "x"
    valid["inputs"] = [{"name": "data", "source": "/etc/shadow"}]
    valid["workdir"] = "0" * 64
    problems = await bench.problems(valid)
    assert set(problems) == {
        "priorty",
        "components[0].replicas",
        "components[1].name",
        "components[1].resources.default.maximum.cpu_millis",
        "env.<entry 1>",
        "inputs[0].source",
        "workdir",
    }
    assert "priority" in problems["priorty"]
    assert await bench.journal.end() == 0


@pytest.mark.parametrize(
    ("change", "path", "says"),
    [
        ({"resources": {"cpu_millis": 100, "memory": "2GB"}}, "resources.memory", "memory_mib"),
        ({"resources": {"cpu_millis": 100, "memory_gb": 2}}, "resources.memory_gb", "memory_mib"),
        ({"resources": {"cpu_millis": 100, "memory_mib": "2GB"}}, "resources.memory_mib", "whole number"),
        ({"resources": {"cpu_millis": 0.5, "memory_mib": 64}}, "resources.cpu_millis", "fraction"),
        ({"resources": {"cpu_millis": True, "memory_mib": 64}}, "resources.cpu_millis", "boolean"),
        ({"resources": {"cpu_millis": -1, "memory_mib": 64}}, "resources.cpu_millis", "out of bounds"),
        ({"resources": {"cpu_millis": 100, "memory_mib": 0}}, "resources.memory_mib", "out of bounds"),
        ({"resources": {"cpu_millis": 10**17, "memory_mib": 64}}, "resources.cpu_millis", "out of bounds"),
        ({"resources": {"cpu_millis": 100}}, "resources.memory_mib", "is missing"),
        ({"resources": {}}, "resources.default", "is missing"),
        ({"resources": {"sampling": AMOUNTS}}, "resources.default", "is missing"),
        ({"resources": {"default": AMOUNTS, "Bad Phase": AMOUNTS}}, "resources.<name of 9 characters>", "phase"),
        ({"resources": {**AMOUNTS, "gpu_memory_mib": 5}}, "resources.gpu_memory_mib", "without GPUs"),
        ({"resources": {**AMOUNTS, "gpu_millis": 0}}, "resources.gpu_millis", "1 to 999"),
        ({"resources": {**AMOUNTS, "gpu_millis": 1000}}, "resources.gpu_millis", "1 to 999"),
        ({"resources": {**AMOUNTS, "gpu_millis": 500, "gpus": 1}}, "resources.gpu_millis", "either gpus"),
        (
            {"resources": {"minimum": {**AMOUNTS, "gpus": 1}, "maximum": {"gpu_millis": 500}}},
            "resources.maximum.gpu_millis",
            "either gpus",
        ),
        (
            {"resources": {"minimum": {**AMOUNTS, "gpu_millis": 500}, "maximum": {"gpu_millis": 499}}},
            "resources.maximum.gpu_millis",
            "less than the minimum",
        ),
        (
            {"resources": {"default": {**AMOUNTS, "gpus": 1}, "learning": {"cpu_millis": 100, "gpu_millis": 500}}},
            "components",
            "in the whole job",
        ),
        ({"resources": {**AMOUNTS, "gpu_share": 0.5}}, "resources.gpu_share", "gpu_millis"),
        ({"gpu_models": ["H200"]}, "gpu_models", "without GPUs"),
        ({"gpu_models": "H200"}, "gpu_models", "must be a list"),
        ({"gpu_models": [" H200"]}, "gpu_models[0]", "model of GPU"),
        ({"gpu_models": ["H200"] * 17}, "gpu_models", "17 elements"),
        ({"communication": "tight"}, "communication", "loose, intensive"),
        ({"locality_wait_seconds": 60}, "locality_wait_seconds", "communication: intensive"),
        ({"widest_domain": "rack"}, "widest_domain", "communication: intensive"),
        ({"communication": "intensive", "widest_domain": "hall"}, "widest_domain", "switch, rack"),
        ({"borrows": True}, "borrows", "phase_entry: asked"),
        ({"phase_entry": "asked", "borrows": 1}, "borrows", "true or false"),
        ({"phase_entry": "asked", "borrows": True, "gang_size": 513}, "gang_size", "at most 512"),
        ({"phase_entry": "ask"}, "phase_entry", "told, asked"),
        ({"preemption": {"hand_back_seconds": 0}}, "preemption.hand_back_seconds", "1 to 600"),
        ({"preemption": {"hand_back_seconds": 601}}, "preemption.hand_back_seconds", "1 to 600"),
        ({"communication": "intensive", "locality_wait_seconds": -1}, "locality_wait_seconds", "out of bounds"),
        ({"preemption": {"restart_seconds": 86_401}}, "preemption.restart_seconds", "out of bounds"),
        (
            {"resources": {"minimum": AMOUNTS, "maximum": {"memory_mib": 63}}},
            "resources.maximum.memory_mib",
            "less than the minimum",
        ),
        ({"command": []}, "command", "0 elements"),
        ({"command": "python x.py"}, "command", "must be a list"),
        ({"name": "a/b"}, "name", "cannot be used"),
        ({"tenant": "../x"}, "tenant", "cannot be used"),
        ({"priority": 101}, "priority", "0 to 100"),
        ({"type": "smapling"}, "type", "did you mean sampling"),
        ({"isolation": "none"}, "isolation", "trusted"),
        (
            {"isolation": "guarded", "resources": {**AMOUNTS, "gpus": 1}},
            "isolation",
            "its guest's kernel opens no device of the host",
        ),
        ({"isolation": "vm", "resources": {**AMOUNTS, "gpu_millis": 500}}, "isolation", "level vm passes no GPU"),
        ({"gang_size": 0}, "gang_size", "out of bounds"),
        ({"seed": 2**60}, "seed", "out of bounds"),
        ({"timeout": 5}, "timeout", "time_limit_seconds"),
        ({"target_steps_per_second": 0}, "target_steps_per_second", "out of bounds"),
        ({"target_steps_per_second": 1.5}, "target_steps_per_second", "fraction"),
        ({"steps_per_second": 5}, "steps_per_second", "target_steps_per_second"),
        ({"memory": 5}, "memory", "resources"),
        ({"restart": "never"}, "restart", "must be an object"),
        ({"restart": {"max_attempts": 0}}, "restart.max_attempts", "out of bounds"),
        ({"preemption": {"checkpoint_dir": "../x"}}, "preemption.checkpoint_dir", "`..`"),
        ({"env": {"A": 1}}, "env.A", "must be text"),
        ({"env": {"TIDEGATE_SEED": "1"}}, "env.TIDEGATE_SEED", "Tidegate itself"),
        ({"env": {"T" * 100 + "_TOKEN": "1"}}, "env.<name of 106 characters>", "secrets"),
        ({"secrets": {"A": {"value": "x"}}}, "secrets.A", "never taken"),
        ({"workdir": "./src"}, "workdir", "sha256"),
        ({"inputs": [{"name": "d", "source": "data"}]}, "inputs[0].source", "absolute"),
        ({"components": [{}]}, "command", "beside components"),
        ({"env": {"A": "x\x00y"}}, "env.A", "NUL"),
        ({"env": {"A": "\ud800"}}, "env.A", "surrogate"),
        ({"source": {"git_commit": "HEAD"}}, "source.git_commit", "hexadecimal"),
        ({"idempotency_key": "with space"}, "idempotency_key", "ASCII"),
    ],
)
async def test_a_bad_field_is_named_with_what_is_accepted(bench: Any, change: Any, path: str, says: str) -> None:
    problems = await bench.problems({**SHORT, **change})
    assert path in problems, problems
    assert says in problems[path]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[1]", "must be an object"),
        (b"null", "must be an object"),
        (b'{"seed": NaN, "command": ["a"]}', "NaN"),
        (b'{"seed": 1e999}', "huge number"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "huge number"),
        (b'{"seed": 1, "seed": 2}', "twice"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "nested"),
        (b"[" * 100_000, "nested"),
        (b'"' + b'\\"' * 90_000, "not JSON"),
        (b"{" + b" " * 300_000 + b"}", "at most 200000 bytes"),
        (b'{"command": ["' + b"x" * 150_000 + b'"]}', "too many"),
    ],
)
async def test_what_is_no_sound_json_is_refused(bench: Any, body: bytes, says: str) -> None:
    answer = await bench.client.post("/v1/jobs", content=body)
    assert answer.status_code == 422
    assert says in answer.text


async def test_the_number_of_problems_is_bounded(bench: Any) -> None:
    answer = await bench.client.post("/v1/jobs", json={f"f{number}": 1 for number in range(5000)})
    assert answer.status_code == 422
    assert len(answer.json()) == 101


async def test_what_no_known_node_offers_is_refused_with_the_largest(bench: Any, valid: Any) -> None:
    await bench.history.node()
    await bench.settle()
    valid["components"][0]["resources"]["default"]["minimum"] = {"cpu_millis": 2000, "memory_mib": 4096}
    valid["isolation"] = "vm"
    valid["image"] = "torch"
    problems = await bench.problems(valid)
    assert "largest known node has 8192" in problems["components"]
    assert "trusted" in problems["isolation"]
    assert "host" in problems["image"]


async def test_a_level_at_which_no_known_node_passes_gpus_is_refused_to_who_needs_one(bench: Any, valid: Any) -> None:
    levels = ("trusted", "unisolated")
    await bench.history.node(levels=levels, gpu_levels=("unisolated",))
    await bench.settle()
    need = {"cpu_millis": 500, "memory_mib": 64}
    valid["components"][0]["replicas"] = 1
    valid["components"][0]["resources"]["default"]["minimum"] = {**need, "gpus": 1}
    assert await bench.problems(valid) == {
        "isolation": "no known node passes GPUs at the level trusted | one of unisolated"
    }
    (node,) = (await bench.client.get("/v1/nodes")).json()["nodes"]
    assert (node["levels"], node["gpu_levels"]) == (list(levels), ["unisolated"])
    valid["components"][0]["resources"]["default"]["minimum"] = need
    assert (await bench.client.post("/v1/jobs", json=valid)).status_code == 201


async def test_gpus_are_compared_by_number_and_memory(bench: Any) -> None:
    await bench.history.node()
    small = (GpuDevice(0, "u", "T", 8192), GpuDevice(1, "v", "T", 8192), GpuDevice(2, "w", "T", 8192))
    await bench.history.node("n2", capacity=Resources(4000, 8192, 3, 8192), gpus=small)
    await bench.settle()

    def job(gpus: int, memory_mib: int) -> Any:
        return {"command": ["true"], "resources": {**AMOUNTS, "gpus": gpus, "gpu_memory_mib": memory_mib}}

    assert (await bench.submit(job(2, 24576))).status_code == 201
    assert (await bench.submit(job(3, 8192))).status_code == 201
    assert "largest known node has 3" in (await bench.problems(job(4, 0)))["components"]
    assert "24576 or less with 2" in (await bench.problems(job(2, 30000)))["components"]
    assert "8192 or less with 3" in (await bench.problems(job(3, 24576)))["components"]


def with_components(*components: dict[str, Any]) -> dict[str, Any]:
    return {
        "components": [{"name": f"c{n}", "command": ["true"], **component} for n, component in enumerate(components)]
    }


SHARE = {"resources": {**AMOUNTS, "gpu_millis": 300}}


@pytest.mark.parametrize(
    ("component", "says"),
    [
        ({"kind": "learner", "replicas_max": 2}, "simulators alone"),
        ({"kind": "simulator", "replicas": 3, "replicas_max": 2}, "3 or more"),
        ({"kind": "simulator", "replicas_max": 1025}, "out of bounds"),
        ({"kind": "simulator", "replicas_max": 0}, "out of bounds"),
    ],
)
async def test_only_simulators_scale_and_only_upwards(bench: Any, component: Any, says: str) -> None:
    problems = await bench.problems(with_components({"resources": AMOUNTS, **component}))
    assert says in problems["components[0].replicas_max"]


async def test_all_that_a_job_may_say_of_elasticity_reaches_the_journal(bench: Any) -> None:
    job = {
        **with_components({"kind": "simulator", "replicas": 2, "replicas_max": 4, "resources": AMOUNTS}, SHARE),
        "communication": "intensive",
        "widest_domain": "rack",
        "locality_wait_seconds": 300,
        "gpu_models": ["NVIDIA H200"],
        "preemption": {"restart_seconds": 15, "hand_back_seconds": 45},
        "gang_size": 2,
        "phase_entry": "asked",
        "borrows": True,
    }
    assert (await bench.submit(job)).status_code == 201
    recorded = await bench.journal.last("tg.fact.gateway.g1")
    spec = recorded.frame.events[0].spec
    assert (spec.components[0].replicas_max, spec.preemption.restart_seconds) == (4, 15)
    assert (spec.phase_entry, spec.borrows, spec.preemption.hand_back_seconds) == ("asked", True, 45)
    assert (spec.communication, spec.locality_wait_seconds, spec.gpu_models) == ("intensive", 300, ("NVIDIA H200",))
    assert spec.widest_domain == "rack"
    assert spec.components[1].resources["default"].minimum.gpu_millis == 300


async def test_who_borrows_must_find_each_phase_on_some_node(bench: Any) -> None:
    def job(*, borrows: bool, **learning: int) -> Any:
        phases = {
            "default": {"cpu_millis": 3000, "memory_mib": 64},
            "learning": {"cpu_millis": 100, "memory_mib": 64, **learning},
        }
        return {"command": ["true"], "resources": phases, "phase_entry": "asked", "borrows": borrows}

    await bench.history.node("n0", capacity=Resources(4000, 8192), gpus=())
    await bench.settle()
    assert (await bench.submit(job(borrows=True, memory_mib=8192))).status_code == 201
    problems = await bench.problems(job(borrows=True, memory_mib=8193))
    assert "memory_mib of 8192 or less" in problems["components"]
    assert "no known node has one" in (await bench.problems(job(borrows=True, gpus=1)))["components"]
    assert "no known node has one" in (await bench.problems(job(borrows=True, gpu_millis=300)))["components"]


async def test_phases_of_a_borrower_may_differ_in_their_share_but_not_in_the_size_of_its_device(bench: Any) -> None:
    def job(default: dict[str, int], learning: dict[str, int]) -> Any:
        phases = {
            "default": {"cpu_millis": 100, "memory_mib": 64, **default},
            "learning": {"cpu_millis": 100, "memory_mib": 64, **learning},
        }
        return {"command": ["true"], "resources": phases, "phase_entry": "asked", "borrows": True}

    share, larger = {"gpu_millis": 300}, {"gpu_millis": 700, "gpu_memory_mib": 40_000}
    assert (await bench.submit(job({}, larger))).status_code == 201
    assert (await bench.submit(job(share, {"gpu_millis": 700}))).status_code == 201
    assert (await bench.submit(job(share | {"gpu_memory_mib": 40_000}, larger))).status_code == 201
    assert "gpu_memory_mib of 40000 in phase default" in (await bench.problems(job(share, larger)))["components"]


@pytest.mark.parametrize(("name", "high", "low"), [("memory_mib", 65, 64), ("gpus", 2, 1), ("gpu_millis", 300, 299)])
async def test_who_asks_for_phases_needs_in_default_no_more_than_in_any_other(
    bench: Any, name: str, high: int, low: int
) -> None:
    """A phase that was left is `default`, at once: there is no ask that could wait for what that needs."""

    def job(default: int, entry: str) -> Any:
        phases = {
            phase: {"minimum": {"cpu_millis": 100, "memory_mib": 64, name: need}}
            for phase, need in {"default": default, "sampling": low, "learning": high}.items()
        }
        return {"command": ["true"], "resources": phases, "phase_entry": entry}

    problems = await bench.problems(job(high, "asked"))
    assert f"phase default of component main needs more {name} than another phase" in problems["components"]
    assert f"a minimum {name} of {low} or less in phase default" in problems["components"]
    assert (await bench.submit(job(low, "asked"))).status_code == 201
    assert (await bench.submit(job(high, "told"))).status_code == 201


async def test_the_shares_of_one_member_are_of_one_device(bench: Any) -> None:
    assert (await bench.submit(with_components(SHARE, {**SHARE, "replicas": 2}))).status_code == 201
    problems = await bench.problems(with_components(SHARE, {**SHARE, "replicas": 3}))
    assert "gpu_millis 1200" in problems["components"]
    assert "1000 or less" in problems["components"]
    whole = {"resources": {**AMOUNTS, "gpus": 1}}
    assert "share of one" in (await bench.problems(with_components(SHARE, whole)))["components"]


async def test_a_share_needs_one_device_that_is_large_enough(bench: Any) -> None:
    await bench.history.node("n0", capacity=Resources(4000, 8192), gpus=())
    await bench.settle()
    assert "no known node has one" in (await bench.problems(with_components(SHARE)))["components"]
    await bench.history.node()
    await bench.settle()
    share = {**AMOUNTS, "gpu_millis": 300, "gpu_memory_mib": 24576}
    assert (await bench.submit(with_components({"resources": share}))).status_code == 201
    larger = {"resources": {**share, "gpu_memory_mib": 24577}}
    assert "24576 or less with 1" in (await bench.problems(with_components(larger)))["components"]


async def test_a_model_that_no_known_node_has_is_refused_with_those_there_are(bench: Any) -> None:
    await bench.history.node()
    mixed = (GpuDevice(0, "u", "A", 40960), GpuDevice(1, "v", "B", 81920))
    await bench.history.node("n2", capacity=Resources(4000, 8192, 2, 40960), gpus=mixed)
    await bench.settle()

    def job(gpus: int, *models: str) -> Any:
        return {"command": ["true"], "resources": {**AMOUNTS, "gpus": gpus}, "gpu_models": list(models)}

    assert (await bench.submit(job(2, "A", "B"))).status_code == 201
    assert "some of A, B, H" in (await bench.problems(job(1, "C")))["gpu_models"]
    assert "largest known node has 1 of the accepted models" in (await bench.problems(job(2, "A")))["components"]


async def test_a_strict_gang_larger_than_the_nodes_of_any_cpu_model_is_refused(bench: Any) -> None:
    for name, model, switch in (("n1", "EPYC", "s1"), ("n2", "EPYC", "s2"), ("n3", "EPYC", "s2"), ("n4", "Xeon", "s2")):
        await bench.history.node(name, capacity=Resources(4000, 8192), gpus=(), switch=switch, cpu_model=model)
    await bench.settle()

    def gang(size: int, determinism: str, **more: Any) -> Any:
        resources = {"cpu_millis": 4000, "memory_mib": 64}
        job = {"command": ["true"], "resources": resources, "gang_size": size, "determinism": determinism}
        return {**job, "threads": 1, **more}

    assert (await bench.submit(gang(4, "relaxed"))).status_code == 201
    assert (await bench.submit(gang(3, "strict"))).status_code == 201
    problem = (await bench.problems(gang(4, "strict")))["gang_size"]
    assert "the best could hold 3 of its 4 members" in problem
    assert "determinism: relaxed" in problem
    assert (await bench.submit(gang(2, "strict", communication="intensive"))).status_code == 201
    assert "hold 2 of its 3" in (await bench.problems(gang(3, "strict", communication="intensive")))["gang_size"]


async def test_a_gang_larger_than_what_could_hold_it_is_refused(bench: Any) -> None:
    for name, switch in (("n1", "s1"), ("n2", "s1"), ("n3", "s2"), ("n4", ""), ("n5", "")):
        await bench.history.node(name, capacity=Resources(4000, 8192), gpus=(), switch=switch)
    await bench.settle()

    def gang(size: int, communication: str, cpu_millis: int = 2000) -> Any:
        resources = {"cpu_millis": cpu_millis, "memory_mib": 64}
        return {"command": ["true"], "resources": resources, "gang_size": size, "communication": communication}

    assert (await bench.submit(gang(10, "loose"))).status_code == 201
    assert "gang_size of 10 or less" in (await bench.problems(gang(11, "loose")))["gang_size"]
    assert (await bench.submit(gang(4, "intensive"))).status_code == 201
    problem = (await bench.problems(gang(5, "intensive")))["gang_size"]
    assert "the best could hold 4 of its 5 members" in problem
    assert "communication: loose" in problem
    assert "gang_size of 10 or less" in (await bench.problems(gang(11, "intensive")))["gang_size"]
    one_a_node = gang(2, "intensive", 3000)
    assert (await bench.submit(one_a_node)).status_code == 201
    assert "hold 2 of its 3" in (await bench.problems({**one_a_node, "gang_size": 3}))["gang_size"]


async def test_a_gang_larger_than_any_rack_is_refused(bench: Any) -> None:
    """Two switches of one name in two racks are two; what names no rack has one of its own."""
    places = {"n1": ("r1", "s1"), "n2": ("r1", "s2"), "n3": ("r2", "s1"), "n4": ("", "s3"), "n5": ("r1", "")}
    for name, (rack, switch) in places.items():
        await bench.history.node(name, capacity=Resources(2000, 8192), gpus=(), rack=rack, switch=switch)
    await bench.settle()

    def gang(size: int, **more: str) -> Any:
        resources = {"cpu_millis": 2000, "memory_mib": 64}
        return {"command": ["true"], "resources": resources, "gang_size": size, "communication": "intensive", **more}

    narrow = (await bench.problems(gang(2)))["gang_size"]
    assert "no switch has the nodes for it: the best could hold 1 of its 2 members" in narrow
    assert "widest_domain: rack, or communication: loose" in narrow
    assert (await bench.submit(gang(3, widest_domain="rack"))).status_code == 201
    wide = (await bench.problems(gang(4, widest_domain="rack")))["gang_size"]
    assert "no rack has the nodes for it: the best could hold 3 of its 4 members" in wide
    assert "widest_domain: rack" not in wide


async def test_shares_and_whole_gpus_bound_a_gang(bench: Any) -> None:
    await bench.history.node()
    await bench.settle()
    shares = {**with_components(SHARE), "gang_size": 6}
    assert (await bench.submit(shares)).status_code == 201
    assert "hold 6 of its 7" in (await bench.problems({**shares, "gang_size": 7}))["gang_size"]
    whole = {"command": ["true"], "resources": {**AMOUNTS, "gpus": 1}, "gang_size": 3}
    assert "hold 2 of its 3" in (await bench.problems(whole))["gang_size"]


async def test_a_combination_that_no_node_offers_is_refused(bench: Any) -> None:
    await bench.history.node("n1", capacity=Resources(8000, 8192), gpus=())
    await bench.history.node("n2", levels=("trusted", "vm"), capacity=Resources(1000, 8192), gpus=())
    await bench.settle()
    big = {"command": ["true"], "resources": {"cpu_millis": 4000, "memory_mib": 64}, "isolation": "vm"}
    assert "together" in (await bench.problems(big))["$"]


async def test_without_known_nodes_size_is_not_judged(bench: Any) -> None:
    huge = {"command": ["true"], "resources": {"cpu_millis": 900_000, "memory_mib": 64}, "isolation": "vm"}
    assert (await bench.submit(huge)).status_code == 201


async def test_paths_are_resolved_before_they_are_compared(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "in" / "data").mkdir()
    (tmp_path / "in" / "escape").symlink_to("/etc")
    (tmp_path / "in" / "fine").symlink_to(tmp_path / "in" / "data")

    def job(source: str, field: str = "inputs") -> Any:
        return {**SHORT, field: [{"name": "d", "source": source}]}

    root = tmp_path / "in"
    for bad in (f"{root}/escape/passwd", f"{root}/../out", f"{root}-other", "/", f"{root}/data/../../.."):
        assert "outside" in (await bench.problems(job(bad)))["inputs[0].source"]
    assert "no such file" in (await bench.problems(job(f"{root}/absent")))["inputs[0].source"]
    assert "outside" in (await bench.problems(job(f"{root}/data", "outputs")))["outputs[0].source"]
    answer = await bench.submit(job(f"{root}/fine"))
    spec = (await bench.client.get(f"/v1/jobs/{answer.json()['job_id']}")).json()["spec"]
    assert spec["inputs"] == [{"name": "d", "source": str((root / "data").resolve())}]
    assert (await bench.submit(job(f"{tmp_path}/out/new", "outputs"))).status_code == 201


async def test_a_tenant_is_held_to_its_file(make_bench: Any, tmp_path: Path) -> None:
    file = tmp_path / "tenants.json"
    file.write_text('{"tenants": {"lab-a": {"max_priority": 50}}}')
    async with make_bench(tmp_path / "g", tenants_file=file) as bench:
        assert (await bench.submit({**SHORT, "tenant": "lab-a", "priority": 50})).status_code == 201
        assert "0 to 50" in (await bench.problems({**SHORT, "tenant": "lab-a", "priority": 51}))["priority"]
        assert "lab-a" in (await bench.problems({**SHORT, "tenant": "lab-b"}))["tenant"]


async def test_the_same_key_gives_the_same_job_and_writes_nothing(bench: Any, valid: Any) -> None:
    first = await bench.submit(valid, key="k-1")
    again = await bench.submit(valid, key="k-1")
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    in_body = await bench.submit({**valid, "idempotency_key": "k-1"})
    assert in_body.json() == first.json()
    assert await bench.journal.end() == 1
    other = await bench.submit({**valid, "seed": 8}, key="k-1")
    assert (other.status_code, other.json()["job_id"]) == (409, first.json()["job_id"])
    assert (await bench.submit({**valid, "tenant": "lab-b"}, key="k-1")).json()["job_id"] != first.json()["job_id"]


async def test_a_retry_is_answered_even_when_the_cluster_would_refuse_it_now(bench: Any, valid: Any) -> None:
    first = await bench.submit(valid, key="k")
    await bench.history.node("n1", capacity=Resources(10, 10), levels=("vm",), images={})
    await bench.settle()
    assert (await bench.submit(valid, key="k")).json() == first.json()
    assert (await bench.submit(valid, key="k2")).status_code == 422


async def test_without_a_key_every_request_is_a_new_job(bench: Any, valid: Any) -> None:
    ids = {(await bench.submit(valid)).json()["job_id"] for _ in range(3)}
    assert len(ids) == 3


async def test_two_keys_that_differ_are_refused(bench: Any, valid: Any) -> None:
    answer = await bench.submit({**valid, "idempotency_key": "a"}, key="b")
    assert answer.status_code == 422
    assert "idempotency_key" in answer.text


async def test_equal_jobs_are_one_however_they_are_written(bench: Any) -> None:
    first = await bench.submit(SHORT, key="k")
    spelled_out = {**SHORT, "image": "host", "isolation": "trusted", "env": {}, "threads": 1, "restart": {}}
    assert (await bench.submit(spelled_out, key="k")).json() == first.json()
