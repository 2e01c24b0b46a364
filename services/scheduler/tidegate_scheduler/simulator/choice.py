"""Which rules and which costs somebody wants: a name, or a file of JSON that names them and says more.

`{"rules": "elastic", "parameters": {"ageing_seconds": 0}, "estimates": true, "queues": [{"tenant": "a", "weight": 2}]}`
"""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from tidegate_events.events import QueueChanged
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.parameters import Parameters, as_parameters, as_values
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.errors import InputError
from tidegate_scheduler.simulator.rules import Rules, elastic
from tidegate_scheduler.simulator.workload import Workload

ELASTIC = "elastic"
BASELINES = ("fifo", "static_priority", "srtf", "srsf", "tiresias", "tiresias_queues", "easy", "best_fit", "fgd")
"""The modules below `baselines/`; each makes its rules for a workload, whose truth it may know."""

NAMES = (ELASTIC, *BASELINES)
TOLD_ESTIMATES = (ELASTIC, "easy")
"""Those that look at what jobs say of how long they take; others know it anyway, or never ask."""

SETTLING = (
    "node_lost_seconds",
    "start_timeout_seconds",
    "stop_grace_seconds_max",
    "retry_backoff_seconds",
    "retry_backoff_seconds_max",
    "infrastructure_failures_max",
    "inadmissible_after_seconds",
    "maintenance_lead_seconds",
    "decisions_per_pass_max",
)
"""The parameters that all rules read: what was seen of jobs is settled by them, whoever places jobs."""

TENANTS_NAMED = 8
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
    found = read_json(path, Choice)
    if found.rules not in NAMES:
        raise InputError(f"{path}: there are no rules {found.rules!r}; accepted are {', '.join(NAMES)}")
    if unknown := sorted(set(found.parameters) - set(Parameters.__struct_fields__)):
        known = ", ".join(Parameters.__struct_fields__)
        raise InputError(f"{path}: there are no parameters {', '.join(unknown)}; accepted are {known}")
    try:
        as_parameters(found.parameters)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: the parameters are refused: {error}") from error
    check(found, f"{path}: ")
    if wrong := [queue.tenant for queue in found.queues if queue.weight < 1]:
        raise InputError(f"{path}: the weight of the queue of {wrong[0]} is less than 1, which is the least")
    if wrong := [queue.tenant for queue in found.queues if _is_negative(queue)]:
        raise InputError(f"{path}: the queue of {wrong[0]} is bounded by less than nothing; 0 is the least")
    return found


def check(choice: Choice, where: str = "") -> None:
    """Raise InputError for what the chosen rules do not read: it would change nothing, and nobody would know."""
    name = choice.rules
    if choice.estimates is not None and name not in TOLD_ESTIMATES:
        raise InputError(
            f"{where}{name} reads no estimates, so it can neither be told them nor go without; accepted is to leave "
            f"`estimates` out, or one of {', '.join(TOLD_ESTIMATES)}"
        )
    doubled = [tenant for tenant, count in Counter(queue.tenant for queue in choice.queues).items() if count > 1]
    if doubled:
        raise InputError(f"{where}the queue of {doubled[0]} is said more than once; accepted is one for each tenant")
    if name == ELASTIC:
        return
    if unread := [each for each in choice.parameters if each not in SETTLING]:
        raise InputError(f"{where}{name} does not read {', '.join(unread)}; it reads {', '.join(SETTLING)}")
    if unread := [queue.tenant for queue in choice.queues if queue.weight != 1 or queue.guaranteed is not None]:
        raise InputError(
            f"{where}{name} reads no weights and guarantees, as the queue of {unread[0]} has; accepted are `ceiling` "
            f"and `stopped`, or the rules {ELASTIC}"
        )


def _check_tenants(choice: Choice, tenants: Iterable[str]) -> None:
    """Raise InputError for a queue of somebody who is not there."""
    known = sorted(set(tenants))
    if unknown := [queue.tenant for queue in choice.queues if queue.tenant not in known]:
        named = ", ".join(known[:TENANTS_NAMED]) + (
            f" and {len(known) - TENANTS_NAMED} more" if len(known) > TENANTS_NAMED else ""
        )
        raise InputError(f"there is no tenant {unknown[0]!r} here for a queue; accepted are {named}")


def _is_negative(queue: QueueChoice) -> bool:
    bounds = [each for each in (queue.guaranteed, queue.ceiling) if each is not None]
    return any(amount < 0 for each in bounds for amount in msgspec.structs.astuple(each))


def rules_for(choice: Choice, workload: Workload, tenants: Iterable[str] = ()) -> Rules:
    """Return the chosen rules for a workload, in which there are these `tenants` beside those who submit jobs.

    Raises InputError for what the rules do not read, and for a queue of somebody who is not there.
    """
    check(choice)
    _check_tenants(choice, [*(arrival.spec.tenant for arrival in workload.arrivals), *tenants])
    rules = elastic(estimates=bool(choice.estimates)) if choice.rules == ELASTIC else _baseline(choice.rules, workload)
    changes: dict[str, Any] = {}
    if choice.parameters:
        changes["parameters"] = as_parameters({**msgspec.structs.asdict(rules.parameters), **choice.parameters})
    if choice.estimates is not None:
        changes["knows_durations"] = choice.estimates
    if choice.queues:
        changes["queues"] = (*rules.queues, *(_changed(queue) for queue in choice.queues))
    return msgspec.structs.replace(rules, **changes) if changes else rules


def stated(rules: Rules) -> str:
    """Return in words who decides: the name of the rules, the parameters that are not usual, and their queues."""
    usual = as_values(Parameters())
    differ = (f"{name} {value}" for name, value in as_values(rules.parameters).items() if value != usual[name])
    return ", ".join((rules.name, *differ, *map(_queue_stated, rules.queues)))


def _queue_stated(queue: QueueChanged) -> str:
    bounds = (("guaranteed", queue.guaranteed), ("ceiling", queue.ceiling))
    said = [f"{name} {_resources_stated(amount)}" for name, amount in bounds if amount is not None]
    return " ".join((f"queue {queue.tenant} weight {queue.weight}", *said, *(("stopped",) if queue.stopped else ())))


def _resources_stated(amount: Resources) -> str:
    return "+".join(f"{value} {name}" for name, value in msgspec.structs.asdict(amount).items() if value) or "nothing"


def costs_in(path: Path) -> Costs:
    """Return the costs that a file of JSON states; those it does not name have their defaults. Raises InputError."""
    return read_json(path, Costs)


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


def _doubled(text: bytes) -> list[str]:
    """Return the keys that stand in an object of this JSON more than once: of two values only one could be read."""
    found: list[str] = []

    def seen(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(name for name, _ in pairs)
        found.extend(repr(name) for name, count in counts.items() if count > 1)
        return dict(pairs)

    json.loads(text, object_pairs_hook=seen)
    return found


def read_json(path: Path, kind: type[T]) -> T:
    """Return what a file of JSON says, each thing once. Raises InputError."""
    fields = ", ".join(kind.__struct_fields__)  # type: ignore[attr-defined]
    try:
        text = path.read_bytes()
        found = msgspec.json.decode(text, type=kind)
        if doubled := _doubled(text):
            raise InputError(f"{path} says {', '.join(doubled)} more than once; accepted is each once")
        return found
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; accepted is a JSON object with {fields}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is refused: {error}; accepted is a JSON object with {fields}") from error
