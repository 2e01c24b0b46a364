"""Shapes that found no room in a pass, and with what rights, so that whoever needs no less is not tried again."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidegate_scheduler.policy.elastic.extents import CPU, GPU_MEMORY, GPUS, MEMBERS, MEMORY, SHARE, Amounts, Kin
from tidegate_scheduler.policy.elastic.shapes import Fit, Shape

NO_LIMIT_SECONDS = 1 << 62


class Right(msgspec.Struct, frozen=True):
    """What lets a job have room that another of its shape may not have.

    Its priority pushes others out, its tenant (named where it was guaranteed something) reclaims what others borrowed,
    and a job that ends soon may borrow what is kept for later. Of those of its own priority, who has more work left may
    leave for it.
    """

    priority: int
    limit_seconds: int = NO_LIMIT_SECONDS
    tenant: str = ""
    work: int = 0

    def covers(self, other: Right) -> bool:
        """Say whether the other one gives nothing beyond this."""
        return (
            self.priority >= other.priority
            and self.limit_seconds <= other.limit_seconds
            and other.tenant in ("", self.tenant)
            and self.work <= other.work
        )


_Tried = tuple[Amounts, Right]
"""What a shape that found no room needs at most, and with what right."""

SMALLER_MAX = 64
"""How many of a kin are compared: where few are larger than others, comparing all would cost more than asking."""


class Nowhere:
    """What was tried in one pass."""

    def __init__(self) -> None:
        self._alike: dict[Shape, dict[str, list[Right]]] = {}
        """By shape, and by the tenant that is named: its own rights, and under no name those of all, without theirs."""

        self._smaller: dict[Kin, tuple[list[_Tried], list[_Tried]]] = {}
        """By kin those who would find none whoever left, and all others."""

    def add(self, fit: Fit, right: Right, *, tried: bool, hopeless: bool) -> None:
        """Remember that a job of this shape found no room with this right.

        `tried`: it was worked out who might leave for it; who only lacked its turn for that says nothing of others of
        its shape, which may have theirs. `hopeless`: it would find none whoever left, and so would who needs more; that
        no plan was found does not mean that, as plans look at some nodes and some ways only.
        """
        if tried:
            by_tenant = self._alike.setdefault(fit.shape, {})
            for each in {right.tenant: right, "": msgspec.structs.replace(right, tenant="")}.values():
                rest = [other for other in by_tenant.get(each.tenant, ()) if not each.covers(other)]
                by_tenant[each.tenant] = [*rest, each]
        of_kin = self._smaller.setdefault(fit.extent.kin, ([], []))
        if len(of_kin[0]) + len(of_kin[1]) < SMALLER_MAX:
            of_kin[0 if hopeless else 1].append((fit.extent.most, right))

    def rules_out(self, shape: Shape, right: Callable[[], Right]) -> bool:
        """Say whether a job of the shape would find no room either; its right is asked for only where that matters."""
        tried = self._alike.get(shape)
        if tried is None:
            return False
        own = right()
        return any(other.covers(own) for other in tried.get(own.tenant, ()))

    def rules_out_larger(self, fit: Fit, right: Callable[[], Right]) -> bool | None:
        """Say whether somebody who needs no more found no room, with no less right; None: nobody did.

        True: whoever left, it would not. False: it might if others left for it.
        """
        of_kin = self._smaller.get(fit.extent.kin)
        if of_kin is None:
            return None
        own = right()
        hopeless, others = of_kin
        if _rule_out(hopeless, fit.extent.held, own):
            return True
        return False if _rule_out(others, fit.extent.held, own) else None


def _rule_out(tried: list[_Tried], held: Amounts, own: Right) -> bool:
    """Say whether one of them needs no more than that, with no less right."""
    cpu, memory, gpus, gpu_memory, share, members = held
    for most, other in tried:  # one after the other in place: all who are blocked are compared
        if (
            most[CPU] <= cpu
            and most[GPUS] <= gpus
            and most[MEMORY] <= memory
            and most[MEMBERS] <= members
            and most[SHARE] <= share
            and most[GPU_MEMORY] <= gpu_memory
            and other.covers(own)
        ):
            return True
    return False
