"""Several of a kind: names, ports, rights and shares that never meet."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path

import pytest
from tidegate_local import bus, plan, preflight
from tidegate_local.home import Home
from tidegate_local.permissions import KEEPER, denied, publish_permissions
from tidegate_local.plan import StackOptions
from tidegate_local.topology import EXECUTOR, NATS, NODES_MAX, ONE_OF_EACH, SCHEDULER, Topology, TopologyError, check

THREE = Topology(bus_servers=3, schedulers=2, nodes=3)


def options(home: Path, topology: Topology = THREE) -> StackOptions:
    return StackOptions(home=home, topology=topology, cpu_millis=3000, memory_mib=900)


def test_the_only_one_of_its_kind_has_the_name_of_its_kind() -> None:
    for kind in (NATS, SCHEDULER, EXECUTOR, "gateway"):
        assert [(each.name, each.instance) for each in ONE_OF_EACH.processes(kind)] == [(kind, "local")]
    assert ONE_OF_EACH.node_names == ("local",)


def test_several_are_counted() -> None:
    assert [each.name for each in THREE.processes(NATS)] == ["nats-1", "nats-2", "nats-3"]
    assert [each.instance for each in THREE.processes(SCHEDULER)] == ["scheduler-1", "scheduler-2"]
    assert [each.name for each in THREE.processes(EXECUTOR)] == ["executor-1", "executor-2", "executor-3"]
    assert THREE.node_names == ("node-1", "node-2", "node-3")


@pytest.mark.parametrize(
    ("topology", "accepted"),
    [(Topology(bus_servers=2), "1, or 3"), (Topology(nodes=0), "1 to 9"), (Topology(schedulers=10), "1 to 9")],
)
def test_numbers_that_make_no_stack_are_refused(topology: Topology, accepted: str, tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=accepted):
        check(topology)
    (problem, *_) = asyncio.run(preflight.check(options(tmp_path, topology)))
    assert accepted in problem.what


def test_an_agent_says_only_what_its_own_node_may_say() -> None:
    logins = publish_permissions(THREE)
    for agent in THREE.processes(EXECUTOR):
        own = {subject for subject in logins[agent.name] if "node-" in subject}
        said = {f"{before}.{agent.instance}" for before in ("tg.fact.node", "tg.live", "tg.telemetry")}
        assert own == {*said, f"tg.gang.{agent.instance}.*"}
    decides = [login for login, subjects in logins.items() if "tg.decision" in subjects]
    assert decides == ["scheduler-1", "scheduler-2"]


def test_only_the_keeper_makes_streams_and_only_the_journals() -> None:
    for login, subjects in publish_permissions(THREE).items():
        makes = [subject for subject in subjects if "STREAM.CREATE" in subject or "STREAM.DELETE" in subject]
        assert bool(makes) == (login == KEEPER)
    refused = denied(KEEPER)
    for stream in ("USER", "TELEMETRY", "DEADLETTER", "KV_LEASE", "KV_POSITIONS", "OBJ_SNAPSHOTS"):
        assert f"$JS.API.STREAM.DELETE.{stream}" in refused


def test_every_port_is_its_own() -> None:
    ports = plan.free_ports(3).by_name()
    names = {
        "postgres",
        "gateway",
        "metrics",
        *(f"nats{part}-{number}" for part in ("", "-route") for number in (1, 2, 3)),
    }
    assert ports.keys() == names
    assert len({*ports.values()}) == len(names)
    assert plan.free_ports().by_name().keys() == {"postgres", "gateway", "metrics", "nats"}


def test_nodes_share_what_is_offered_and_nothing_else(tmp_path: Path) -> None:
    agents = [plan.executor_env(agent, options(tmp_path)) for agent in THREE.processes(EXECUTOR)]
    assert {(env["TIDEGATE_CPU_MILLIS"], env["TIDEGATE_MEMORY_MIB"]) for env in agents} == {("1000", "300")}
    assert {env["TIDEGATE_IMAGE_CACHE_DIR"] for env in agents} == {agents[0]["TIDEGATE_IMAGE_CACHE_DIR"]}
    for variable in ("TIDEGATE_NODE", "TIDEGATE_CGROUP_NAME", "TIDEGATE_SHARE_INDEX"):
        assert len({env[variable] for env in agents}) == 3
    assert {env["TIDEGATE_SHARE_COUNT"] for env in agents} == {"3"}
    assert [env["TIDEGATE_NODE_SWITCH"] for env in agents] == ["switch-1", "switch-1", "switch-2"]
    assert [env["TIDEGATE_NODE_RACK"] for env in agents] == ["rack-1", "rack-1", "rack-1"]
    five = Topology(nodes=5)
    racks = [
        plan.executor_env(agent, options(tmp_path, five))["TIDEGATE_NODE_RACK"] for agent in five.processes(EXECUTOR)
    ]
    assert racks == ["rack-1"] * 4 + ["rack-2"]


def test_nodes_of_one_home_never_share_uids() -> None:
    """An agent takes its range by the last byte of its directory's CRC, and their directories differ in one digit."""
    nodes = Topology(nodes=NODES_MAX).node_names
    for home in ("/a", "/srv/tidegate/home", "/tmp/pytest-of-root/pytest-17/test_0/home"):
        spread = {zlib.crc32(f"{home}/nodes/{node}".encode()) % 256 for node in nodes}
        assert len(spread) == NODES_MAX


def test_options_survive_their_way_to_the_supervisor(tmp_path: Path) -> None:
    given = options(tmp_path)
    assert StackOptions.from_json(given.to_json()) == given


def test_a_bus_of_another_size_is_refused_where_history_would_seem_gone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    (bus.store_dir(home, THREE.processes(NATS)[1]) / "jetstream").mkdir(parents=True)
    assert preflight._numbers(options(tmp_path)) == []
    (problem,) = preflight._numbers(options(tmp_path, ONE_OF_EACH))
    assert "a bus of 3, not of 1" in problem.what
    assert "--bus-servers 3" in problem.remedy
