"""A hot directory and a job that saves there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.saving import Job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a job that has saved nothing yet."""
    hot_dir = tmp_path / "hot"
    hot_dir.mkdir()
    return Job(hot_dir)
