"""What the local stack says of its own processes, where the gateway that is asked belongs to it. Never a password."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit


def read(gateway_url: str) -> dict[str, Any] | None:
    """Return home, addresses and processes of the stack that this gateway belongs to; None where there is none."""
    from tidegate.client.endpoint import STACK_FILE, stack_home  # noqa: PLC0415 - `--help` must not wait for the client

    try:
        record = json.loads((stack_home() / STACK_FILE).read_text(encoding="utf-8"))
        if record["gateway_url"] != gateway_url:
            return None
        return {
            "home": record["home"],
            "state": record["state"],
            "metrics_url": record.get("metrics_url", ""),
            "database": _without_login(record.get("database_url", "")),
            "processes": {
                name: {"pid": service["pid"], "ready": service["ready"], "restarts": service["restarts"]}
                for name, service in record["services"].items()
            },
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # no stack, or one of another version: what the gateway says stands alone


def _without_login(url: str) -> str:
    if not url:
        return ""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port}{parts.path}"
