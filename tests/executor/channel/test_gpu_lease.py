"""The devices of a phase handed back and taken again by a job's hooks, over the real socket."""

from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from tidegate import DevicesNotFreedError, Grant, NestedPhaseError, PhaseRefusedError, UsageError, aio
from tidegate.job import Job
from tidegate_executor.channel import messages

from tests.executor.channel.test_asking import asked as asked  # noqa: PLC0414 - a fixture
from tests.executor.channel.test_asking import asks, grant, recall

OTHER = {"CUDA_VISIBLE_DEVICES": "7"}


class Model:
    """What is moved on and off the devices, with a note of each move; `used` while a step is under way."""

    def __init__(self) -> None:
        self.moves: list[Any] = []
        self.failing: Exception | None = None
        self.used = threading.Event()

    def release(self, seconds_left: float) -> None:
        assert not self.used.is_set(), "a hook ran in the middle of a step"
        self.moves.append(("off", seconds_left))
        if self.failing is not None:
            raise self.failing

    def reclaim(self, given: Grant) -> None:
        self.moves.append(("on", given.gpus))


class Training(threading.Thread):
    """A loop that knows nothing of recalls: it steps while it is in its phase."""

    def __init__(self, job: Job, model: Model, lease: Any) -> None:
        super().__init__(daemon=True)
        self.steps: list[tuple[str, ...]] = []
        self.leave = threading.Event()
        self.error: BaseException | None = None
        self._parts = (job, model, lease)
        self.start()

    def run(self) -> None:
        job, model, lease = self._parts
        try:
            with job.phase("learning"):
                while not self.leave.is_set():
                    with lease as given:
                        model.used.set()
                        self.steps.append(given.gpus)
                        model.used.clear()
                    self.leave.wait(0.005)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error

    def ended(self) -> BaseException | None:
        self.leave.set()
        self.join(20)
        assert not self.is_alive()
        return self.error


@pytest.fixture
def model() -> Model:
    return Model()


def phases(agent: Any) -> list[str | None]:
    return [message.phase for message in agent.handler.of(messages.Phase)]


def not_freed(agent: Any) -> list[str]:
    return [message.error for message in agent.handler.of(messages.NotFreed)]


def enter(agent: Any, job: Job, model: Model, wait_for: Any) -> Training:
    training = Training(job, model, job.on_gpu(release=model.release, reclaim=model.reclaim))
    wait_for(lambda: len(asks(agent)) == 1)
    grant(agent)
    wait_for(lambda: len(training.steps) > 2)
    assert model.moves == [("on", ("2", "5"))], "before the first step"
    return training


def test_a_recall_is_answered_by_the_hook_and_what_is_granted_again_is_taken(
    agent: Any, asked: Any, model: Model, wait_for: Any
) -> None:
    training = enter(agent, job := asked(), model, wait_for)
    recall(agent, 30)
    wait_for(lambda: len(asks(agent)) == 2)
    ((_, gpus), (off, seconds_left)) = model.moves
    assert (gpus, off) == (("2", "5"), "off")
    assert 25 < seconds_left <= 30
    assert phases(agent) == ["learning", None], "the phase is left once the hook has returned, then asked for again"
    done = len(training.steps)
    assert job.should_hand_back() is False
    threading.Event().wait(0.1)
    assert len(training.steps) == done, "no step without devices"
    recall(agent, 0)
    grant(agent, OTHER)
    wait_for(lambda: len(training.steps) > done)
    assert (model.moves[2], training.steps[-1]) == (("on", ("7",)), ("7",)), "others than before"
    assert training.ended() is None
    assert model.moves[3] == ("off", math.inf)
    assert job.finish()
    assert phases(agent) == ["learning", None, "learning", None]
    assert not_freed(agent) == []


