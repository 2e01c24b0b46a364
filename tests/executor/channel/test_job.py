"""The SDK and the agent's channel over a real socket: what is said arrives once, also across an agent's restart."""

import os
import threading
import time
from typing import Any

import pytest
from tidegate import (
    JobClosedError,
    MessageRefusedError,
    NotStoppingError,
    ProtocolMismatchError,
    UsageError,
    protocol,
)
from tidegate.link import agent as agent_link
from tidegate_executor.channel import messages
from tidegate_executor.channel.handler import HandlerUnavailable, MessageRefused


def test_a_whole_run(agent: Any, join: Any, wait_for: Any) -> None:
    job = join(rank=1)
    assert job.latest_checkpoint() is None
    with job.phase("sampling"):
        job.report({"loss": 0.5, "steps": 3}, step=7, progress=0.25)
    with job.phase("learning"):
        job.publish("CurriculumAdvanced", level=3)
        done = job.save(model={"w": [1.0]}, state={"step": 7}, step=7, wait=True)
    wait_for(lambda: bool(agent.handler.reports))
    assert job.finish(result={"mean_return": 201.5}) is True

    handler = agent.handler
    hello = handler.hellos[0]
    assert hello.origin.sandbox.rank == 1, "the rank follows from the socket"
    assert (hello.origin.component, hello.peer_pid) == ("learner", os.getpid())
    assert [origin.seq for origin, _ in handler.controls] == list(range(1, len(handler.controls) + 1))
    assert [phase.phase for phase in handler.of(messages.Phase)] == ["sampling", "learning", None]
    assert handler.of(messages.Publish)[0].payload == {"level": 3}
    saved = handler.of(messages.Saved)[0]
    assert (saved.id, saved.step, [entry.name for entry in saved.layers]) == (done.wait().id, 7, ["model", "state"])
    assert handler.of(messages.Finished)[0].result == {"mean_return": 201.5}
    assert handler.reports[0].values() == {"loss": 0.5, "steps": 3.0}
    assert (handler.reports[0].step, handler.reports[0].progress) == (7, 0.25)
    assert agent.servers[1].finished == {("learner", 0)}
    assert not agent.servers[0].ever_connected
    with pytest.raises(JobClosedError, match=r"after finish\(\)"):
        job.publish("More")


def test_the_named_checkpoint_is_resumed(agent: Any, join: Any) -> None:
    job = join()
    first = job.save(model=[1], step=1, wait=True).wait()
    job.save(model=[2], step=2, wait=True)
    agent.servers[0].resume = first.id
    later = join()
    checkpoint = later.latest_checkpoint()
    assert (checkpoint.id, checkpoint.step, checkpoint.load("model")) == (first.id, 1, {"model": [1]})
    later.close()
    restored = agent.handler.of(messages.Restored)
    assert [(message.step, message.skipped) for message in restored] == [(1, 0)]


def test_reports_are_merged(agent: Any, join: Any, wait_for: Any) -> None:
    job = join()
    calls = 5000
    for step in range(calls):
        job.report({"loss": float(step)} if step % 2 else {"reward": float("nan")}, step=step)
    job.close()
    reports = agent.handler.reports
    assert sum(report.merged + 1 for report in reports) == calls
    assert reports[-1].step == calls - 1
    assert reports[-1].values()["loss"] == calls - 1
    assert len(reports) < calls / 10


