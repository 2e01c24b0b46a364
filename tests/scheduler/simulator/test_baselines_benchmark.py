"""The benchmark of policies on traces small enough to see what its rows say."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tidegate_scheduler.simulator.engine import simulate
from tidegate_scheduler.simulator.run import Run

from benchmarks import elastic, policies

ROW = [
    "trace",
    "policy",
    "knows_durations",
    "avg_jct_s",
    "p99_jct_s",
    "makespan_s",
    "gpu_utilization",
    "gpu_allocation_pct",
    "preemptions",
    "lost_gpu_s",
]


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Return a folder of traces: four jobs, and pods for two nodes."""
    muri = ["job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,priority"]
    muri += [f"{number},8,0,1,m,1,{100_000 * (number + 1)},0,1,0" for number in range(10)]
    (tmp_path / "muri_trace1_pr.csv").write_text("\n".join(muri) + "\n")
    nodes = ["sn,cpu_milli,memory_mib,gpu,model", "n1,32000,65536,4,A", "n2,32000,65536,4,A"]
    (tmp_path / "openb_node_list_gpu_node.csv").write_text("\n".join(nodes) + "\n")
    pods = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"]
    pods += [f"p{number},1000,1024,1,500," for number in range(4)] + ["p9,2000,1024,2,1000,"]
    (tmp_path / "openb_pod_list_default.csv").write_text("\n".join(pods) + "\n")
    return tmp_path


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    policies.main(arguments)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_row_says_what_a_policy_came_to(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fifo, srsf = (
        rows(capsys, "--traces", str(traces), "--trace", "muri", "--policy", name)[0] for name in ("fifo", "srsf")
    )
    assert list(fifo)[: len(ROW)] == ROW
    assert (fifo["policy"], fifo["knows_durations"], srsf["knows_durations"]) == ("fifo", False, True)
    assert fifo["jobs_completed"] == srsf["jobs_completed"] == 10
    assert srsf["avg_jct_s"] <= fifo["avg_jct_s"]  # type: ignore[operator]


def test_only_the_first_jobs_are_taken_where_that_is_asked_for(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = rows(capsys, "--traces", str(traces), "--trace", "muri", "--policy", "fifo", "--jobs", "3")
    assert (row["jobs_completed"], row["trace"]) == (3, "muri on 8x8, first 3 jobs")


@pytest.mark.parametrize("policy", ["best_fit", "fgd", "elastic", "elastic-placing"])
def test_pods_are_drawn_until_they_ask_for_all_gpus_and_what_is_held_counts(
    policy: str, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, mean = rows(capsys, "--traces", str(traces), "--trace", "openb", "--policy", policy, "--seeds", "2")
    found = [first["gpu_allocation_pct"], second["gpu_allocation_pct"]]
    assert mean["trace"] == "openb, mean of 2 seeds"
    assert mean["gpu_allocation_pct"] == pytest.approx(sum(found) / 2, abs=0.01)  # type: ignore[arg-type]
    assert all(75 <= each <= 100 for each in found)  # type: ignore[operator]


def test_rows_of_openb_stand_beside_what_the_study_of_fgd_has(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["workload,sc_policy,tune,seed,total_gpus,90,95,100"]
    for workload, tune, more in (("openb_pod_list_default", "1.3", 0), ("other", "1.3", 5), ("other", "1.0", 9)):
        lines += [f"{workload},06-FGD,{tune},{seed},8,80.5,80.75,{81.25 + more + seed - 42}" for seed in (42, 43)]
    (traces / "fgd_expected_alloc_pct.csv").write_text("\n".join(lines) + "\n")
    arguments = ("--traces", str(traces), "--trace", "openb", "--seeds", "2")
    assert [row["known_allocation_pct"] for row in rows(capsys, *arguments, "--policy", "fgd")] == [81.25, 82.25, 81.75]
    assert {row["known_allocation_pct"] for row in rows(capsys, *arguments, "--policy", "elastic")} == {None}
    three = rows(capsys, *arguments[:-1], "3", "--policy", "fgd")
    assert [row["known_allocation_pct"] for row in three] == [81.25, 82.25, None, None], "no mean of fewer seeds"


def test_a_seed_draws_the_same_pods_again(traces: Path) -> None:
    one, same, other = (policies.drawn(traces, seed) for seed in (1, 1, 2))
    assert one == same
    assert [each.spec.name for each in one.arrivals] != [each.spec.name for each in other.arrivals]


def test_openb_rows_count_what_was_preempted_and_lost(
    traces: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the known policies none has anybody leave here: under one that does, rows say so."""

    def preempting(*arguments: object, **more: object) -> Run:
        run = simulate(*arguments, **more)  # type: ignore[arg-type]
        first = msgspec.structs.replace(run.jobs[0], preemptions=3, lost_gpu_ms=4500)
        return msgspec.structs.replace(run, jobs=(first, *run.jobs[1:]))

    monkeypatch.setattr(policies, "simulate", preempting)
    found = rows(capsys, "--traces", str(traces), "--trace", "openb", "--policy", "best_fit", "--seeds", "2")
    assert [(row["preemptions"], row["lost_gpu_s"]) for row in found] == [(3, 4.5)] * 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--seeds", "0"), "'0' is refused; accepted is a whole number from 1 on"),
        (("--jobs", "-5"), "'-5' is refused"),
        (
            ("--trace", "openb", "--policy", "srtf"),
            "there is no row of srtf for openb; --list says which rows there are",
        ),
    ],
)
def test_what_has_no_rows_is_refused(
    arguments: tuple[str, ...], told: str, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as found:
        policies.main(["--traces", str(traces), *arguments])
    assert found.value.code != 0
    assert told in f"{found.value.code} {capsys.readouterr().err}"


@pytest.mark.parametrize(("jobs", "told"), [("14", "14 jobs all work at once"), ("0", "'0' is refused")])
def test_elastic_quotas_are_not_compared_where_nobody_waits(
    jobs: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as found:
        elastic.main(["--jobs", jobs, "--scale", "100,100"])
    assert told in f"{found.value.code} {capsys.readouterr().err}"


def test_every_row_is_listed(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policies.main(["--traces", str(traces), "--list"])
    listed = capsys.readouterr().out.split("\n")[:-1]
    assert len(listed) == sum(len(policy.traces) for policy in policies.POLICIES) == len(set(listed))
