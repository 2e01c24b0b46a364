"""The first step of making a sandbox, its directory, in which it is written down, and the undoing of all steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate_executor.cgroups.base import CgroupError, Driver
from tidegate_executor.sandbox.base import InfrastructureError
from tidegate_executor.sandbox.launch import Waiting, await_end
from tidegate_executor.sandbox.remains import clear_remains
from tidegate_executor.sandbox.state import SandboxRecord, StateDirectory


def make(
    begun: tuple[StateDirectory, SandboxRecord, Driver | None],
    prepare: Callable[[StateDirectory], dict[str, Any]],
    made: list[StateDirectory],
) -> dict[str, Any]:
    """Add the directory to `made` once it is ours, for whoever undoes it."""
    state, record, driver = begun
    try:
        state.create(record)
        made.append(state)
        Path(record.log_dir).mkdir(parents=True, exist_ok=True)
        if driver is not None:
            driver.prepare()
    except (CgroupError, OSError) as error:
        raise InfrastructureError(f"sandbox {state.id}: {error}") from error
    return prepare(state)


async def undo(shim: Waiting, *places: StateDirectory) -> None:
    """Have the shim end, then leave nothing of what it made for these."""
    await await_end(shim)
    for place in places:
        await asyncio.to_thread(clear_remains, place)
