"""The catalogue's fold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_checkpoint import catalogue as module
from tidegate_checkpoint.catalogue import Catalogue
from tidegate_events.events import CheckpointSaved, Event
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Recorded

from tests.checkpoint.saving import History, Job, failed, verified


def ids(catalogue: Catalogue) -> list[str]:
    return [entry.id for entry in catalogue.unsettled()]


def status(catalogue: Catalogue, saved: CheckpointSaved) -> str:
    record = catalogue.job(saved.job)
    assert record is not None
    return record.entries[saved.checkpoint.id].status


def test_a_saved_checkpoint_waits_for_its_verdict(job: Job) -> None:
    one, two, three = job.imagined(1), job.imagined(2), job.imagined(3)
    catalogue = History().tell(one, two, three, verified(one), failed(two))
    assert ids(catalogue) == [three.checkpoint.id]
    assert [status(catalogue, each) for each in (one, two, three)] == ["verified", "failed", "saved"]
    record = catalogue.job("j-1")
    assert record is not None
    assert record.entries[two.checkpoint.id].failure is not None
    assert record.entries[three.checkpoint.id].place == "3.0"


def test_the_first_report_and_the_first_success_stand(job: Job) -> None:
    saved = job.imagined(1)
    catalogue = History().tell(saved, verified(saved), saved, verified(saved))
    assert ids(catalogue) == []
    assert status(catalogue, saved) == "verified"


def test_a_failure_is_final_and_may_follow_a_success(job: Job) -> None:
    saved = job.imagined(1)
    history = History()
    assert status(history.tell(saved, verified(saved), failed(saved)), saved) == "failed"
    assert status(history.tell(verified(saved)), saved) == "failed"


def test_verdicts_on_what_was_never_saved_change_nothing(job: Job) -> None:
    catalogue = History().tell(verified(job.imagined(1)), failed(job.imagined(2)))
    assert catalogue.job("j-1") is None


def test_a_checkpoint_reported_after_the_end_is_void_but_a_verdict_is_not(job: Job) -> None:
    before, after = job.imagined(1), job.imagined(2)
    catalogue = History().tell(before, job.completed(), after, verified(before))
    record = catalogue.job("j-1")
    assert record is not None
    assert list(record.entries) == [before.checkpoint.id]
    assert record.ended == "JobCompleted"
    assert status(catalogue, before) == "verified"


def test_another_tenants_report_does_not_touch_a_job(job: Job) -> None:
    history = History()
    history.tell(job.imagined(1))
    job.tenant = "thief"
    assert len(history.tell(job.imagined(2)).unsettled()) == 1


def test_newer_means_a_later_attempt_then_a_later_step(job: Job) -> None:
    far = job.imagined(900)
    job.attempt = 2
    near, nearer = job.imagined(10), job.imagined(20)
    catalogue = History().tell(far, near, nearer)
    record = catalogue.job("j-1")
    assert record is not None
    assert [entry.saved.checkpoint.step for entry in record.newest_first()] == [20, 10, 900]
    newest = {entry.saved.checkpoint.step: catalogue.is_newest(entry) for entry in record.entries.values()}
    assert newest == {900: False, 10: False, 20: True}


def test_a_broken_one_is_not_the_newest_and_ranks_do_not_compare(job: Job) -> None:
    old, broken = job.imagined(1), job.imagined(2)
    job.rank = 1
    other = job.imagined(3)
    catalogue = History().tell(old, broken, other, failed(broken))
    record = catalogue.job("j-1")
    assert record is not None
    assert catalogue.is_newest(record.entries[old.checkpoint.id])
    assert [entry.saved.rank for entry in record.newest_first()] == [0, 0, 1]


def test_every_frame_is_taken_in_order(job: Job) -> None:
    frame = Frame(Writer("node", "n1", 1, 1), (job.imagined(1),))
    with pytest.raises(ValueError, match="cannot follow"):
        Catalogue().apply(Recorded(2, "tg.fact.node.n1", frame))


def test_what_is_kept_of_a_job_is_bounded_and_nothing_unsettled_is_dropped(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLED_PER_JOB_MAX", 3)
    history = History()
    saved = [job.imagined(step) for step in range(1, 9)]
    history.tell(*saved)
    history.tell(verified(saved[0]), failed(saved[1]), *(verified(each) for each in saved[2:6]))
    record = history.catalogue.job("j-1")
    assert record is not None
    assert [entry.saved.checkpoint.step for entry in record.newest_first()] == [8, 7, 6, 5, 4]
    assert record.dropped == 3
    assert len(history.catalogue.unsettled()) == 2


def test_ended_jobs_are_forgotten_except_where_a_verdict_is_due(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDED_JOBS_MAX", 2)
    history = History()
    for number in range(5):
        job.id = f"j-{number}"
        saved = job.imagined(1)
        history.tell(saved, job.completed())
        if number != 1:
            history.tell(verified(saved))
    assert [number for number in range(5) if history.catalogue.job(f"j-{number}")] == [1, 4]


@given(st.lists(st.tuples(st.sampled_from(["save", "ok", "bad", "end"]), st.integers(1, 4), st.integers(1, 2))))
def test_whatever_the_order_each_checkpoint_is_unsettled_or_settled(steps: list[tuple[str, int, int]]) -> None:
    history = History()
    for what, step, number in steps:
        job = Job(Path("hot"), id=f"j-{number}")
        saved = job.imagined(step)
        event: Event = {"save": saved, "ok": verified(saved), "bad": failed(saved), "end": job.completed()}[what]
        history.tell(event)
        unsettled = set(ids(history.catalogue))
        for known in ("j-1", "j-2"):
            record = history.catalogue.job(known)
            for entry in record.entries.values() if record else ():
                assert (entry.status == "saved") == (entry.id in unsettled) == history.catalogue.is_unsettled(entry)
                assert (entry.status == "failed") == (entry.failure is not None)
