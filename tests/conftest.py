"""Shared by all tests: those that need isolation say why they cannot run; on CI they run or fail."""

from __future__ import annotations

import asyncio
import os
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest
from tidegate_local import preflight
from tidegate_local.plan import StackOptions

# They look at the whole machine, which others would change under them: nothing runs beside them.
ALONE = (
    "tests/e2e/test_demo.py::test_the_demo_holds_all_that_it_claims",
    "tests/executor/cgroups/",
    "tests/executor/sandbox/test_leaks.py",
)


# Whole stacks, and what they train, take most of a machine: never more than two at once, and those from the start.
LANES = {
    "tests/e2e/test_demo.py": "stacks-1",
    "tests/e2e/test_kill.py": "stacks-1",
    "tests/e2e/test_resume.py": "stacks-1",
    "tests/e2e/test_gang.py": "stacks-1",
    "tests/e2e/test_operator.py": "stacks-2",
    "tests/e2e/test_stack.py": "stacks-2",
    "tests/e2e/test_logs.py": "stacks-2",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that run alone, and say which of the others one worker runs in turn: `scripts/test` asks both.

    A file's tests may share servers, so they stay together.
    """
    items.sort(key=lambda item: _file(item) not in LANES)
    for item in items:
        if item.nodeid.startswith(ALONE):
            item.add_marker("alone")
        item.add_marker(pytest.mark.xdist_group(LANES.get(_file(item), _file(item))))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@lru_cache(maxsize=1)
def why_no_isolation() -> str:
    """Return why this machine cannot isolate, with the remedy; empty where it can."""
    with tempfile.TemporaryDirectory(prefix="tidegate-probe-") as home:
        problems = asyncio.run(preflight.check(StackOptions(home=Path(home))))
    return "; ".join(f"{problem.what} ({problem.remedy})" for problem in problems)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs isolation where there is none, but never on CI."""
    if item.get_closest_marker("isolation") is None or os.environ.get("CI"):
        return
    if reason := why_no_isolation():
        pytest.skip(reason)
