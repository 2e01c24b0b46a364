"""Phases on a laptop, what their calls refuse, and the recall by itself."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tidegate
from tidegate import errors
from tidegate.environment import read_identity
from tidegate.grant import Grant
from tidegate.recall import Recall
from tidegate.session import open_job

WAIT_SECONDS = 20.0


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"TIDEGATE_LOCAL_DIR": str(tmp_path / "local"), "TIDEGATE_PHASE_ENTRY": "asked"}


@pytest.fixture
def job(environ: dict[str, str]) -> Any:
    job = open_job(read_identity(environ))
    yield job
    job.close()


def wait_for(condition: Any) -> None:
    limit = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.005)


def test_without_an_agent_a_phase_is_entered_at_once_and_logged(job: Any, tmp_path: Path) -> None:
    with job.phase("learning", timeout=0.001) as grant:
        assert isinstance(grant, tidegate.Grant)
        assert (grant.phase, grant.gpus, grant.environment()) == ("learning", (), {}), "children see all there is"
    job.on_hand_back(lambda seconds: None)
    assert (job.should_hand_back(), job.hand_back_seconds_left) == (False, None)
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "local" / "log.jsonl").read_text().splitlines()]
    assert kinds == ["hello", "phase", "phase"]


def test_the_devices_of_a_laptop_are_those_it_was_given(environ: dict[str, str]) -> None:
    job = open_job(read_identity({**environ, "CUDA_VISIBLE_DEVICES": "GPU-5ca1ab1e, 1"}))
    with job.phase("learning") as grant:
        assert grant.gpus == ("GPU-5ca1ab1e", "1")
        assert grant.environment() == {"CUDA_VISIBLE_DEVICES": "GPU-5ca1ab1e, 1"}
        grant.environment().clear()
        assert grant.environment() != {}
    job.close()


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "3", True, object()])
def test_a_timeout_that_is_none_is_refused(job: Any, timeout: Any) -> None:
    with pytest.raises(errors.UsageError, match="seconds are accepted"), job.phase("x", timeout):
        pass
    with job.phase("x", timeout=3):
        pass


def test_misuse_is_refused_by_what_it_is(job: Any) -> None:
    with pytest.raises(errors.UsageError, match="a function that takes the seconds left"):
        job.on_hand_back(None)
    nested = pytest.raises(errors.NestedPhaseError, match="is in phase 'sampling'")
    with job.phase("sampling"), nested, job.phase("learning"):
        pass
    with pytest.raises(errors.InvalidNameError), job.phase("Learning"):
        pass
    job.close()
    with pytest.raises(errors.JobClosedError), job.phase("learning"):
        pass
    with pytest.raises(errors.JobClosedError):
        job.on_hand_back(print)
    assert job.should_hand_back() is False


def test_a_grant_shows_what_it_is() -> None:
    assert repr(Grant("learning", {"CUDA_VISIBLE_DEVICES": "0,1"})) == "<tidegate grant of phase learning, GPUs 0, 1>"
    assert repr(Grant("learning", {})) == "<tidegate grant of phase learning, GPUs none>"


def test_the_newest_callback_counts_and_each_recall_once() -> None:
    recall = Recall()
    first: list[float] = []
    second: list[float] = []
    recall.call(first.append)
    recall.on_hand_back(1)
    wait_for(lambda: first == [0.0])
    recall.call(second.append)
    recall.on_hand_back(1)
    recall.on_hand_back(2)
    wait_for(lambda: second == [0.0])
    recall.answer()
    assert recall.pending is False
    recall.on_hand_back(2)
    assert recall.pending is False, "it was answered"
    recall.on_hand_back(0)
    recall.on_hand_back(3)
    wait_for(lambda: len(second) == 2)
    recall.close()
    wait_for(lambda: not any(thread.name == "tidegate-hand-back" for thread in threading.enumerate()))
    assert first == [0.0]
