"""Libraries that not every machine can have: a test without one is skipped, but on CI it fails."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest


def needed(name: str) -> Any:
    """Return the module."""
    return importlib.import_module(name) if os.environ.get("CI") else pytest.importorskip(name)
