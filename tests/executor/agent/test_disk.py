"""A member whose sandbox has a disk of its own: full is the job's own failure, and said so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.executor.agent.conftest import Agent, Scheduler, component, job

pytestmark = pytest.mark.isolation

FILLING = """
with open("fill", "wb", buffering=0) as writing:
    while True:
        writing.write(bytes(1 << 20))
"""


async def test_a_job_that_fills_its_disk_fails_by_itself_and_hears_why(
    make_agent: Callable[..., Agent], scheduler: Scheduler
) -> None:
    agent = make_agent(offer_trusted=True, offer_unisolated=False, sandbox_disk_mib=32, sandbox_inodes=1000)
    await scheduler.joined()
    scheduler.want(job("fills", component("main", FILLING), level="trusted"))
    exited = await scheduler.exit_of("fills")
    assert (exited.outcome, exited.exit_code, exited.oom) == ("failed", 1, False)
    assert exited.detail == "component main ended with exit code 1; its disk of 31 MiB is full"
    scheduler.want(job("goes-on", component("main", "open('small', 'w').write('x')"), level="trusted"))
    assert (await scheduler.exit_of("goes-on")).outcome == "completed"
    assert agent.alive
