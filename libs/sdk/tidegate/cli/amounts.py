"""Amounts of a queue as people write them: `cpu=64,mem=256G,gpu=8`, and back."""

from __future__ import annotations

import re
from typing import Any

from tidegate.cli import exits, text
from tidegate.cli.exits import CommandError

_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,3})?")
_MEMORY = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([MGT])i?B?", re.IGNORECASE)
_UNIT_MIB = {"M": 1, "G": 1024, "T": 1024 * 1024}
_ACCEPTED = "Accepted are cpu=64 (CPUs), mem=256G (M, G or T) and gpu=8, separated by commas; or none."


def parse(given: str, option: str) -> dict[str, int] | None:
    """Return amounts as the gateway takes them, None for `none`. Raises CommandError."""
    if given == "none":
        return None
    found: dict[str, int] = {}
    for part in given.split(","):
        name, _, value = part.strip().partition("=")
        read = _read(name, value)
        if read is None or read[0] in found:
            raise CommandError(f"{option} {given!r} is no list of amounts: {part.strip()!r}.", _ACCEPTED, exits.USAGE)
        found[read[0]] = read[1]
    return found


def _read(name: str, value: str) -> tuple[str, int] | None:
    memory = _MEMORY.fullmatch(value)
    if name == "mem" and memory is not None:
        return "memory_mib", int(float(memory[1]) * _UNIT_MIB[memory[2].upper()])
    if name == "cpu" and _NUMBER.fullmatch(value):
        return "cpu_millis", int(float(value) * 1000)
    if name == "gpu" and value.isascii() and value.isdigit():
        return "gpus", int(value)
    return None


def shown(amounts: dict[str, Any] | None) -> str:
    """Return amounts in words; one that is 0 is not named."""
    if amounts is None:
        return text.NOTHING
    parts = [f"{text.cpus(amounts['cpu_millis'])} CPU"] if amounts.get("cpu_millis") else []
    parts += [text.mib(amounts["memory_mib"])] if amounts.get("memory_mib") else []
    gpus_millis = amounts.get("gpus", 0) * 1000 + amounts.get("gpu_millis", 0)
    parts += [f"{text.cpus(gpus_millis)} GPU"] if gpus_millis else []
    return " ".join(parts) or "0"
