"""The policy's parameters: integers, journaled by PolicyChanged, read by every stage."""

from __future__ import annotations

from typing import Annotated

import msgspec

SECOND_NS = 1_000_000_000

Seconds = Annotated[int, msgspec.Meta(ge=0, le=365 * 24 * 3600)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Permille = Annotated[int, msgspec.Meta(ge=0, le=100_000)]


class ParametersError(Exception):
    """A parameter cannot be used; says which, and what is accepted."""


class Parameters(msgspec.Struct, frozen=True):
    """What an operator may change without changing the code.

    Policy 2 alone reads those from `ageing_seconds` on. A job whose run has passed `protection_permille` of what it
    expected is not preempted, until it has overrun that by `overrun_permille`; 0 protects nobody.

    A node on which `cordon_failures` attempts came to grief within `cordon_window_seconds` is cordoned (0: none is),
    unless more than `cordon_permille` of the nodes that are up would be cordoned then. A node that was lost for
    `node_forgotten_seconds` is forgotten (0: never), unless an operator drained it or it is cordoned.
    A borrower that has waited for a phase for `rebalance_after_seconds` may move to another node (0: none does).
    """

    node_lost_seconds: Seconds = 30
    start_timeout_seconds: Seconds = 300
    inadmissible_after_seconds: Seconds = 60
    stop_grace_seconds_max: Seconds = 10
    retry_backoff_seconds: Seconds = 1
    retry_backoff_seconds_max: Seconds = 60
    infrastructure_failures_max: Count = 20
    decisions_per_pass_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    ageing_seconds: Seconds = 3600
    protection_permille: Permille = 800
    overrun_permille: Permille = 250
    preemptions_max: Count = 8
    preemption_cooldown_seconds: Seconds = 60
    preemption_penalty_seconds: Seconds = 60
    reservations_max: Count = 8
    lend_interval_seconds: Seconds = 1
    maintenance_lead_seconds: Seconds = 3600
    cordon_failures: Count = 5
    cordon_window_seconds: Seconds = 600
    cordon_permille: Permille = 100
    node_forgotten_seconds: Seconds = 7 * 24 * 3600
    defragmentations_per_hour: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 6
    rebalance_after_seconds: Seconds = 120
    cpu_beside_gpu_millis: Count = 0
    slice_steps: Count = 0


def as_parameters(values: dict[str, int]) -> Parameters:
    """Return the parameters recorded in the state; a name it does not hold keeps its default."""
    return msgspec.convert(values, Parameters)


def as_values(parameters: Parameters) -> dict[str, int]:
    """Return the parameters as the event carries them."""
    return msgspec.structs.asdict(parameters)


def from_json(text: str) -> Parameters:
    """Return the parameters that an operator gives as a JSON object. Raises ParametersError, also for unknown names."""
    try:
        values = msgspec.json.decode(text, type=dict[str, int])
        parameters = as_parameters(values)
    except msgspec.MsgspecError as error:
        raise ParametersError(f"policy parameters {text!r} are refused: {error}") from error
    if unknown := sorted(set(values) - set(Parameters.__struct_fields__)):
        raise ParametersError(f"unknown policy parameters {unknown}; known are {list(Parameters.__struct_fields__)}")
    return parameters
