"""Asking for a phase and handing it back over the real socket, with the agent away in between."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tidegate import (
    Grant,
    JobClosedError,
    NestedPhaseError,
    PhaseRefusedError,
    PhaseTimeoutError,
    ProtocolMismatchError,
    aio,
    protocol,
)
from tidegate.environment import read_identity
from tidegate.job import Job
from tidegate.session import open_job
from tidegate_executor.channel import messages
from tidegate_executor.channel.handler import MessageRefused

from tests.executor.channel.test_server import Raw

DEVICES = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2,5", "TIDEGATE_GPU_MILLIS": "1000"}


@pytest.fixture
def asked(agent: Any, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Open a job whose phases are asked for."""
    jobs: list[Job] = []

    def open_one(component: str = "learner", entry: str = "asked") -> Job:
        environ = {
            "TIDEGATE_JOB_ID": "j-1",
            "TIDEGATE_COMPONENT": component,
            "TIDEGATE_SOCKET": str(agent.path(0)),
            "TIDEGATE_CHECKPOINTS": str(tmp_path / "checkpoints"),
            "TIDEGATE_PHASE_ENTRY": entry,
            "CUDA_VISIBLE_DEVICES": "0",
        }
        jobs.append(open_job(read_identity(environ)))
        return jobs[-1]

    yield open_one
    for job in jobs:
        job.close()


class Asking(threading.Thread):
    """A process that waits for a phase, and stays in it until it is told to leave."""

    def __init__(self, job: Job, name: str = "learning", timeout: float | None = None) -> None:
        super().__init__(daemon=True)
        self.grant: Grant | None = None
        self.error: BaseException | None = None
        self.leave = threading.Event()
        self._enter = (job, name, timeout)
        self.start()

    def run(self) -> None:
        job, name, timeout = self._enter
        try:
            with job.phase(name, timeout) as self.grant:
                assert self.leave.wait(20)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error

    def ended(self) -> BaseException | None:
        self.leave.set()
        self.join(20)
        assert not self.is_alive()
        return self.error


def asks(agent: Any) -> list[tuple[str | None, int, str]]:
    """Return every ask that was heard: the phase, its number, and by which client."""
    return [(m.phase, m.seq, o.client) for o, m in agent.handler.controls if isinstance(m, messages.Ask)]


def grant(agent: Any, devices: dict[str, str] | None = None) -> None:
    """Grant the newest ask."""
    phase, seq, client = asks(agent)[-1]
    answer = {client: {"seq": seq, "phase": phase, "environment": DEVICES if devices is None else devices}}
    agent._loop.call_soon_threadsafe(agent.servers[0].tell_grants, answer)


def recall(agent: Any, seconds: float) -> int:
    deadline_ns = time.time_ns() + int(seconds * 1e9) if seconds else 0
    agent._loop.call_soon_threadsafe(agent.servers[0].tell_hand_back, deadline_ns)
    return deadline_ns


def test_a_phase_is_entered_when_it_is_granted(agent: Any, asked: Any, wait_for: Any) -> None:
    job = asked()
    with pytest.raises(PhaseTimeoutError), job.phase("sampling", timeout=0.01):
        pass
    asking = Asking(job)
    wait_for(lambda: [phase for phase, _, _ in asks(agent)] == ["sampling", None, "learning"])
    with pytest.raises(NestedPhaseError, match="waits for phase 'learning'"), job.phase("sampling"):
        pass
    assert agent.handler.of(messages.Phase) == [], "it is not in it yet"
    assert asking.grant is None
    grant(agent)
    wait_for(lambda: asking.grant is not None)
    assert asking.grant is not None
    assert (asking.grant.phase, asking.grant.gpus) == ("learning", ("2", "5"))
    assert asking.grant.environment() == DEVICES
    wait_for(lambda: [message.phase for message in agent.handler.of(messages.Phase)] == ["learning"])
    assert asking.ended() is None
    assert job.finish()
    assert [message.phase for message in agent.handler.of(messages.Phase)] == ["learning", None]


def test_the_phase_before_is_said_to_be_left_before_the_next_is_asked_for(
    agent: Any, asked: Any, wait_for: Any
) -> None:
    job = asked()
    for number, name in enumerate(("sampling", "learning"), 1):
        asking = Asking(job, name)
        wait_for(lambda expected=number: len(asks(agent)) == expected)
        grant(agent)
        wait_for(lambda waits=asking: waits.grant is not None)
        assert asking.ended() is None
    assert job.finish()
    said = [m.phase for _, m in agent.handler.controls if isinstance(m, messages.Phase | messages.Ask)]
    assert said == ["sampling", "sampling", None, "learning", "learning", None]