def test_a_hook_that_raises_keeps_the_devices_and_that_is_reported(
    agent: Any, asked: Any, model: Model, wait_for: Any
) -> None:
    training = enter(agent, job := asked(), model, wait_for)
    model.failing = ValueError("still on the device")
    recall(agent, 30)
    wait_for(lambda: not_freed(agent) == ["the release hook raised ValueError('still on the device')"])
    assert job.should_hand_back() is True, "the recall is unanswered"
    assert phases(agent) == ["learning"]
    done = len(training.steps)
    wait_for(lambda: len(training.steps) > done)  # it has its devices, and goes on
    agent.order_stop("preemption")
    wait_for(lambda: job.stop_ordered)
    assert training.ended() is None, "it is to leave, so what it did not free does not make it fail"
    job.save(state=[1], step=1)
    with pytest.raises(SystemExit):
        job.exit_suspended()
    assert phases(agent) == ["learning"], "never said to be left"


def test_a_hook_that_is_late_is_reported_and_hands_back_all_the_same(
    agent: Any, asked: Any, model: Model, wait_for: Any
) -> None:
    release = threading.Event()
    model.release = lambda seconds_left: release.wait(20)  # type: ignore[assignment, method-assign, return-value]
    training = enter(agent, job := asked(), model, wait_for)
    recall(agent, 0.2)
    wait_for(lambda: len(not_freed(agent)) == 1)
    assert "has not returned within the 0." in not_freed(agent)[0]
    assert phases(agent) == ["learning"]
    release.set()
    wait_for(lambda: len(asks(agent)) == 2)
    assert phases(agent) == ["learning", None]
    grant(agent)
    wait_for(lambda: len(phases(agent)) == 3)
    assert training.ended() is None
    assert job.finish()


def test_a_phase_that_ends_while_its_devices_are_away_is_left_once_and_asked_for_no_longer(
    agent: Any, asked: Any, model: Model, wait_for: Any
) -> None:
    job, leave = asked(), threading.Event()
    job.on_gpu(release=model.release, reclaim=model.reclaim)

    def idle() -> None:
        with job.phase("learning"):
            leave.wait(20)

    idling = threading.Thread(target=idle, daemon=True)
    idling.start()
    wait_for(lambda: len(asks(agent)) == 1)
    grant(agent)
    wait_for(lambda: len(phases(agent)) == 1)
    recall(agent, 30)
    wait_for(lambda: len(asks(agent)) == 2)
    leave.set()
    idling.join(20)
    assert not idling.is_alive()
    assert [move for move, _ in model.moves] == ["on", "off"]
    assert job.finish()
    assert (asks(agent)[-1][0], phases(agent)) == (None, ["learning", None])


def test_a_job_that_is_to_leave_while_its_devices_are_away_hears_it_where_it_would_use_them(
    agent: Any, asked: Any, model: Model, wait_for: Any
) -> None:
    training = enter(agent, asked(), model, wait_for)
    recall(agent, 30)
    wait_for(lambda: len(asks(agent)) == 2)
    agent.order_stop("preemption")
    training.join(20)
    assert isinstance(training.error, PhaseRefusedError)
    assert [move for move, _ in model.moves] == ["on", "off"]


def test_a_hook_that_raises_at_the_end_of_the_phase_keeps_the_phase_open(
    agent: Any, asked: Any, model: Model, wait_for: Any
) -> None:
    training = enter(agent, job := asked(), model, wait_for)
    model.failing = ValueError("stuck")
    assert isinstance(training.ended(), DevicesNotFreedError)
    wait_for(lambda: not_freed(agent) == ["the release hook raised ValueError('stuck') at the end of the phase"])
    assert phases(agent) == ["learning"]
    with pytest.raises(NestedPhaseError), job.phase("sampling"):
        pass


def test_a_reclaim_that_raises_is_met_where_the_devices_would_be_used(
    agent: Any, asked: Any, model: Model, wait_for: Any
) -> None:
    training = enter(agent, asked(), model, wait_for)
    recall(agent, 30)
    wait_for(lambda: len(asks(agent)) == 2)

    def reclaim(given: Grant) -> None:
        raise MemoryError("too large")

    training._parts[2]._hooks = training._parts[2]._hooks._replace(reclaim=reclaim)
    recall(agent, 0)
    grant(agent, OTHER)
    training.join(20)
    assert isinstance(training.error, MemoryError)
    assert model.moves[-1] == ("off", math.inf), "what it had taken until then is freed with the phase"
    wait_for(lambda: phases(agent) == ["learning", None, "learning", None])


