"""The scheduler's settings."""

from __future__ import annotations

import os

import msgspec
from tidegate_events.bus import BusSettings
from tidegate_events.process import bus_settings

from tidegate_scheduler.policy.parameters import Parameters, from_json


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bus is, who this scheduler is, and what it asks of nodes and of the policy."""

    bus: BusSettings
    instance: str = "s1"
    node_silence_seconds: float = 5.0
    orders_resend_seconds: float = 2.0
    parameters: Parameters = Parameters()


def from_environment() -> Settings:
    """Return the settings that TIDEGATE_* variables give; TIDEGATE_POLICY holds parameters as a JSON object."""
    return Settings(
        bus=bus_settings("scheduler"),
        instance=os.environ.get("TIDEGATE_INSTANCE", "s1"),
        node_silence_seconds=float(os.environ.get("TIDEGATE_NODE_SILENCE_SECONDS", "5")),
        parameters=from_json(os.environ.get("TIDEGATE_POLICY", "{}")),
    )
