"""Three tiers as directories, and one job that saved on its node."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidegate.tiers.tiers import Settings, Tiers

from tests.sdk.tiers.moved import Node


@pytest.fixture
def tiers(tmp_path: Path) -> Tiers:
    """Return the tiers of one node."""
    return Tiers(Settings(tmp_path / "n1", str(tmp_path / "warm"), str(tmp_path / "cold")))


@pytest.fixture
def node(tiers: Tiers) -> Node:
    """Return the node that the job saved on."""
    return Node(tiers)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Node:
    """Return another node of the cluster: it shares warm and cold only."""
    return Node(Tiers(Settings(tmp_path / "n2", str(tmp_path / "warm"), str(tmp_path / "cold"))))