def test_phases_without_devices_are_none_of_the_hooks_business(
    agent: Any, asked: Any, model: Model, wait_for: Any
) -> None:
    job = asked()
    told: list[float] = []
    lease = job.on_gpu(release=model.release, reclaim=model.reclaim)
    job.on_hand_back(told.append)
    entering = threading.Event()

    def sample() -> None:
        with job.phase("sampling"), lease as given:
            assert given is None
        with job.phase("sampling"):
            entering.set()
            wait_for(lambda: len(told) == 1)

    working = threading.Thread(target=sample, daemon=True)
    working.start()
    for number in (1, 2):
        wait_for(lambda expected=number: len(asks(agent)) == expected)
        grant(agent, {})
    assert entering.wait(20)
    recall(agent, 30)
    working.join(20)
    assert not working.is_alive()
    assert model.moves == []


def test_a_recall_that_came_before_the_devices_is_answered_once_they_are_there(
    agent: Any, asked: Any, model: Model, wait_for: Any
) -> None:
    job = asked()
    training = Training(job, model, job.on_gpu(release=model.release, reclaim=model.reclaim))
    wait_for(lambda: len(asks(agent)) == 1)
    recall(agent, 30)
    wait_for(job.should_hand_back)
    grant(agent)
    wait_for(lambda: len(asks(agent)) == 2)
    assert [move for move, _ in model.moves] == ["on", "off"]
    recall(agent, 0)
    grant(agent, OTHER)
    wait_for(lambda: len(model.moves) == 3)
    assert training.ended() is None
    assert phases(agent)[:3] == ["learning", None, "learning"]


def test_misuse_of_hooks_is_refused_by_what_it_is(asked: Any, model: Model) -> None:
    job = asked(entry="told")
    with pytest.raises(UsageError, match=r"on_gpu\(release=None\) was refused: a function is accepted"):
        job.on_gpu(release=None, reclaim=model.reclaim)
    with job.phase("learning"):
        lease = job.on_gpu(release=model.release, reclaim=model.reclaim)
        assert (lease.grant.gpus, model.moves) == (("0",), []), "it has them already"
        with lease, pytest.raises(UsageError, match="end that block first"), lease:
            pass
    assert model.moves == [("off", math.inf)]
    with pytest.raises(UsageError, match="has its hooks already"):
        job.on_gpu(release=model.release, reclaim=model.reclaim)
    with lease as given:
        assert given is None, "outside of phases there is nothing to wait for"
        with pytest.raises(UsageError, match="end that block first"), job.phase("learning"):
            pass
    with job.phase("learning"):
        pass


async def test_an_async_job_hands_back_in_its_event_loop(
    agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_for: Any
) -> None:
    for name, value in {
        "TIDEGATE_JOB_ID": "j-1",
        "TIDEGATE_COMPONENT": "learner",
        "TIDEGATE_SOCKET": str(agent.path(0)),
        "TIDEGATE_CHECKPOINTS": str(tmp_path / "checkpoints"),
        "TIDEGATE_PHASE_ENTRY": "asked",
    }.items():
        monkeypatch.setenv(name, value)
    moves: list[Any] = []
    loop = threading.get_ident()

    async def release(seconds_left: float) -> None:
        await asyncio.sleep(0)
        moves.append(("off", threading.get_ident() == loop))

    def reclaim(given: Grant) -> None:
        moves.append((given.gpus, threading.get_ident() == loop))

    async def until(condition: Any) -> None:
        await asyncio.to_thread(wait_for, condition)

    job = await aio.init()
    lease = await job.on_gpu(release=release, reclaim=reclaim)
    granting = asyncio.create_task(until(lambda: len(asks(agent)) == 1))
    granting.add_done_callback(lambda _: grant(agent))
    async with job.phase("learning"):
        async with lease as given:
            assert given is not None
            recall(agent, 30)
            await until(job.should_hand_back)
            assert moves == [(("2", "5"), True)], "not in the middle of a step"
        await until(lambda: len(asks(agent)) == 2)
        waiting = asyncio.create_task(lease.__aenter__())
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        recall(agent, 0)
        grant(agent, OTHER)
        async with lease as given:
            assert (given.gpus if given else None) == ("7",)
    assert moves == [(("2", "5"), True), ("off", True), (("7",), True), ("off", True)]
    await job.close()
