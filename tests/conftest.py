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
ALONE = ("tests/e2e/test_demo.py", "tests/executor/cgroups/", "tests/executor/sandbox/test_leaks.py")


# The longest tests. They begin first, so that none of them is what the last worker is still busy with.
LONG = "tests/e2e/"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that run alone, and say which of the others one worker runs together: `scripts/test` asks both.

    A file's tests may share servers, so they stay together; a long one with a stack of its own shares nothing.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    for item in items:
        file = item.nodeid.partition("::")[0]
        if item.nodeid.startswith(ALONE):
            item.add_marker("alone")
        if not (file.startswith(LONG) and {"start", "tmp_path"} & set(getattr(item, "fixturenames", ()))):
            item.add_marker(pytest.mark.xdist_group(file))


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
