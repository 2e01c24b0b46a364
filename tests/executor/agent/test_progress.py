"""Which reports of progress become facts: those that moved enough, up or down, and only so many."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_events.events import ProgressReported
from tidegate_executor.attempts import transitions
from tidegate_executor.attempts.progress import MOVE_MILLIS, TOLD_MAX, ProgressState, is_news, millis_of, tell
from tidegate_executor.channel import messages
from tidegate_executor.spool.spool import SpoolFullError

from tests.executor.agent.test_voice import Disk, origin, speaking


def told_of(reports: list[int]) -> list[int]:
    state, told = ProgressState(), []
    for millis in reports:
        if is_news(state, millis):
            state = tell(state, millis)
            told.append(millis)
    return told


def test_a_job_that_goes_from_nothing_to_the_end_is_told_of_in_moves() -> None:
    assert told_of(list(range(1001))) == list(range(0, 1000, MOVE_MILLIS))


def test_a_fall_is_told_as_a_rise_is() -> None:
    assert told_of([600, 620, 590, 540, 560, 600]) == [600, 540, 600]


@given(st.lists(st.integers(0, 1000), max_size=200))
def test_what_is_known_is_within_one_move_while_it_may_be_told(reports: list[int]) -> None:
    told = told_of(reports)
    assert len(told) <= TOLD_MAX
    if reports and len(told) < TOLD_MAX:
        assert abs(told[-1] - reports[-1]) < MOVE_MILLIS


@pytest.mark.parametrize(("progress", "millis"), [(0.0, 0), (0.0009, 0), (0.25, 250), (0.9999, 999), (1.0, 1000)])
def test_nobody_is_further_than_they_said(progress: float, millis: int) -> None:
    assert millis_of(progress) == millis


def said(progress: float) -> messages.Report:
    return messages.Report(at_ns=0, metrics={}, step=7, progress=progress)


async def facts_of(hot: Path, *, rank: int = 0, component: str = "main", stage: str = "running") -> list[object]:
    voice, disk = speaking(hot)
    voice._memory.state = msgspec.structs.replace(transitions.started(voice._memory.state), rank=rank, stage=stage)  # type: ignore[arg-type]
    who = msgspec.structs.replace(origin(0), component=component)
    for progress in (0.1, 0.12, 0.16, 0.5):
        await voice.on_report(who, said(progress))
    return cast(list[object], disk.events)


async def test_reports_of_rank_0s_main_component_become_facts(tmp_path: Path) -> None:
    told = await facts_of(tmp_path)
    assert [(each.rank, each.progress_millis, each.step) for each in told if isinstance(each, ProgressReported)] == [
        (0, 100, 7),
        (0, 160, 7),
        (0, 500, 7),
    ]


@pytest.mark.parametrize("other", [{"rank": 1}, {"component": "sim"}, {"stage": "starting"}])
async def test_other_words_are_telemetry_only(tmp_path: Path, other: dict[str, str]) -> None:
    assert await facts_of(tmp_path, **other) == []  # type: ignore[arg-type]


async def test_a_full_spool_keeps_the_fact_for_the_next_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    voice, disk = speaking(tmp_path)
    voice._memory.state = transitions.started(voice._memory.state)

    def full(*_given: object, **_more: object) -> asyncio.Future[None]:
        raise SpoolFullError("full")

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "put", full)
        await voice.on_report(origin(0), said(0.2))
    assert voice._memory.state.progress.told == 0
    await voice.on_report(origin(0), said(0.2))
    assert [each.progress_millis for each in disk.events] == [200]
