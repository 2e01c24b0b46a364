"""What the service answers: listings, plans to restore, and refusals that say what could be asked instead."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.tiers import moving
from tidegate.tiers import tiers as tier_settings
from tidegate.tiers.tiers import Tiers
from tidegate_checkpoint import catalogue, questions
from tidegate_checkpoint.fold import Fold
from tidegate_checkpoint.hot import HotTier
from tidegate_checkpoint.questions import Answers
from tidegate_events.events import CheckpointSaved, Event
from tidegate_events.journal.memory import MemoryJournal

from tests.checkpoint.saving import History, Job, failed, verified


def settings_of(hot: Path) -> tier_settings.Settings:
    return tier_settings.Settings(hot, str(hot.parent / "warm"))


def answers(job: Job, *events: Event) -> Answers:
    fold = Fold(MemoryJournal())
    fold.catalogue = History().tell(*events)
    return Answers(fold, HotTier(job.hot_dir), Tiers(settings_of(job.hot_dir)))


async def plan(asked: Answers, **question: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(await asked.restore(msgspec.json.encode({"job": "j-1", **question})))
    return found


async def ls(asked: Answers, job: str = "j-1") -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(await asked.ls(msgspec.json.encode({"job": job})))
    return found


async def test_a_plan_names_every_layer_in_the_order_layers_depend_on_each_other(job: Job) -> None:
    saved = job.save(7)
    found = await plan(answers(job, saved, verified(saved)))
    assert [layer["name"] for layer in found["layers"]] == ["state", "model", "optimizer", "experience"]
    assert (found["checkpoint_id"], found["step"], found["tier"], found["status"]) == (
        saved.checkpoint.id,
        7,
        "hot",
        "verified",
    )
    store = job.hot_dir / found["store"]
    assert (store / "roots" / f"{found['root']}.json").is_file()
    for layer in found["layers"]:
        data = (store / "manifests" / f"{layer['digest']}.json").read_bytes()
        assert hashlib.sha256(data).hexdigest() == layer["digest"]
    assert found["size_bytes"] == sum(layer.size_bytes for layer in saved.checkpoint.layers)
    assert found["skipped"] == []


async def test_what_left_the_node_is_planned_from_the_tier_that_has_it(job: Job) -> None:
    saved = job.save(7)
    tiers = Tiers(settings_of(job.hot_dir))
    with tiers.holdings("lab", "j-1") as held, tiers.staging() as staging:
        moving.move(saved.checkpoint.directory, held[:1], tiers.of_job("lab", "j-1")[0], staging)
    asked = answers(job, saved, verified(saved))
    assert [each["tiers"] for each in (await ls(asked))["checkpoints"]] == [["hot", "warm"]]
    job.wipe()
    found = await plan(asked)
    assert (found["tier"], found["checkpoint_id"]) == ("warm", saved.checkpoint.id)
    (listed,) = (await ls(asked))["checkpoints"]
    assert (listed["present"], listed["tiers"]) == (True, ["warm"])


async def test_some_layers_alone(job: Job) -> None:
    saved = job.save(7)
    found = await plan(answers(job, saved), layers=["optimizer", "model"])
    assert [layer["name"] for layer in found["layers"]] == ["model", "optimizer"]


@pytest.mark.parametrize("layers", [["weights"], ["model", "weights"], ["experience"]])
async def test_an_unknown_layer_is_refused_with_what_exists(job: Job, layers: list[str]) -> None:
    saved = job.save(7, model={"w": 1}, state={"s": 1})
    found = await plan(answers(job, saved), layers=layers)
    assert (found["code"], found["accepted"]) == ("UnknownLayer", ["state", "model"])
    assert repr(layers[-1]) in found["error"]


async def test_the_newest_verified_one_is_preferred_and_the_newer_ones_are_named(job: Job) -> None:
    old, good, bad, unread = (job.save(step) for step in (1, 2, 3, 4))
    found = await plan(answers(job, old, good, bad, unread, verified(old), verified(good), failed(bad)))
    assert found["step"] == 2
    assert [(each["step"], each["why"].split(":", maxsplit=1)[0]) for each in found["skipped"]] == [
        (4, "not verified yet, or gone"),
        (3, "WrongHash"),
    ]


async def test_one_not_verified_yet_is_better_than_none_and_is_labelled(job: Job) -> None:
    found = await plan(answers(job, job.save(1), job.save(2)))
    assert (found["step"], found["status"]) == (2, "saved")


async def test_one_that_was_removed_since_is_passed_over(job: Job) -> None:
    old, new = job.save(1), job.save(2)
    job.remove(new)
    found = await plan(answers(job, old, new, verified(old), verified(new)))
    assert found["step"] == 1
    assert [each["step"] for each in found["skipped"]] == [2]


async def test_a_named_checkpoint_is_taken_or_refused(job: Job) -> None:
    old, new, bad = job.save(1), job.save(2), job.save(3)
    asked = answers(job, old, new, bad, verified(old), verified(new), failed(bad))
    assert (await plan(asked, checkpoint_id=old.checkpoint.id))["step"] == 1
    unknown = await plan(asked, checkpoint_id="nope")
    assert (unknown["code"], unknown["accepted"]) == ("UnknownCheckpoint", [new.checkpoint.id, old.checkpoint.id])
    broken = await plan(asked, checkpoint_id=bad.checkpoint.id)
    assert broken["code"] == "BrokenCheckpoint"
    assert "the bytes changed" in broken["error"]
    job.remove(old)
    assert (await plan(asked, checkpoint_id=old.checkpoint.id))["code"] == "NotThere"


async def test_a_job_without_a_whole_checkpoint_is_refused(job: Job) -> None:
    bad = job.save(1)
    assert (await plan(answers(job)))["code"] == "NoCheckpoint"
    assert (await plan(answers(job, bad, failed(bad))))["code"] == "NoCheckpoint"
    job.wipe()
    assert (await plan(answers(job, bad)))["code"] == "NotThere"
    job.hot_dir.rename(job.hot_dir.with_name("away"))
    assert (await plan(answers(job, bad)))["code"] == "TierUnavailable"


async def test_ls_says_what_is_there_newest_first(job: Job) -> None:
    old, bad, gone = job.save(1), job.save(2), job.save(3)
    job.remove(gone)
    found = await ls(answers(job, old, bad, gone, verified(old), failed(bad), job.completed()))
    assert [(each["step"], each["status"], each["present"]) for each in found["checkpoints"]] == [
        (3, "saved", False),
        (2, "failed", True),
        (1, "verified", True),
    ]
    assert found["checkpoints"][1]["failure"]["code"] == "WrongHash"
    assert found["job_ended"] == "JobCompleted"
    assert (await ls(answers(job)))["checkpoints"] == []


async def test_ls_is_bounded(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "LISTED_MAX", 2)
    monkeypatch.setattr(catalogue, "SETTLED_PER_JOB_MAX", 4)
    saved: list[CheckpointSaved] = [job.imagined(step) for step in range(1, 7)]
    found = await ls(answers(job, *saved, *(verified(each) for each in saved)))
    assert [each["step"] for each in found["checkpoints"]] == [6, 5]
    assert found["dropped"] == 4


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80) | st.text(max_size=40).map(lambda text: msgspec.json.encode({"job": text})))
async def test_any_question_gets_an_answer(data: bytes) -> None:
    fold = Fold(MemoryJournal())
    asked = Answers(fold, HotTier(Path("nowhere")), Tiers(tier_settings.Settings(Path("nowhere"))))
    for answer in (await asked.ls(data), await asked.restore(data)):
        assert isinstance(msgspec.json.decode(answer), dict)


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"5", b'{"job": 5}', b'{"job": "j", "more": 1}', b'{"job": "\\ud800"}', b"\xff", b"[" * 100_000],
)
async def test_a_question_that_is_none_is_refused(job: Job, data: bytes) -> None:
    asked = answers(job)
    for answer in (await asked.ls(data), await asked.restore(data)):
        found = msgspec.json.decode(answer)
        assert found["code"] in {"BadQuestion", "NoCheckpoint"} or found["checkpoints"] == []
