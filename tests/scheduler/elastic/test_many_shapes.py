"""However little is remembered of shapes and of what changed, decisions are those of an index that is made anew."""

from __future__ import annotations

import pytest
from tidegate_scheduler.policy.elastic import changes, standing, table

from tests.scheduler.elastic.lab import elastic, kinds
from tests.scheduler.elastic.world import answers, told_anew
from tests.support.cluster import Cluster, spec


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have everything forgotten that a larger cluster forgets, after a few."""
    monkeypatch.setattr(changes, "LOG_ROWS_MAX", 5)
    monkeypatch.setattr(changes, "ROUNDS_REMEMBERED", 2)
    monkeypatch.setattr(standing, "FITS_MAX", 3)
    monkeypatch.setattr(table, "SCORES_KEPT", 2)


def crowded() -> Cluster:
    """Return a full cluster before which jobs of twenty shapes wait, gangs among them."""
    cluster = elastic()
    for number in range(6):
        cluster.node(f"n{number}", 4000, gpus=4, switch=f"s{number // 2}")
    for number in range(40):
        need = {"gpus": number % 3, "gang": 3 if number % 7 == 0 else 1, "priority": number % 2}
        limit = 500 if number % 5 == 0 else None
        cluster.submit(spec(900, memory=100 + number // 2, time_limit_seconds=limit, **need), f"j{number:02d}")
    cluster.settle()
    return cluster


def assert_known(cluster: Cluster) -> None:
    for turned in (False, True):
        assert answers(cluster.state, cluster.now) == answers(told_anew(cluster.frames, turned=turned), cluster.now)


@pytest.mark.parametrize("bounds", ["as they are", "of a few"])
def test_what_is_forgotten_changes_no_decision(bounds: str, request: pytest.FixtureRequest) -> None:
    if bounds == "of a few":
        request.getfixturevalue("forgetful")
    cluster = crowded()
    placed = 0
    for _ in range(12):
        first = next(job.id for job in cluster.state.jobs.values() if job.members)
        cluster.start(first)
        placed += kinds(cluster.exit(first, "completed")).count("JobPlaced")
        assert_known(cluster)
        cluster.advance(40)
        assert_known(cluster)
    assert placed >= 6, "or nothing would have been asked again"


def test_the_decisions_do_not_tell_how_much_was_remembered(request: pytest.FixtureRequest) -> None:
    told = []
    for _ in range(2):
        cluster = crowded()
        for name in [job.id for job in cluster.state.jobs.values() if job.members][:4]:
            cluster.start(name)
            cluster.exit(name, "completed")
        told.append([recorded.frame for recorded in cluster.frames])
        request.getfixturevalue("forgetful")
    assert told[0] == told[1]
