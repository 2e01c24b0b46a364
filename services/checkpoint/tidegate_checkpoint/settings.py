"""The checkpoint service's settings."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from tidegate_events.bus import BusSettings
from tidegate_events.process import bus_settings

VERIFICATIONS_DEFAULT = 2


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bus is, who this service is, where jobs save, and how many checkpoints are read at once."""

    bus: BusSettings
    hot_dir: Path
    instance: str = "c1"
    verifications: int = VERIFICATIONS_DEFAULT


def from_environment() -> Settings:
    """Return the settings that TIDEGATE_* variables give; raises LookupError where the hot directory is not named."""
    hot_dir, home = os.environ.get("TIDEGATE_HOT_DIR"), os.environ.get("TIDEGATE_HOME")
    if not hot_dir and not home:
        raise LookupError(
            "no hot directory: set TIDEGATE_HOT_DIR to the directory that holds <tenant>/<job>, or TIDEGATE_HOME"
        )
    return Settings(
        bus=bus_settings("checkpoint"),
        hot_dir=Path(hot_dir) if hot_dir else Path(str(home)) / "hot",
        instance=os.environ.get("TIDEGATE_INSTANCE", "c1"),
        verifications=max(1, int(os.environ.get("TIDEGATE_VERIFICATIONS", str(VERIFICATIONS_DEFAULT)))),
    )
