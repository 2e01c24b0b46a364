"""The policy's parameters: integers, journaled by PolicyChanged, read by every stage."""

from __future__ import annotations

import msgspec

SECOND_NS = 1_000_000_000


class Parameters(msgspec.Struct, frozen=True):
    """What an operator may change without changing the code; defaults are policy v1's."""

    node_lost_seconds: int = 30
    start_timeout_seconds: int = 300
    inadmissible_after_seconds: int = 60
    stop_grace_seconds_max: int = 10
    retry_backoff_seconds: int = 1
    retry_backoff_seconds_max: int = 60
    infrastructure_failures_max: int = 20
    decisions_per_pass_max: int = 250


def as_parameters(values: dict[str, int]) -> Parameters:
    """Return the parameters recorded in the state; a name it does not hold keeps its default."""
    return msgspec.convert(values, Parameters)


def as_values(parameters: Parameters) -> dict[str, int]:
    """Return the parameters as the event carries them."""
    return msgspec.structs.asdict(parameters)
