"""What one job may cause to be written, whatever it says and however often."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidegate.checkpoint import root as roots
from tidegate_events.clock import SystemClock
from tidegate_events.events import CheckpointFailed, CheckpointSaved
from tidegate_executor import job_voice
from tidegate_executor.attempt_memory import AttemptMemory
from tidegate_executor.attempts import transitions
from tidegate_executor.channel import messages
from tidegate_executor.channel.handler import ClientInfo, HandlerBusy, Origin, Sandbox
from tidegate_executor.context import Context
from tidegate_executor.job_voice import JobVoice
from tidegate_executor.sampling.reports import ProcessReports
from tidegate_executor.spool.spool import Spool

from tests.executor.agent.conftest import component, job
from tests.support import stores

ORDER = job("j", component("main", ""))


class Disk:
    """Everything is durable at once, and counted."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.puts = 0

    def put(self, events: Any = (), **_more: Any) -> asyncio.Future[None]:
        self.events += events
        self.puts += 1
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


def speaking(hot: Path) -> tuple[JobVoice, Disk]:
    disk = Disk()
    state = transitions.accept(ORDER, 0, level="trusted", image_digest="", uid_slot=0)
    context = SimpleNamespace(
        settings=SimpleNamespace(hot_dir=str(hot)), node="n1", clock=SystemClock(), reports=ProcessReports()
    )
    memory = AttemptMemory(cast(Spool, disk), ORDER, state)
    return JobVoice(cast(Context, context), memory), disk


def origin(seq: int) -> Origin:
    return Origin(sandbox=Sandbox("j", 1, 0), component="main", replica=0, client="c" * 32, seq=seq)


def saved(hot: Path, step: int) -> messages.Saved:
    stamp = roots.Stamp(job="j", attempt=1, rank=0, component="main", replica=0, world_size=1, seed=0)
    directory = hot / "lab" / "j"
    committed = stores.save_tree(directory, step, {"state/f": f"{step}".encode()}, stamp)
    return messages.Saved(
        seq=1, at_ns=0, id=committed.root.id, directory=committed.name, step=step, layers=[], copy_ms=0, write_ms=0
    )


async def test_a_checkpoint_told_again_is_no_new_fact(tmp_path: Path) -> None:
    voice, disk = speaking(tmp_path)
    message = saved(tmp_path, 3)
    for seq in range(1, 50):
        await voice.on_saved(origin(seq), message)
    assert [type(event) for event in disk.events] == [CheckpointSaved]
    assert voice.high_water("c" * 32) == 49


async def test_more_checkpoints_than_anybody_needs_have_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_voice, "SAVES_BURST", 3)
    voice, disk = speaking(tmp_path)
    for step in range(3):
        await voice.on_saved(origin(step + 1), saved(tmp_path, step))
    with pytest.raises(HandlerBusy) as busy:
        await voice.on_saved(origin(4), saved(tmp_path, 4))
    assert 0 < busy.value.retry_after_ms <= 1000
    assert len(disk.events) == 3
    assert voice.high_water("c" * 32) == 3


async def test_a_job_whose_saves_fail_all_the_time_does_not_fill_the_journal(tmp_path: Path) -> None:
    voice, disk = speaking(tmp_path)
    for seq in range(1, 500):
        await voice.on_save_failed(origin(seq), messages.SaveFailed(seq=seq, at_ns=0, step=1, error="full\0"))
    assert len(disk.events) == job_voice.FAILURES_BURST
    assert isinstance(disk.events[0], CheckpointFailed)
    assert disk.events[0].reason.detail == "full\\x00"
    assert voice.failures_dropped == 499 - job_voice.FAILURES_BURST
    assert voice.high_water("c" * 32) == 499


async def test_a_process_that_comes_back_all_the_time_writes_once(tmp_path: Path) -> None:
    voice, disk = speaking(tmp_path)
    client = ClientInfo(origin=origin(0), pid=1, peer_pid=1, peer_uid=0, sdk="", python="", protocol=1)
    for _ in range(20):
        await voice.on_hello(client)
    assert disk.puts == 1
