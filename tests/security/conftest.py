"""What attempts have in common: a world of one isolation level, by each backend that gives one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.executor.sandbox.conftest import World, open_world


@pytest.fixture(params=["bwrap", "gvisor", "docker", "docker-guarded"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    opened = await open_world(request.param, tmp_path)
    yield opened
    await opened.backend.sweep(set())
    await opened.backend.release()
