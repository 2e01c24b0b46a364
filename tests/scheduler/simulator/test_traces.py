"""Traces of others as workloads, lists of nodes, and what is said of files that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidegate_events.resources import Resources
from tidegate_events.spec import member_floor
from tidegate_scheduler.simulator.errors import InputError
from tidegate_scheduler.simulator.traces import find, nodespec, openb
from tidegate_scheduler.simulator.traces.training import members_of

SECOND = 1_000_000_000
MURI = """job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,priority
1,8,100500,5,dqn,128,90500,60000,490,0
0,16,160500,5,vgg16,16,4472,1,214,1
"""
PHILLY = """job_id,user,num_gpu,submit_time,iterations,duration,best_effort
0,vc_a,1,50,5049,747,0
1,vc_b,0,832,296,98,1
2,vc_a,12,832,296,30,1
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-0,12000,16384,1,1000,,LS,Running,1000,1500,1000
pod-1,6000,12288,1,460,V100M32|V100M16,LS,Failed,900,900,
pod-2,1000,1024,0,0,,BE,Running,1200,1300,1200
"""
NODES = """sn,cpu_milli,memory_mib,gpu,model
openb-node-0,64000,262144,2,P100
openb-node-1,96000,524288,0,
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_muri_trace(tmp_path: Path) -> None:
    work = find.read(written(tmp_path / "muri.csv", MURI), nodespec.parse("4x8"))
    first, second = work.arrivals
    assert (work.name, first.job, first.at_ns, second.job, second.at_ns) == (
        "muri",
        "muri-00001",
        0,
        "muri-00000",
        60 * SECOND,
    )
    assert (first.spec.gang_size, member_floor(first.spec).gpus) == (1, 8)
    assert (second.spec.gang_size, member_floor(second.spec).gpus) == (2, 8)
    assert [span.work_ms for span in first.truth.spans] == [90500]
    assert (first.truth.work_seconds, first.spec.expected_seconds) == (90, 91)
    assert second.spec.expected_seconds == 5


