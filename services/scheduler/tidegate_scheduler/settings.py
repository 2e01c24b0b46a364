"""The scheduler's settings."""

from __future__ import annotations

import os

import msgspec
from tidegate_events.bus import BusSettings
from tidegate_events.process import bus_settings

from tidegate_scheduler.lease import LEASE_SECONDS_MAX, LEASE_SECONDS_MIN
from tidegate_scheduler.policy.parameters import Parameters, ParametersError, from_json

LEASE_SECONDS = 1.0


class SettingsError(Exception):
    """A setting cannot be; says which, and what is accepted."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bus is, who this scheduler is, and what it asks of nodes and of the policy."""

    bus: BusSettings
    instance: str = "s1"
    lease_seconds: float = LEASE_SECONDS
    node_silence_seconds: float = 5.0
    orders_resend_seconds: float = 2.0
    orders_resends_per_second: float = 500.0
    parameters: Parameters = Parameters()


def from_environment() -> Settings:
    """Return the settings that TIDEGATE_* variables give; TIDEGATE_POLICY holds parameters as a JSON object.

    Raises SettingsError.
    """
    try:
        parameters = from_json(os.environ.get("TIDEGATE_POLICY", "{}"))
    except ParametersError as error:
        raise SettingsError(f"TIDEGATE_POLICY: {error}") from error
    return Settings(
        bus=bus_settings("scheduler"),
        instance=os.environ.get("TIDEGATE_INSTANCE", "s1"),
        lease_seconds=_lease_seconds(os.environ.get("TIDEGATE_LEASE_SECONDS", str(LEASE_SECONDS))),
        node_silence_seconds=float(os.environ.get("TIDEGATE_NODE_SILENCE_SECONDS", "5")),
        parameters=parameters,
    )


def _lease_seconds(text: str) -> float:
    accepted = f"a number of seconds from {LEASE_SECONDS_MIN} to {LEASE_SECONDS_MAX}"
    try:
        seconds = float(text)
    except ValueError as error:
        raise SettingsError(f"TIDEGATE_LEASE_SECONDS is {text!r}; accepted is {accepted}") from error
    if not LEASE_SECONDS_MIN <= seconds <= LEASE_SECONDS_MAX:
        raise SettingsError(f"TIDEGATE_LEASE_SECONDS is {text}; accepted is {accepted}")
    return seconds
