"""Structs as plain values with every field, those at their defaults included."""

from __future__ import annotations

from typing import Any

import msgspec


def plain(value: Any) -> Any:
    """Return `value` made of dicts, lists and scalars, so that a reader need not know any default."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple | list):
        return [plain(element) for element in value]
    if isinstance(value, dict):
        return {name: plain(element) for name, element in value.items()}
    return value