def test_a_philly_trace(tmp_path: Path) -> None:
    work = find.read(written(tmp_path / "philly.csv", PHILLY), nodespec.parse("4x8"))
    assert [(each.job, each.at_ns // SECOND, each.spec.tenant) for each in work.arrivals] == [
        ("philly-000000", 0, "vc_a"),
        ("philly-000001", 782, "vc_b"),
        ("philly-000002", 782, "vc_a"),
    ]
    floors = [member_floor(each.spec) for each in work.arrivals]
    assert [(floor.gpus, floor.cpu_millis) for floor in floors] == [(1, 1000), (0, 1000), (6, 6000)]
    assert work.arrivals[2].spec.gang_size == 2
    assert work.arrivals[0].truth.work_seconds == 747


def test_a_list_of_pods_with_a_list_of_nodes(tmp_path: Path) -> None:
    nodes = nodespec.parse(str(written(tmp_path / "nodes.csv", NODES)))
    assert [(each.node, len(each.gpus), each.capacity) for each in nodes] == [
        ("openb-node-0", 2, Resources(64000, 262144, 2)),
        ("openb-node-1", 0, Resources(96000, 524288, 0)),
    ]
    assert nodes[0].gpus[1].model == "P100"
    work = find.read(written(tmp_path / "pods.csv", PODS), nodes)
    assert [(each.job, each.at_ns // SECOND, each.truth.work_seconds) for each in work.arrivals] == [
        ("pod-1", 0, 1),
        ("pod-0", 100, 500),
        ("pod-2", 300, 100),
    ]
    shared, whole, none = (each.spec for each in work.arrivals)
    assert member_floor(shared) == Resources(6000, 12288, 0, gpu_millis=460)
    assert shared.gpu_models == ("V100M16", "V100M32")
    assert (member_floor(whole), whole.gpu_models) == (Resources(12000, 16384, 1), ())
    assert member_floor(none) == Resources(1000, 1024)


def test_a_list_of_pods_without_times_is_a_list_and_no_workload(tmp_path: Path) -> None:
    path = written(tmp_path / "pods.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1000,1024,2,1000\n")
    assert openb.pods(path) == (openb.Pod("p", 1000, 1024, 2, 0),)
    with pytest.raises(InputError, match="no column creation_time, deletion_time"):
        find.read(path, nodespec.parse("1x2"))


@pytest.mark.parametrize(
    ("gpus", "per_node", "members"),
    [
        (1, 8, (1, 1)),
        (8, 8, (1, 8)),
        (16, 8, (2, 8)),
        (12, 8, (2, 6)),
        (20, 8, (4, 5)),
        (7, 4, (7, 1)),
        (0, 8, (1, 0)),
        (32, 4, (8, 4)),
    ],
)
def test_a_job_larger_than_a_node_is_a_gang_of_equals(gpus: int, per_node: int, members: tuple[int, int]) -> None:
    assert members_of(gpus, per_node) == members


# ---- nodes in a word ----


def test_nodes_in_a_word() -> None:
    nodes = nodespec.parse("2x8 + 1x(cpu=32, gpus=4, memory=128G, model=A100) + 1x(cpu=4,memory=512M)")
    assert [each.node for each in nodes] == ["node-1", "node-2", "node-3", "node-4"]
    assert nodes[0].capacity == Resources(64_000, 8 * 64 * 1024, 8)
    assert nodes[2].capacity == Resources(32_000, 128 * 1024, 4)
    assert {gpu.model for gpu in nodes[2].gpus} == {"A100"}
    assert nodes[3].capacity == Resources(4000, 512, 0)
    assert nodespec.parse("12x1")[0].node == "node-01"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "accepted is COUNTxGPUS"),
        ("8", "accepted is COUNTxGPUS"),
        ("8x", "accepted is COUNTxGPUS"),
        ("\u0663x8", "accepted is COUNTxGPUS"),
        ("3x\u0668", "accepted is COUNTxGPUS"),
        ("8x(cpu=4,memory=\u0661G)", "a number of MiB or GiB"),
        ("0x8", "accepted are 1 to"),
        ("30000x8", "accepted are 1 to"),
        ("8x0", "accepted are 1 to 64 GPUs"),
        ("8x65", "accepted are 1 to 64 GPUs"),
        ("8x(gpus=4,memory=1G)", "lacks cpu"),
        ("8x()", "accepted are cpu, gpus, memory and model"),
        ("8x(cpu=4,cpu=5,memory=1G)", "each once"),
        ("8x(cpu=4,disk=5,memory=1G)", "accepted are cpu"),
        ("8x(cpu=-4,memory=1G)", "a whole number from 1"),
        ("8x(cpu=²,memory=1G)", "a whole number from 1"),
        ("8x(cpu=4,memory=1T)", "a number of MiB or GiB"),
        ("8x(cpu=4,memory=0G)", "a number of MiB or GiB"),
        ("nowhere.csv", "No such file"),
    ],
)
def test_nodes_that_are_not_understood(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        nodespec.parse(text)


# ---- files that cannot be used ----


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "no known format: it has the columns a, b. Accepted are muri"),
        (PHILLY.splitlines()[0] + "\n", "no rows"),
        (PHILLY + "3,vc,1\n", r"line 5: 3 values; accepted is one for each of the 7 columns"),
        (PHILLY + "3,vc,x,1,1,1,0\n", "line 5: num_gpu is 'x'; accepted is a number from 0 to 1000000000000"),
        (PHILLY + "3,vc,1,-5,1,1,0\n", "line 5: submit_time is '-5'"),
        (PHILLY + "3,vc,1,5,1,0,0\n", "line 5: duration is '0'; accepted is a number from 1 to 315360000"),
        (PHILLY + "3,vc,1,5,1,1e300,0\n", "line 5: duration is '1e300'"),
        (PHILLY + "3,vc,1_0,5,1,1,0\n", "line 5: num_gpu is '1_0'"),
        (PHILLY + "0,vc,1,5,1,1,0\n", "has philly-000000 more than once"),
        ("job_id," + PHILLY, "more than one column job_id"),
        (PHILLY + "3,vc,1,5,1,nan,0\n", "line 5: duration is 'nan'"),
        (PHILLY + "3,vc,1,5,1,inf,0\n", "line 5: duration is 'inf'"),
        (PODS + "pod-3,1,1,1,2000,,LS,Running,0,1,0\n", "gpu_milli is '2000'; accepted is at most 1000"),
        (PODS + "pod-3,1,1,0,500,,LS,Running,0,1,0\n", "line 5: gpu_milli is '500'; accepted is 0 where num_gpu is 0"),
        (PODS + "pod-3,1,1,2,500,,LS,Running,0,1,0\n", "gpu_milli is '500'; accepted is 1000 where num_gpu is 2"),
        (PODS + "pod-3,1,1,1,1000,,LS,Running,10,1,0\n", "deletion_time is '1'; accepted is a number from 10 to 3153"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_its_line(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        find.read(written(tmp_path / "trace.csv", text), nodespec.parse("2x8"))


def test_a_file_with_the_mark_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    work = find.read(written(tmp_path / "philly.csv", "\ufeff" + PHILLY), nodespec.parse("4x8"))
    assert len(work.arrivals) == 3


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory; accepted is a CSV file"):
        find.read(tmp_path / "nowhere", nodespec.parse("2x8"))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a CSV file in UTF-8"):
        find.read(tmp_path / "binary.csv", nodespec.parse("2x8"))
    with pytest.raises(InputError, match="want GPUs, and no node has any"):
        find.read(written(tmp_path / "p.csv", PHILLY), nodespec.parse("1x(cpu=4,memory=8G)"))
    doubled = NODES + "openb-node-0,1000,1000,0,\n"
    with pytest.raises(InputError, match="line 4: sn is 'openb-node-0'; accepted is a name of its own"):
        nodespec.read(written(tmp_path / "nodes.csv", doubled))