def test_an_agent_that_restarts_hears_the_ask_once_and_grants_it(agent: Any, asked: Any, wait_for: Any) -> None:
    job = asked()
    asking = Asking(job)
    wait_for(lambda: len(asks(agent)) == 1)
    agent.stop()
    assert len(agent.handler.gone) == 1
    agent.start()
    wait_for(lambda: len(agent.handler.hellos) == 2)
    grant(agent)
    wait_for(lambda: asking.grant is not None)
    assert asking.ended() is None
    agent.stop()
    agent.start()
    assert job.finish()
    assert len(asks(agent)) == 1


def test_a_grant_is_told_to_whoever_comes_back_later(agent: Any, asked: Any, wait_for: Any) -> None:
    raw = Raw(agent.path(0))
    assert raw.hello(protocol=[1, 2]) == {"kind": "welcome", "protocol": 2, "acked": 0, "resume": None}
    raw.send({"kind": "ask", "seq": 1, "at_ns": 1, "phase": "learning"})
    assert raw.receive() == {"kind": "ack", "seq": 1}
    raw.socket.close()
    wait_for(lambda: agent.handler.gone == ["0" * 32])
    grant(agent)
    deadline_ns = recall(agent, 30)
    wait_for(lambda: agent.servers[0]._hand_back_ns == deadline_ns)
    again = Raw(agent.path(0))
    welcome = again.hello(protocol=[1, 2])
    assert welcome is not None
    assert welcome["hand_back"] == deadline_ns
    assert again.receive() == {"kind": "granted", "seq": 1, "phase": "learning", "environment": DEVICES}
    grant(agent)  # nothing is said twice
    recall(agent, 0)
    assert again.receive() == {"kind": "hand_back", "deadline_ns": 0}
    again.socket.close()


def test_a_process_of_an_earlier_version_hears_nothing_of_it(agent: Any, wait_for: Any) -> None:
    raw = Raw(agent.path(0))
    raw.hello()
    raw.send({"kind": "ask", "seq": 1, "at_ns": 1, "phase": "learning"})
    assert raw.receive() == {"kind": "ack", "seq": 1}
    grant(agent)
    recall(agent, 30)
    wait_for(lambda: agent.servers[0]._hand_back_ns != 0)
    raw.send({"kind": "ask", "seq": 2, "at_ns": 1, "phase": None})
    assert raw.receive() == {"kind": "ack", "seq": 2}
    raw.socket.close()
    again = Raw(agent.path(0))
    assert again.hello() == {"kind": "welcome", "protocol": 1, "acked": 2, "resume": None}
    again.socket.close()


def test_an_agent_of_an_earlier_version_is_a_clear_error(
    agent: Any, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "PROTOCOL_MAX", 1)
    job = asked()
    with pytest.raises(ProtocolMismatchError, match="speaks protocol 1; 2 is needed"), job.phase("learning"):
        pass


def test_who_waits_too_long_asks_no_longer(agent: Any, asked: Any, wait_for: Any) -> None:
    job = asked()
    asking = Asking(job, timeout=0.3)
    wait_for(lambda: len(asks(agent)) == 1)
    assert "not granted within 0.3 s" in str(asking.ended())
    assert isinstance(asking.error, PhaseTimeoutError)
    wait_for(lambda: [phase for phase, _, _ in asks(agent)] == ["learning", None])
    again = Asking(job)
    wait_for(lambda: len(asks(agent)) == 3)
    first = asks(agent)[0]
    late = {first[2]: {"seq": first[1], "phase": "learning", "environment": {}}}
    agent._loop.call_soon_threadsafe(agent.servers[0].tell_grants, late)
    grant(agent)
    wait_for(lambda: again.grant is not None)
    assert again.grant is not None
    assert again.grant.gpus == ("2", "5"), "an answer to the first ask is not taken for one to this"
    assert again.ended() is None


def test_a_job_that_is_to_leave_waits_for_no_phase(agent: Any, asked: Any, wait_for: Any) -> None:
    job = asked()
    asking = Asking(job)
    wait_for(lambda: len(asks(agent)) == 1)
    agent.order_stop("preemption")
    asking.join(20)
    assert isinstance(asking.error, PhaseRefusedError)
    assert str(asking.error).endswith("asked to leave (preemption); save and call exit_suspended()")
    with pytest.raises(PhaseRefusedError), job.phase("sampling"):
        pass
    job.save(state=[1], step=1)
    with pytest.raises(SystemExit):
        job.exit_suspended()
    assert agent.handler.of(messages.Suspended)[0].step == 1
    assert asks(agent)[-1][0] is None


