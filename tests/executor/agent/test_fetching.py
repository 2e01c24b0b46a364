"""A job that resumes on another node finds its checkpoint there: fetched from the tiers before anything starts."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tidegate.checkpoint.store import Committed
from tidegate.tiers.tiers import Settings, Tiers
from tidegate_events.events import CheckpointRef
from tidegate_executor import checkpoints, preparation
from tidegate_executor.preparation import RefusedError

from tests.sdk.tiers.moved import JOB, TENANT, Node


@pytest.fixture
def saved_elsewhere(tmp_path: Path) -> Node:
    """Return the node that the job saved on."""
    return Node(Tiers(Settings(tmp_path / "n1", str(tmp_path / "warm"))))


def placed(tmp_path: Path, committed: Committed, **settings: Any) -> tuple[Any, Any]:
    """Return a node's context, and an order to resume there."""
    rates = dict.fromkeys(("tier_mib_per_second", "warm_mib_per_second", "cold_mib_per_second"), 0)
    named = {"warm": str(tmp_path / "warm"), "cold": "", **rates} | settings
    context = SimpleNamespace(settings=SimpleNamespace(hot_dir=str(tmp_path / "n2"), **named))
    ref = checkpoints.reference(committed.root)
    return context, SimpleNamespace(tenant=TENANT, job=JOB, resume=ref)


def test_it_is_fetched_before_the_job_starts(tmp_path: Path, saved_elsewhere: Node) -> None:
    committed = saved_elsewhere.save(4)
    saved_elsewhere.promote(committed)
    context, order = placed(tmp_path, committed)
    hot = preparation._hot_directory(context, order)
    found = Node(Tiers(Settings(tmp_path / "n2"))).find()
    assert (hot, found.committed.root) == (tmp_path / "n2" / TENANT / JOB, committed.root)
    assert list((tmp_path / "n2" / ".staging").iterdir()) == []


def test_it_is_waited_for_while_it_is_on_its_way(tmp_path: Path, saved_elsewhere: Node) -> None:
    committed = saved_elsewhere.save(4)
    context, order = placed(tmp_path, committed)
    promotion = threading.Timer(0.8, saved_elsewhere.promote, (committed,))
    promotion.start()
    preparation._hot_directory(context, order)
    promotion.join()
    assert Node(Tiers(Settings(tmp_path / "n2"))).find().committed.root == committed.root


def test_a_checkpoint_that_lost_a_pack_here_is_made_whole(tmp_path: Path, saved_elsewhere: Node) -> None:
    committed = saved_elsewhere.save(4)
    saved_elsewhere.promote(committed)
    context, order = placed(tmp_path, committed)
    preparation._hot_directory(context, order)
    here = Node(Tiers(Settings(tmp_path / "n2")))
    here.pack_files("hot")[0].unlink()
    preparation._hot_directory(context, order)
    assert here.find().skipped == 0


def test_what_no_tier_has_is_refused_before_anything_starts(
    tmp_path: Path, saved_elsewhere: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "PROMOTION_SECONDS_MAX", 0.0)
    committed = saved_elsewhere.save(4)
    context, order = placed(tmp_path, committed)
    assert refusal(context, order)[0] == "CheckpointMissing"
    saved_elsewhere.promote(committed)
    saved_elsewhere.damage(saved_elsewhere.pack_files("warm")[0])
    code, why = refusal(context, order)
    assert code == "CheckpointMissing"
    assert "damaged" in why
    order.resume = CheckpointRef(id="0" * 64, step=4, attempt=1, directory=committed.name, layers=())
    assert refusal(context, order)[0] == "CheckpointMissing"


def refusal(context: Any, order: Any) -> tuple[str, str]:
    with pytest.raises(RefusedError) as caught:
        preparation._hot_directory(context, order)
    return caught.value.reason.code, caught.value.reason.detail
