"""GPUs that are left without CPU: where jobs go so that fewest of them are, and one score however it is counted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tidegate_events.resources import Resources
from tidegate_scheduler.policy.elastic import stranded
from tidegate_scheduler.policy.elastic.pipeline import index_of
from tidegate_scheduler.policy.elastic.shapes import NOWHERE, PLACE_BITS, Fit, Shape
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import elastic, nodes_of, run
from tests.support.cluster import spec

BESIDE = Parameters(cpu_beside_gpu_millis=4000)


def placed_on(parameters: Parameters, other: tuple[int, int], cpu: int, gpus: int = 0) -> str:
    """Return where a job goes: to a node with four CPUs for each of its two GPUs, or to the other one."""
    cluster = elastic(parameters)
    cluster.node("balanced", 8000, gpus=2)
    cluster.node("other", other[0], gpus=other[1])
    return nodes_of(cluster, run(cluster, "job", spec(cpu, gpus=gpus)))[0]


def test_a_job_without_gpus_goes_where_cpu_is_to_spare() -> None:
    rich = (40_000, 4)
    assert placed_on(Parameters(), rich, 2000) == "balanced"  # the tightest
    assert placed_on(BESIDE, rich, 2000) == "other"


def test_a_job_of_much_gpu_and_little_cpu_frees_what_is_stranded() -> None:
    starved = (12_000, 4)
    assert placed_on(Parameters(), starved, 500, gpus=1) == "balanced"
    assert placed_on(BESIDE, starved, 500, gpus=1) == "other"


def test_where_it_makes_no_difference_the_tightest_node_is_taken() -> None:
    assert placed_on(BESIDE, (16_000, 4), 4000, gpus=1) == "balanced"


def test_another_number_counts_at_once() -> None:
    cluster = elastic(BESIDE)
    cluster.node("n1", 8000, gpus=2)
    cluster.submit(spec(16_000), "waits")
    cluster.settle()
    index = index_of(cluster.state)
    shape = Shape("trusted", "host", Resources(2000, 512), 1)
    before = int(Fit(shape, index.table).score()[0])
    stranded.count_beside(index.table, 0)
    kept = Fit(shape, index.table)
    assert int(kept.score()[0]) != before
    stranded.count_beside(index.table, 4000)
    assert int(kept.score()[0]) == before


AMOUNTS = st.tuples(st.integers(-4000, 600_000), st.just(1000), st.integers(-2, 40), st.integers(0, 999))


@given(room=AMOUNTS, cpu=st.integers(0, 100_000), gpus=st.integers(0, 16), millis=st.integers(0, 999), data=st.data())
def test_one_row_and_many_are_counted_alike_and_a_score_is_never_nowhere(
    room: tuple[int, ...], cpu: int, gpus: int, millis: int, data: st.DataObject
) -> None:
    need = Resources(cpu, 512, gpus, gpu_millis=0 if gpus else millis)
    shape = Shape("trusted", "host", need, 1)
    beside, broken = data.draw(st.integers(1, 100_000)), data.draw(st.integers(0, 1))
    one = stranded.tightness(shape, list(room), broken, beside)
    many = stranded.tightnesses(shape, np.array([room, room], np.int64).T, np.array([broken, 0]), beside)
    assert many[0] == one
    assert 0 <= one << PLACE_BITS < NOWHERE - (1 << PLACE_BITS)
