"""`tidegate-executor sweep`: end every sandbox of a data directory and remove its cgroups and mounts.

It is for when the node goes away for good or for a while. The agent's memory of its attempts is left: the next start
finds their sandboxes gone and reports them as lost, so that the scheduler resumes the jobs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tidegate_executor import backends, lock
from tidegate_executor.settings import NodePaths

AGENT_SECONDS_MAX = 10.0  # how long an agent that was told to end may take to let go


async def sweep(data_dir: Path) -> list[str]:
    """Return the ids of the sandboxes that were ended. Raises DataDirectoryInUseError while an agent runs."""
    paths = NodePaths(data_dir)
    settings = await asyncio.to_thread(backends.recorded, paths)
    if settings is None:
        return []  # no agent ever ran here
    await asyncio.to_thread(lock.hold, paths.lock, AGENT_SECONDS_MAX)
    swept: list[str] = []
    for backend in backends.make(settings).values():
        swept += await backend.sweep(frozenset())
        await backend.release()
    return sorted(set(swept))