def test_a_phase_that_can_never_be_granted_is_refused(agent: Any, asked: Any) -> None:
    agent.handler.failure = MessageRefused("gpu_not_passed", "level trusted passes none")
    job = asked()
    with pytest.raises(PhaseRefusedError, match="gpu_not_passed: level trusted passes none"), job.phase("learning"):
        pass


def test_a_job_that_is_closed_waits_for_no_phase(agent: Any, asked: Any, wait_for: Any) -> None:
    job = asked()
    asking = Asking(job)
    wait_for(lambda: len(asks(agent)) == 1)
    job.close()
    asking.join(20)
    assert isinstance(asking.error, JobClosedError)
    with pytest.raises(JobClosedError), job.phase("learning"):
        pass


def test_a_job_whose_phases_are_told_waits_for_nothing(agent: Any, asked: Any) -> None:
    job = asked(entry="told")
    with job.phase("learning") as given:
        assert (given.phase, given.gpus, given.environment()) == ("learning", ("0",), {"CUDA_VISIBLE_DEVICES": "0"})
    assert job.finish()
    assert asks(agent) == []


def test_a_recall_is_told_once_and_leaving_is_the_answer(agent: Any, asked: Any, wait_for: Any) -> None:
    job = asked()
    calls: list[float] = []
    assert (job.should_hand_back(), job.hand_back_seconds_left) == (False, None)
    asking = Asking(job)
    wait_for(lambda: len(asks(agent)) == 1)
    grant(agent)
    wait_for(lambda: asking.grant is not None)
    job.on_hand_back(calls.append)
    recall(agent, 30)
    wait_for(lambda: len(calls) == 1)
    assert 0 < calls[0] <= 30
    assert job.should_hand_back()
    assert 0 < (job.hand_back_seconds_left or 0) <= 30
    agent.stop()
    agent.start()
    wait_for(lambda: len(agent.handler.hellos) == 2)
    assert job.should_hand_back(), "this agent does not know yet"
    recall(agent, 0)
    wait_for(lambda: not job.should_hand_back())
    recall(agent, 60)
    wait_for(lambda: len(calls) == 2)
    assert asking.ended() is None
    assert (job.should_hand_back(), job.hand_back_seconds_left) == (False, None)
    recall(agent, 0)
    assert job.finish()
    assert len(calls) == 2


def test_a_recall_that_is_told_again_after_a_reconnect_is_the_same_one(agent: Any, asked: Any, wait_for: Any) -> None:
    job = asked()
    calls: list[float] = []
    deadline_ns = recall(agent, 30)
    wait_for(job.should_hand_back)
    job.on_hand_back(calls.append)
    wait_for(lambda: len(calls) == 1)
    with _away(agent):
        pass
    agent._loop.call_soon_threadsafe(agent.servers[0].tell_hand_back, deadline_ns)
    wait_for(lambda: len(agent.handler.hellos) == 2 and job.should_hand_back())
    later = recall(agent, 60)
    wait_for(lambda: len(calls) == 2)
    assert job._recall._called_ns == later
    assert job.finish()


def test_a_callback_that_fails_takes_nothing_along(
    agent: Any, asked: Any, wait_for: Any, caplog: pytest.LogCaptureFixture
) -> None:
    job = asked()

    def fail(_seconds: float) -> None:
        raise ZeroDivisionError

    job.on_hand_back(fail)
    recall(agent, 30)
    wait_for(lambda: "ZeroDivisionError" in caplog.text)
    assert job.should_hand_back()
    calls: list[float] = []
    job.on_hand_back(calls.append)
    recall(agent, 40)
    wait_for(lambda: len(calls) == 1)
    assert job.finish()


async def test_the_async_mirror_waits_and_gives_up(agent: Any, asked: Any, wait_for: Any) -> None:
    job = aio.AsyncJob(asked(), aio._Runner())

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def enter(name: str) -> tuple[str, ...]:
        async with job.phase(name) as given:
            return given.gpus

    waiting = asyncio.create_task(enter("learning"))
    await until(lambda: len(asks(agent)) == 1)
    await job.publish("Meanwhile")
    with pytest.raises(NestedPhaseError):
        await enter("sampling")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: [phase for phase, _, _ in asks(agent)] == ["learning", None])
    waiting = asyncio.create_task(enter("learning"))
    await until(lambda: len(asks(agent)) == 3)
    grant(agent)
    assert await waiting == ("2", "5")
    calls: list[float] = []
    await job.on_hand_back(calls.append)
    recall(agent, 30)
    await until(lambda: len(calls) == 1)
    assert job.should_hand_back()
    assert await job.finish()


@contextmanager
def _away(agent: Any) -> Iterator[None]:
    agent.stop()
    yield
    agent.start()
