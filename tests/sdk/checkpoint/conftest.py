"""A store for the tests of this folder."""

from pathlib import Path

import pytest
from tidegate.checkpoint.store import CheckpointStore

from tests.support.stores import STAMP


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints", STAMP)
    store.open()
    return store