def test_fast_phases_are_merged_and_the_last_state_arrives(agent: Any, join: Any) -> None:
    job = join()
    entries = 3000
    for _ in range(entries // 2):
        with job.phase("sampling"):
            pass
        with job.phase("learning"):
            pass
    job.close()
    phases = agent.handler.of(messages.Phase)
    assert phases[-1].phase is None
    assert sum(message.merged + (message.phase is not None) for message in phases) == entries
    assert len(phases) < 100


def test_nothing_is_lost_or_repeated_when_the_agent_restarts(agent: Any, join: Any, wait_for: Any) -> None:
    jobs = [join(rank=rank) for rank in range(3)]
    published = 60
    failures: list[BaseException] = []

    def work(job: Any) -> None:
        try:
            for index in range(published):
                job.publish("Counted", index=index)
                if index % 10 == 0:
                    job.save(model=[index], step=index)
                time.sleep(0.005)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for _ in range(3):
        time.sleep(0.08)
        agent.stop()
        agent.start()
    for thread in threads:
        thread.join(30)
    for job in jobs:
        assert job.finish()
    assert not failures
    for rank in range(3):
        mine = [(o, m) for o, m in agent.handler.controls if o.sandbox.rank == rank]
        assert [origin.seq for origin, _ in mine] == list(range(1, len(mine) + 1))
        events = [message.payload["index"] for _, message in mine if isinstance(message, messages.Publish)]
        assert events == list(range(published))
        steps = [message.step for _, message in mine if isinstance(message, messages.Saved)]
        assert steps == list(range(0, published, 10))
    assert len(agent.handler.hellos) > 3, "the agent did restart under them"


def test_an_acknowledgement_lost_in_a_crash_does_not_repeat_the_message(agent: Any, join: Any, wait_for: Any) -> None:
    job = join()
    real = agent.handler._record

    def durable_but_unsaid(origin: Any, message: Any) -> None:
        agent.handler._record = real
        real(origin, message)
        raise HandlerUnavailable("the agent died after the fact was on disk")

    agent.handler._record = durable_but_unsaid
    job.publish("Once", index=1)
    job.publish("Once", index=2)
    wait_for(lambda: len(agent.handler.of(messages.Publish)) >= 2)
    job.close()
    assert [event.payload["index"] for event in agent.handler.of(messages.Publish)] == [1, 2]


def test_a_handler_that_cannot_write_now_gets_the_message_again(agent: Any, join: Any, wait_for: Any) -> None:
    job = join()
    agent.handler.failure = HandlerUnavailable("spool full")
    job.publish("Kept", index=1)
    wait_for(lambda: bool(agent.handler.of(messages.Publish)))
    assert agent.servers[0].faults == 0


def test_a_fault_of_the_agent_is_counted_and_the_message_comes_again(agent: Any, join: Any, wait_for: Any) -> None:
    job = join()
    agent.handler.failure = KeyError("bug")
    job.publish("Kept", index=1)
    wait_for(lambda: bool(agent.handler.of(messages.Publish)))
    assert agent.servers[0].faults == 1


def test_a_refusal_for_good_reaches_who_waits_for_it(agent: Any, join: Any, wait_for: Any) -> None:
    job = join()
    agent.handler.failure = MessageRefused("not_now", "no results here")
    with pytest.raises(MessageRefusedError, match="no results here"):
        job.finish(result={"x": 1})


def test_suspension_is_acknowledged(agent: Any, join: Any, wait_for: Any) -> None:
    job = join()
    saved = job.save(state={"step": 5}, step=5)
    agent.order_stop()
    wait_for(lambda: job.stop_ordered)
    with pytest.raises(SystemExit) as caught:
        job.exit_suspended()
    assert caught.value.code == 75
    message = agent.handler.of(messages.Suspended)[0]
    assert (message.checkpoint, message.step) == (saved.wait().id, 5)
    assert agent.servers[0].acknowledged == {("learner", 0)}


def test_nobody_acknowledges_a_stop_that_was_not_ordered(join: Any) -> None:
    job = join()
    with pytest.raises(NotStoppingError, match=r"should_stop\(\) first"):
        job.exit_suspended()
    job.finish()


def test_suspension_does_not_need_the_agent(
    agent: Any, join: Any, wait_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = join()
    monkeypatch.setattr("tidegate.job.SUSPEND_SECONDS_MAX", 0.2)
    agent.order_stop()
    wait_for(lambda: job.stop_ordered)
    agent.stop()
    with pytest.raises(SystemExit) as caught:
        job.exit_suspended()
    assert caught.value.code == 75


def test_a_job_starts_while_the_agent_is_away(agent: Any, join: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = join()
    first.save(model=[1], step=3, wait=True)
    first.close()
    agent.stop()
    monkeypatch.setattr(agent_link, "CONNECT_SECONDS_MAX", 0.2)
    job = join()
    assert job.latest_checkpoint().step == 3, "without the agent's word the newest that verifies"
    job.publish("Later", index=1)
    agent.start()
    assert job.finish()
    assert [event.event for event in agent.handler.of(messages.Publish)] == ["Later"]


def test_no_common_protocol_is_a_clear_error(agent: Any, join: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "protocol_versions", lambda: [7, 9])
    with pytest.raises(ProtocolMismatchError, match="speaks protocol 7 to 9, this agent 1 to 4"):
        join()


def test_a_long_socket_path(agent: Any, join: Any, tmp_path: Any) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    agent.stop()
    agent.directory = deep
    agent.start()
    job = join()
    job.publish("Here")
    assert job.finish()


def test_report_and_save_from_many_threads(agent: Any, join: Any) -> None:
    job = join()
    failures: list[BaseException] = []

    def work(base: int) -> None:
        try:
            for index in range(10):
                job.report({f"m{base}": index}, step=index)
                job.save(state={"base": base, "index": index}, step=base + index)
                job.should_stop()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(base,)) for base in (0, 100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    job.wait_saves()
    assert job.finish()
    assert not failures
    assert sorted(message.step for message in agent.handler.of(messages.Saved)) == sorted(
        base + index for base in (0, 100, 200, 300) for index in range(10)
    )


def test_a_job_is_told_how_many_simulators_there_are(agent: Any, join: Any, wait_for: Any) -> None:
    server = agent.servers[0]
    agent._loop.call_soon_threadsafe(server.tell_replicas, {"simulator": 2})
    wait_for(lambda: server._replicas == {"simulator": 2})
    job = join()
    assert (job.replicas_of("simulator"), job.replicas_of("learner"), job.replicas) == (2, 1, 1)
    agent._loop.call_soon_threadsafe(server.tell_replicas, {"simulator": 5})
    wait_for(lambda: job.replicas_of("simulator") == 5)
    with pytest.raises(UsageError, match="known are learner, simulator"):
        job.replicas_of("buffer")
