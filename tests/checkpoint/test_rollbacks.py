"""A layer goes back and the rest stays: a new checkpoint, journaled with its verdict, which a job resumes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.store import CheckpointStore
from tidegate.errors import CheckpointError, UnknownLayerError
from tidegate.tiers import moving
from tidegate.tiers.holding import HotHolding
from tidegate.tiers.rolling import rolled_back
from tidegate.tiers.tiers import Tiers
from tidegate_checkpoint.settings import Settings
from tidegate_checkpoint.shell import CheckpointService
from tidegate_events.events import CheckpointSaved, CheckpointVerified
from tidegate_events.journal.memory import MemoryJournal

from tests.checkpoint.saving import Job
from tests.checkpoint.test_upkeep import quick, report, running, settings_of, shared, until
from tests.support import stores

assert quick  # its fixture holds for this module too


async def roll(service: CheckpointService, **question: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(
        await service.rollbacks.answer(msgspec.json.encode({"job": "j-1", **question}))
    )
    return found


async def promoted(settings: Settings, job: Job, *saved: CheckpointSaved) -> None:
    names = sorted(each.checkpoint.directory for each in saved)
    await until(lambda: all(tier.roots() == names for tier in shared(settings, job)))


async def test_a_job_resumes_with_the_old_model_and_the_new_rest(job: Job, tmp_path: Path) -> None:
    journal, settings = MemoryJournal(), settings_of(job)
    old = job.save(1, model={"w": b"old" * 999}, state={"step": 1})
    new = job.save(2, model={"w": b"new" * 999}, state={"step": 2})
    await report(journal, old, new)
    async with running(settings, journal) as service:
        await promoted(settings, job, old, new)
        made = await roll(service, checkpoint_id=old.checkpoint.id, layers=["model"])
        assert (made["step"], made["tier"], made["to"], made["from"]) == (
            2, "warm", old.checkpoint.id, new.checkpoint.id
        )  # fmt: skip
        again = await roll(service, checkpoint_id=made["checkpoint_id"], layers=["model"])
        assert again["code"] == "NothingToRollBack"
        await until(lambda: len(shared(settings, job)[1].roots()) == 3)  # it goes on to the cold tier like any other
    last = [recorded async for recorded in journal.read(0, await journal.end())][-1]
    saved, verified = last.frame.events
    assert isinstance(saved, CheckpointSaved)
    assert isinstance(verified, CheckpointVerified)
    assert (saved.tier, saved.checkpoint.id, verified.checkpoint_id) == ("warm", *[made["checkpoint_id"]] * 2)
    elsewhere = Tiers(settings.tiers._replace(hot=tmp_path / "n2"))
    with elsewhere.hot_store("lab", "j-1") as held:
        sources = elsewhere.of_job("lab", "j-1")
        moving.move(saved.checkpoint.directory, sources, HotHolding(held), held.staging)
    found = CheckpointStore(tmp_path / "n2" / "lab" / "j-1", stores.STAMP).find(made["checkpoint_id"])
    assert found is not None
    assert Checkpoint(found.committed).load() == {"model": {"w": b"old" * 999}, "state": {"step": 2}}


async def test_what_cannot_be_rolled_back_is_refused_with_what_could(job: Job) -> None:
    journal, settings = MemoryJournal(), settings_of(job)
    old, new = job.save(1, model={"w": 1}), job.save(2, model={"w": 2}, state={"s": 1})
    async with running(settings, journal) as service:
        assert (await roll(service, checkpoint_id="x", layers=["model"]))["code"] == "NoCheckpoint"
        await report(journal, old, new)
        await promoted(settings, job, old, new)
        unknown = await roll(service, checkpoint_id="x", layers=["model"])
        assert (unknown["code"], unknown["accepted"]) == ("UnknownCheckpoint", [new.checkpoint.id, old.checkpoint.id])
        newest = await roll(service, checkpoint_id=new.checkpoint.id, layers=["model"])
        assert (newest["code"], newest["accepted"]) == ("NothingToRollBack", [old.checkpoint.id])
        layer = await roll(service, checkpoint_id=old.checkpoint.id, layers=["state"])
        assert (layer["code"], layer["accepted"]) == ("UnknownLayer", ["model"])
        assert (await roll(service, checkpoint_id=5, layers=["model"]))["code"] == "BadQuestion"
        for tier in shared(settings, job):
            tier.remove_root(old.checkpoint.directory)
        gone = await roll(service, checkpoint_id=old.checkpoint.id, layers=["model"])
        assert gone["code"] == "NotPromoted"
    assert len([frame async for frame in journal.read(0, await journal.end())]) == 3  # the report and two verdicts


def test_layers_that_do_not_fit_are_refused(job: Job) -> None:
    import numpy  # noqa: PLC0415

    def root(step: int, size: int) -> Any:
        layers = {"model": {"w": numpy.zeros(size)}, "optimizer": {"m": numpy.zeros(size)}}
        return job.committed(job.save(step, **layers)).root

    small, large = root(1, 10), root(2, 20)
    with pytest.raises(CheckpointError, match="belongs to another model"):
        rolled_back(large, small, ["model"], 5)
    both = rolled_back(large, small, ["model", "optimizer"], 5)
    assert (both.predecessor, both.step) == (large.id, 2)
    assert [layer.parent for layer in both.layers] == [layer.manifest for layer in large.layers]
    with pytest.raises(UnknownLayerError, match="accepted are model, optimizer"):
        rolled_back(large, small, ["state"], 5)
