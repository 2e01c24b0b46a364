"""Stacks for the end-to-end tests: real processes, isolated where this machine can, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.running import RunningStack


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], RunningStack]]:
    """Yield how to start the stack of this test's home; one that the test did not end is ended after it."""
    started: list[RunningStack] = []

    def bring_up() -> RunningStack:
        started.append(RunningStack.start(tmp_path / "home"))
        return started[-1]

    try:
        yield bring_up
    finally:
        left = [leftover for stack in started if not stack.ended for leftover in stack.end()]
    assert left == []


@pytest.fixture
def stack(start: Callable[[], RunningStack]) -> RunningStack:
    """Return a running stack; afterwards nothing of it may be left."""
    return start()
