"""A job with GPUs goes only where its level of isolation passes them; nodes that say nothing pass them at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.why import why
from tidegate_scheduler.offers import offers_less

from tests.scheduler.elastic.lab import elastic, of
from tests.scheduler.history.files import history_in, told
from tests.support.cluster import Cluster, spec

BOTH = ("trusted", "unisolated")


@pytest.fixture(params=[Cluster, elastic], ids=["first", "elastic"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Under each policy."""
    made: Callable[[], Cluster] = request.param
    return made()


@pytest.mark.parametrize("needs", [{"gpus": 1}, {"gpus": 2}])
def test_it_goes_past_nodes_that_pass_none_at_its_level(cluster: Cluster, needs: dict[str, Any]) -> None:
    cluster.node("n1", gpus=2, levels=BOTH, gpu_levels=("unisolated",))
    cluster.submit(spec(1000, **needs), "job")
    assert of(cluster.settle(), e.JobPlaced) == []
    cluster.node("n2", gpus=2, levels=BOTH)
    (placed,) = of(cluster.settle(), e.JobPlaced)
    assert [member.node for member in placed.members] == ["n2"]


def test_a_share_goes_past_them_too() -> None:
    cluster = elastic()
    cluster.node("n1", gpus=2, levels=BOTH, gpu_levels=())
    cluster.node("n2", gpus=2, levels=BOTH, gpu_levels=("trusted",))
    cluster.submit(spec(1000, gpu_millis=500), "job")
    (placed,) = of(cluster.settle(), e.JobPlaced)
    assert [member.node for member in placed.members] == ["n2"]


def test_a_job_without_gpus_and_one_of_another_level_go_there(cluster: Cluster) -> None:
    cluster.node("n1", gpus=1, levels=BOTH, gpu_levels=("unisolated",))
    cluster.submit(spec(1000), "plain")
    cluster.submit(spec(1000, gpus=1, isolation="unisolated"), "open")
    cluster.settle()
    assert (cluster.stage("plain"), cluster.stage("open")) == ("placed", "placed")


def test_a_node_that_passes_them_no_more_offers_less() -> None:
    """Who needs them is not rejected at once: its agent may have been started anew before its files were there."""
    cluster = elastic()
    cluster.node("n1", gpus=1, levels=BOTH)
    before = msgspec.structs.replace(cluster.state.nodes["n1"])
    cluster.node("n1", gpus=1, levels=BOTH, gpu_levels=("unisolated",), incarnation=2)
    fewer = cluster.state.nodes["n1"]
    assert (offers_less(fewer, before), offers_less(before, fewer), offers_less(before, before)) == (True, False, False)


def test_why_it_waits_and_that_no_node_passes_them_is_said() -> None:
    cluster = elastic()
    cluster.node("n1", gpus=1, levels=BOTH, gpu_levels=("unisolated",))
    cluster.submit(spec(1000, gpus=1), "job")
    rejected: list[e.JobRejected] = []
    for _ in range(600):
        rejected += of(cluster.advance(1), e.JobRejected)
    assert [event.reasons[0].detail for event in rejected] == ["no node passes GPUs to a job at isolation trusted"]


async def test_of_each_node_is_said_where_it_passes_them(tmp_path: Path) -> None:
    cluster = elastic()
    cluster.node("n1", gpus=1, levels=BOTH, gpu_levels=("unisolated",))
    cluster.node("n2", gpus=1, levels=BOTH)
    cluster.submit(spec(1000, gpus=1), "first")
    cluster.settle()
    cluster.start("first")
    cluster.submit(spec(1000, gpus=1), "job")
    cluster.settle()
    found = await why(history_in(tmp_path, cluster), "job", Moment(), told)
    assert found.waits is not None
    verdicts = {each.node: (each.code, each.detail) for each in found.waits.nodes}
    assert verdicts["n1"] == ("Isolation", "it passes GPUs at unisolated, not at trusted")
    assert verdicts["n2"][0] != "Isolation"
