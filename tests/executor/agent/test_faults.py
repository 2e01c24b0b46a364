"""A fault at one member: who is taken along, and who is not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidegate_executor.agent import NodeAgent
from tidegate_executor.attempts import transitions
from tidegate_executor.context import Context
from tidegate_executor.runner import AttemptRunner
from tidegate_executor.settings import Settings
from tidegate_executor.starts import Starts
from tidegate_executor.warm_pool import WarmPool

from tests.executor.agent.conftest import component, job

ORDER = job("j", component("main", ""))


class Failing:
    """A runner that meets `error`."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.given_up: Exception | None = None
        state = transitions.accept(ORDER, 0, level="trusted", image_digest="", uid_slot=0)
        self.memory = SimpleNamespace(state=state, order=ORDER)

    async def run(self) -> None:
        raise self._error

    async def give_up(self, error: Exception) -> None:
        self.given_up = error


async def attend(error: Exception, *, broken: bool = False) -> Failing:
    failing = Failing(error)
    starts = Starts()
    warm = WarmPool({}, Settings(node="n1", data_dir="/n", hot_dir="/n", secrets_dir="/n"), starts)
    spool, images = SimpleNamespace(broken=broken), SimpleNamespace()
    context: Any = SimpleNamespace(spool=spool, images=images, starts=starts, warm=warm)
    async with asyncio.TaskGroup() as tasks:
        agent = NodeAgent(cast(Context, context), 1, tasks)
        agent._runners["j.1.0"] = cast(AttemptRunner, failing)
        await agent._attend(cast(AttemptRunner, failing))
    return failing


async def test_a_fault_at_one_member_ends_that_member_only() -> None:
    group = ExceptionGroup("in its tasks", [ValueError("a text that no event can hold")])
    failing = await attend(group)
    assert failing.given_up is group


@pytest.mark.parametrize("error", [OSError(24, "too many open files"), ExceptionGroup("x", [OSError(28, "no space")])])
async def test_a_node_in_need_ends_the_agent_and_no_member(error: Exception) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await attend(error)
    assert raised.value.subgroup(OSError) is not None


async def test_a_spool_that_cannot_write_ends_the_agent() -> None:
    with pytest.raises(ExceptionGroup):
        await attend(ValueError("refused"), broken=True)
