"""What each tenant uses: the room that its sandboxes hold, and how many of its jobs run, wait or are held."""

from __future__ import annotations

from collections import defaultdict

import msgspec
from tidegate_events.resources import Resources

from tidegate_gateway.view.model import ENDED_STATES, WAITING_STATES, Queue
from tidegate_gateway.view.projection import View


class Usage(msgspec.Struct):
    """Of one tenant. `held` counts those that wait and are held; they are not in `waiting`."""

    amount: Resources = Resources()
    running: int = 0
    waiting: int = 0
    held: int = 0


def of_tenants(view: View) -> dict[str, Usage]:
    """Return the usage of every tenant that has jobs or still holds room."""
    found: dict[str, Usage] = defaultdict(Usage)
    for (tenant, state), count in view.census.states.items():
        if state in ENDED_STATES:
            continue
        usage = found[tenant]
        if state in WAITING_STATES:
            usage.waiting += count
        else:
            usage.running += count
    for tenant, usage in found.items():
        usage.held = view.census.held[tenant]
        usage.waiting -= usage.held
    for node in view.nodes.values():
        for hold in node.holds.values():
            if hold.tenant and hold.sandbox != "lost":
                found[hold.tenant].amount = found[hold.tenant].amount.plus(hold.amount)
    return dict(found)


def of_tenant(view: View, tenant: str) -> Usage:
    """Return the usage of one tenant."""
    return of_tenants(view).get(tenant, Usage())


def with_queues(view: View) -> list[tuple[Queue, Usage]]:
    """Return every tenant's queue and usage, by name: those that were set, and those of whoever has jobs."""
    used = of_tenants(view)
    names = sorted({*view.queues, *used})
    return [(view.queues.get(name, Queue(name)), used.get(name, Usage())) for name in names]
