"""A tenant's queue: its weight, what it is guaranteed, its ceiling, and whether anything of it is placed at all."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from tidegate_events import events as e
from tidegate_events.resources import Resources

from tidegate_gateway.acts.base import Asked, CannotError, EventMaker, UnknownError, WrongError
from tidegate_gateway.submission.problems import child, listed_names
from tidegate_gateway.view.model import Queue
from tidegate_gateway.view.projection import View

QUEUES_MAX = 10_000
SETTINGS = ("weight", "guaranteed", "ceiling", "stopped")
AMOUNTS = ("cpu_millis", "memory_mib", "gpus")
"""Of what a queue has a guarantee and a ceiling."""


def create(view: View, tenant: str, given: dict[str, Any], asked: Asked) -> EventMaker | None:
    """Give a tenant's queue its settings. `given` are some of SETTINGS."""
    wished = _with(Queue(tenant), given)
    if (known := view.queues.get(tenant)) is not None:
        if _settings(known) == _settings(wished):
            return None
        problem = f"the queue {tenant} has other settings already"
        raise CannotError("queue_exists", problem, "set, which changes what is given", tenant=tenant)
    if len(view.queues) >= QUEUES_MAX:
        raise CannotError("too_many", f"there are {QUEUES_MAX} queues", "one of those that are there")
    return _made(wished, asked)


def change(view: View, tenant: str, given: dict[str, Any], asked: Asked) -> EventMaker | None:
    """Change the given settings of a queue; the others stay."""
    known = known_queue(view, tenant)
    wished = _with(known, given)
    return None if _settings(known) == _settings(wished) else _made(wished, asked)


def known_queue(view: View, tenant: str) -> Queue:
    """Return the queue of a tenant; one that was never set but has jobs is at its defaults. Raises UnknownError."""
    if (known := view.queues.get(tenant)) is not None:
        return known
    if tenant in (owners := view.census.tenants()):
        return Queue(tenant)
    names = {*view.queues, *owners}
    create_it = "create, for a tenant that has neither a queue nor a job yet"
    raise UnknownError("queue", tenant, f"one of {listed_names(names)}; or {create_it}" if names else create_it)


def _with(queue: Queue, given: dict[str, Any]) -> Queue:
    """Return the queue with other settings. Raises WrongError where they contradict each other."""
    wished = msgspec.structs.replace(queue, **given)
    low, high = wished.guaranteed, wished.ceiling
    for name in AMOUNTS if low is not None and high is not None else ():
        least, most = getattr(low, name), getattr(high, name)
        if 0 < most < least:  # an amount that a ceiling does not name is not bounded
            path = child("guaranteed" if "guaranteed" in given else "ceiling", name)
            problem = f"{least} are guaranteed, and the ceiling is {most}"
            raise WrongError(path, problem, "a guarantee that is at most the ceiling")
    return wished


def _settings(queue: Queue) -> tuple[int, Resources | None, Resources | None, bool]:
    return queue.weight, queue.guaranteed, queue.ceiling, queue.stopped


def _made(queue: Queue, asked: Asked) -> EventMaker:
    return partial(
        e.QueueChanged,
        tenant=queue.tenant,
        weight=queue.weight,
        guaranteed=queue.guaranteed,
        ceiling=queue.ceiling,
        stopped=queue.stopped,
        actor=asked.actor,
        note=asked.note,
    )
