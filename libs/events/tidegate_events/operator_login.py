"""How an operator's command finds the bus: TIDEGATE_BUS_* variables, else what the local stack wrote about itself."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from tidegate.client.endpoint import STACK_FILE, stack_home

from tidegate_events.bus import BusSettings, BusUnreachableError
from tidegate_events.process import bus_settings


class StackLogins(msgspec.Struct, frozen=True):
    """What the local stack's record says of its bus and its database."""

    bus_url: str
    bus_user: str = ""
    bus_password: str = ""
    database_url: str = ""


def home_of(home: Path | None) -> Path:
    """Return the stack's data directory: the one given, TIDEGATE_HOME, or the user's own."""
    return home or stack_home()


def stack_logins(home: Path | None) -> StackLogins:
    """Return what the stack in `home` recorded. Raises BusUnreachableError where there is none."""
    path = home_of(home) / STACK_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=StackLogins)
    except (OSError, msgspec.MsgspecError) as error:
        raise BusUnreachableError(f"no local stack at {path.parent} ({error})") from error


def operator_bus(name: str, home: Path | None) -> BusSettings:
    """Return where the bus is; a `home` that was named goes before the variables. Raises BusUnreachableError."""
    if home is None and "TIDEGATE_BUS_URL" in os.environ:
        return bus_settings(name)
    stack = stack_logins(home)
    return BusSettings(url=stack.bus_url, user=stack.bus_user, password=stack.bus_password, name=name)
