"""Stacks for the end-to-end tests: real processes, isolated where this machine can, and nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.running import RunningStack


class Place:
    """Where a stack runs that tests use one after the other, each as long as it leaves it idle."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[RunningStack] = []

    def running(self) -> RunningStack:
        """Return the stack that runs; where there is none it is started, in a home of its own."""
        if not self._started or self._started[-1].ended:
            return self._start(self._directory / f"home-{len(self._started)}")
        return self._started[-1]

    def again(self) -> RunningStack:
        """Start the stack that ended once more, in the same home."""
        return self._start(self._started[-1].home.root)

    def tidy(self) -> None:
        """End the stack where a test left a job in it, or broke it: the next one shall not meet that."""
        if self._started and not self._started[-1].ended and not self._started[-1].is_idle():
            self.end()

    def end(self) -> None:
        """End the stack; nothing of it may be left."""
        if self._started and not self._started[-1].ended:
            assert self._started[-1].end() == []

    def _start(self, root: Path) -> RunningStack:
        self._started.append(RunningStack.start(root))
        return self._started[-1]


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Yield the place of the stack that the tests here share."""
    place = Place(tmp_path_factory.mktemp("shared"))
    try:
        yield place
    finally:
        place.end()


@pytest.fixture
def place(shared: Place) -> Iterator[Place]:
    """Yield that place to one test."""
    try:
        yield shared
    finally:
        shared.tidy()


@pytest.fixture
def stack(place: Place) -> RunningStack:
    """Return a running stack, in which no job runs; other tests used it before."""
    return place.running()
