"""The accounts of tenants, and the whole of which they have their shares."""

from __future__ import annotations

from tidegate_scheduler.policy.elastic.queue import NONE, Amounts, Share, amounts, plus
from tidegate_scheduler.state import Node, Queue


class Accounts:
    """What each tenant holds and is entitled to, and what the nodes have that are not lost."""

    def __init__(self) -> None:
        self.shares: dict[str, Share] = {}
        self.total: Amounts = NONE
        self._counted: dict[str, Amounts] = {}

    def count(self, node: Node) -> None:
        """Count what the node adds to the whole, of which tenants have their shares."""
        self.total = plus(self.total, self._counted.pop(node.name, NONE), -1)
        if node.status != "lost":
            capacity = node.capacity
            counted = (capacity.cpu_millis, capacity.memory_mib, len(node.gpus) * 1000)
            self._counted[node.name] = counted
            self.total = plus(self.total, counted)

    def share(self, tenant: str) -> Share:
        """Return the tenant's account."""
        found = self.shares.get(tenant)
        if found is None:
            found = self.shares[tenant] = Share()
        return found

    def set_queue(self, tenant: str, queue: Queue | None) -> None:
        """Take in what an operator set of the tenant's queue, None: nothing any more."""
        share = self.share(tenant)
        if queue is None:
            self.shares[tenant] = Share(used=share.used, leaving=share.leaving)
            return
        share.weight = queue.weight
        share.guaranteed = amounts(queue.guaranteed) if queue.guaranteed is not None else None
        share.ceiling = amounts(queue.ceiling) if queue.ceiling is not None else None
        share.stopped = queue.stopped
