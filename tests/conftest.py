"""Shared by all tests: those that need isolation say why they cannot run; on CI they run or fail."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest
from tidegate_local import preflight
from tidegate_local.plan import StackOptions
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling

# They look at the whole machine, which others would change under them: nothing runs beside them.
ALONE = (
    "tests/e2e/test_chaos.py",
    "tests/e2e/test_demo.py::test_the_demo_holds_all_that_it_claims",
    "tests/executor/cgroups/",
    "tests/executor/sandbox/test_leaks.py",
    "tests/executor/sandbox/test_ready_leaks.py",
)


# Whole stacks, and what they train, take most of a machine: never more than two at once, and those from the start.
# Who shares a stack runs in one lane.
LANES = {
    "tests/e2e/test_demo.py": "stacks-2",
    "tests/e2e/test_gang.py": "stacks-1",
    "tests/e2e/test_kill.py": "stacks-1",
    "tests/e2e/test_lending.py": "stacks-1",
    "tests/e2e/test_logs.py": "stacks-1",
    "tests/e2e/test_operator.py": "stacks-2",
    "tests/e2e/test_several.py": "stacks-2",
    "tests/e2e/test_stack.py": "stacks-1",
}


def pytest_configure() -> None:
    """Let Ctrl-C reach what tests start: a shell that runs the gate in the background has its children ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what holds none of the tests that run alone, where only those are asked for: it takes long to load."""
    if config.getoption("markexpr") != "alone":
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    files = [name.partition("::")[0].rstrip("/") for name in ALONE]
    return None if any(file.startswith(path) or path.startswith(file) for file in files) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that run alone: `scripts/test` runs the others side by side."""
    items.sort(key=lambda item: item.nodeid.partition("::")[0] not in LANES)
    for item in items:
        if item.nodeid.startswith(ALONE):
            item.add_marker("alone")


class Lanes(LoadScopeScheduling):
    """What one worker runs in turn: a lane, or a file, whose tests may share servers."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return LANES.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Lanes:
    """Take the place of xdist's own ways to distribute tests."""
    return Lanes(config, log)


@lru_cache(maxsize=1)
def why_no_isolation() -> str:
    """Return why this machine cannot isolate, with the remedy; empty where it can."""
    with tempfile.TemporaryDirectory(prefix="tidegate-probe-") as home:
        problems = asyncio.run(preflight.check(StackOptions(home=Path(home))))
    return "; ".join(f"{problem.what} ({problem.remedy})" for problem in problems)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that takes minutes, and one that needs isolation where there is none, but nothing on CI."""
    if os.environ.get("CI"):
        return
    if item.get_closest_marker("long") is not None:
        pytest.skip("takes minutes: runs on CI, and with CI=true")
    if item.get_closest_marker("isolation") is None:
        return
    if reason := why_no_isolation():
        pytest.skip(reason)
