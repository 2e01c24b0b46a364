"""The checkpoint service's settings."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from tidegate.errors import UsageError
from tidegate.tiers import retaining, tiers
from tidegate.tiers.collecting import PAUSE_SECONDS
from tidegate.tiers.retaining import Policies
from tidegate_events.bus import BusSettings
from tidegate_events.process import bus_settings

VERIFICATIONS_DEFAULT = 2
GC_SECONDS_DEFAULT = 600
SCRUB_SECONDS_DEFAULT = 24 * 3600
NUMBER_MAX = 2**40


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bus is, who this service is, where jobs save, and how many checkpoints are read at once.

    With a `node`, this process judges and promotes only what that node's jobs saved: the hot directory is that node's.
    Without, all nodes share one. Every `gc_seconds` the tiers are collected; what is set apart is deleted
    `gc_pause_seconds` later. Each job is scrubbed in each tier every `scrub_seconds` (0: never).
    """

    bus: BusSettings
    hot_dir: Path
    instance: str = "c1"
    verifications: int = VERIFICATIONS_DEFAULT
    node: str = ""
    warm: str | None = None
    cold: str | None = None
    tier_mib_per_second: int = 0
    warm_mib_per_second: int = 0
    cold_mib_per_second: int = 0
    retention: Policies = Policies()
    gc_seconds: int = GC_SECONDS_DEFAULT
    gc_pause_seconds: int = PAUSE_SECONDS
    scrub_seconds: int = SCRUB_SECONDS_DEFAULT
    hot_capacity_bytes: int = 0
    metrics_port: int = 0

    @property
    def tiers(self) -> tiers.Settings:
        """Return where the tiers are."""
        rates = (self.tier_mib_per_second, self.warm_mib_per_second, self.cold_mib_per_second)
        return tiers.Settings(self.hot_dir, self.warm, self.cold, *rates)


def from_environment() -> Settings:
    """Return the settings that TIDEGATE_* variables give; raises ValueError for one that is not accepted.

    Raises LookupError where the hot directory is not named.
    """
    hot_dir, home = os.environ.get("TIDEGATE_HOT_DIR"), os.environ.get("TIDEGATE_HOME")
    if not hot_dir and not home:
        raise LookupError(
            "no hot directory: set TIDEGATE_HOT_DIR to the directory that holds <tenant>/<job>, or TIDEGATE_HOME"
        )
    try:
        named = tiers.from_environment(os.environ)
        retention = retaining.parse(os.environ.get("TIDEGATE_RETENTION", ""))
    except UsageError as error:
        raise ValueError(str(error)) from error
    return Settings(
        bus=bus_settings("checkpoint"),
        hot_dir=named.hot,
        instance=os.environ.get("TIDEGATE_INSTANCE", "c1"),
        verifications=max(1, _number("TIDEGATE_VERIFICATIONS", VERIFICATIONS_DEFAULT)),
        node=os.environ.get("TIDEGATE_CHECKPOINT_NODE", ""),
        warm=named.warm,
        cold=named.cold,
        tier_mib_per_second=named.mib_per_second,
        warm_mib_per_second=named.warm_mib_per_second,
        cold_mib_per_second=named.cold_mib_per_second,
        retention=retention,
        gc_seconds=_number("TIDEGATE_GC_SECONDS", GC_SECONDS_DEFAULT),
        gc_pause_seconds=_number("TIDEGATE_GC_PAUSE_SECONDS", PAUSE_SECONDS),
        scrub_seconds=_number("TIDEGATE_SCRUB_SECONDS", SCRUB_SECONDS_DEFAULT),
        hot_capacity_bytes=_number("TIDEGATE_HOT_CAPACITY_MIB", 0) << 20,
        metrics_port=_number("TIDEGATE_CHECKPOINT_METRICS_PORT", 0),
    )


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text) > NUMBER_MAX:
        raise ValueError(f"{variable}={text[:40]!r} was refused: a whole number from 0 to {NUMBER_MAX} is accepted")
    return int(text)
