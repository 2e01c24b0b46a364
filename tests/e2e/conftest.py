"""Stacks for the end-to-end tests: real processes, isolated where this machine can, and nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.running import RunningStack


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[RunningStack]:
    """Yield a running stack of its own; afterwards nothing of it may be left."""
    running = RunningStack.start(tmp_path / "home")
    try:
        yield running
    finally:
        left = running.end()
    assert left == []
