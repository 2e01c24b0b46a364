"""Which control groups the sandboxes of a stack have: agents make some before it is known whose they will be."""

from __future__ import annotations

import json
from pathlib import Path


def group_names(root: Path, sandboxes: str) -> set[str]:
    """Return the groups' names, of the sandboxes below the stack's directory whose names match the pattern."""
    return {name for record in root.glob(f"nodes/*/sandboxes/{sandboxes}/sandbox.json") for name in _of(record)}


def _of(record: Path) -> list[str]:
    try:
        found = json.loads(record.read_text())
    except FileNotFoundError:
        return []  # it was taken, or removed, meanwhile
    return [found.get("group") or found["id"]]
