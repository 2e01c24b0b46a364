"""Which rules and which costs somebody wants: a name, or a file of JSON that names them and says more.

`{"rules": "elastic", "parameters": {"ageing_seconds": 0}, "estimates": true, "queues": [{"tenant": "a", "weight": 2}]}`
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from tidegate_events.events import QueueChanged
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.parameters import Parameters, as_parameters
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.errors import InputError
from tidegate_scheduler.simulator.rules import Rules, elastic
from tidegate_scheduler.simulator.workload import Workload

ELASTIC = "elastic"
BASELINES = ("fifo", "static_priority", "srtf", "srsf", "tiresias", "easy", "best_fit", "fgd")
"""The modules below `baselines/`; each makes its rules for a workload, whose truth it may know."""

NAMES = (ELASTIC, *BASELINES)
ACTOR = "simulator"
T = TypeVar("T")


class QueueChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The queue of a tenant as it shall be from the beginning."""

    tenant: str
    weight: int = 1
    guaranteed: Resources | None = None
    ceiling: Resources | None = None
    stopped: bool = False


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules by their name, and what differs from how they are by themselves (None: nothing does)."""

    rules: str
    parameters: dict[str, int] = {}
    estimates: bool | None = None
    queues: tuple[QueueChoice, ...] = ()


def choose(text: str) -> Choice:
    """Return what a policy's name or file means. Raises InputError."""
    if text in NAMES:
        return Choice(text)
    path = Path(text)
    if path.suffix != ".json" and not path.is_file():
        raise InputError(f"there is no policy {text!r}: accepted are {', '.join(NAMES)}, or a JSON file")
    found = _read(path, Choice)
    if found.rules not in NAMES:
        raise InputError(f"{path}: there are no rules {found.rules!r}; accepted are {', '.join(NAMES)}")
    if unknown := sorted(set(found.parameters) - set(Parameters.__struct_fields__)):
        known = ", ".join(Parameters.__struct_fields__)
        raise InputError(f"{path}: there are no parameters {', '.join(unknown)}; accepted are {known}")
    try:
        as_parameters(found.parameters)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: the parameters are refused: {error}") from error
    if wrong := [queue.tenant for queue in found.queues if queue.weight < 1]:
        raise InputError(f"{path}: the weight of the queue of {wrong[0]} is less than 1, which is the least")
    if wrong := [queue.tenant for queue in found.queues if _is_negative(queue)]:
        raise InputError(f"{path}: the queue of {wrong[0]} is bounded by less than nothing; 0 is the least")
    return found


def _is_negative(queue: QueueChoice) -> bool:
    bounds = [each for each in (queue.guaranteed, queue.ceiling) if each is not None]
    return any(amount < 0 for each in bounds for amount in msgspec.structs.astuple(each))


def rules_for(choice: Choice, workload: Workload) -> Rules:
    """Return the chosen rules for a workload."""
    rules = elastic(estimates=bool(choice.estimates)) if choice.rules == ELASTIC else _baseline(choice.rules, workload)
    changes: dict[str, Any] = {}
    if choice.parameters:
        changes["parameters"] = as_parameters({**msgspec.structs.asdict(rules.parameters), **choice.parameters})
    if choice.estimates is not None:
        changes["knows_durations"] = choice.estimates
    if choice.queues:
        changes["queues"] = (*rules.queues, *(_changed(queue) for queue in choice.queues))
    return msgspec.structs.replace(rules, **changes) if changes else rules


def costs_in(path: Path) -> Costs:
    """Return the costs that a file of JSON states; those it does not name have their defaults. Raises InputError."""
    return _read(path, Costs)


def _baseline(name: str, workload: Workload) -> Rules:
    module = importlib.import_module(f"tidegate_scheduler.simulator.baselines.{name}")
    return msgspec.convert(module.rules(workload), Rules)


def _changed(queue: QueueChoice) -> QueueChanged:
    return QueueChanged(
        id=f"queue-{queue.tenant}",
        at_ns=0,
        actor=ACTOR,
        tenant=queue.tenant,
        weight=queue.weight,
        guaranteed=queue.guaranteed,
        ceiling=queue.ceiling,
        stopped=queue.stopped,
    )


def _read(path: Path, kind: type[T]) -> T:
    fields = ", ".join(kind.__struct_fields__)  # type: ignore[attr-defined]
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; accepted is a JSON object with {fields}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is refused: {error}; accepted is a JSON object with {fields}") from error
