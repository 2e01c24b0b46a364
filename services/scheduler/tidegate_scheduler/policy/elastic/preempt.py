"""Who has to leave so that a blocked job fits: the domain first, then the cheapest victims inside it.

Nobody is asked to leave unless the job then fits, who is leaving already counts once, and every victim that turns out
not to be needed stays. Shrinking comes before: a member holds no more than its floor here, and what it was lent above
that is taken back by the sharing of CPU without anybody leaving.
"""

from __future__ import annotations

from itertools import groupby

import msgspec
import numpy as np

from tidegate_scheduler.policy.elastic.departed import Cleared, Departed
from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.elastic.domains import bounded, domains_of
from tidegate_scheduler.policy.elastic.emptiest import emptiest
from tidegate_scheduler.policy.elastic.fit import Rows, could_hold_by, rows_in
from tidegate_scheduler.policy.elastic.held import count_parts
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.queue import Line
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, Ints
from tidegate_scheduler.policy.elastic.victims import VICTIMS_MAX, Cost, Together, Victims
from tidegate_scheduler.state import Job

OFFERS_MAX = 32
LOOKED_AT_MAX = 256
"""Nodes that are compared in one plan, and that are looked at for them, beyond one for each member of the gang; a job
that finds none there waits."""

CHOICES_MAX = 4
"""Ways of one plan that are worked out, the cheapest first."""


class Plan(msgspec.Struct, frozen=True):
    """The rows of the room to promise, one for each member, and who must leave for it, cheapest first."""

    rows: Rows
    victims: tuple[str, ...]
    candidates: int


class _Offer(msgspec.Struct, frozen=True):
    """A node from which `victims` would have to leave to hold so many members."""

    row: int
    members: int
    victims: tuple[Job, ...]
    costs: tuple[Cost, ...]


def plan_preemption(index: Index, line: Line, job: Job, victims: Victims, ways: list[list[int]]) -> Plan | None:
    """Return who has to leave so that the job fits, None where that is not found; `ways` is what is `promising`."""
    for rows in ways:
        offers = _offers(index, line.fit, rows, job, victims)
        for chosen in _choices(index, line.fit, offers, job, victims)[:CHOICES_MAX]:
            plan = _plan_of(index, line.fit, chosen, victims)
            if plan is not None:
                return plan  # nobody has to leave where others lose what is kept for them
    return None


def _plan_of(index: Index, fit: Fit, chosen: list[_Offer], victims: Victims) -> Plan | None:
    """Return the plan that takes these offers, without those who need not leave; None where the job would not fit."""
    candidates = {victim.id: victim for offer in chosen for victim in offer.victims}
    among = {offer.row for offer in chosen}
    needed = sorted(candidates.values(), key=victims.cost)
    with Departed(index, needed) as gone:
        seats = rows_in(fit, gone.room, among=among, which="later")
        if seats is None:
            return None
        for victim in reversed(list(needed)):
            if len(needed) == 1:
                break
            gone.stay(victim)
            beside = rows_in(fit, gone.room, among=among, which="later")
            if beside is None:
                gone.leave(victim)
            else:
                needed.remove(victim)
                seats = beside
    return Plan(seats, tuple(victim.id for victim in needed), len(candidates))


def _offers(index: Index, fit: Fit, rows: list[int], job: Job, victims: Victims) -> list[_Offer]:
    """Return what each of the rows could hold, and at what cost, of so many that are of use.

    Of a gang that stays within one domain, the offers of a domain that turns out not to hold it count for nothing; nor
    do those of others whose victims may not leave beside those of the offers before.
    """
    most, found = OFFERS_MAX + fit.shape.gang_size, list[_Offer]()
    for domain in _by_their_domains(fit, rows):
        some, counted, together = list[_Offer](), 0, victims.together(job)
        for offer in (_offer(index, fit, row, job, victims) for row in domain):
            if offer is None:
                continue
            some.append(offer)
            if together.add(offer.victims):
                counted += 1
                if counted + len(found) >= most:
                    break
        if not bounded(fit.shape) or sum(offer.members for offer in some) >= fit.shape.gang_size:
            found += some
        if len(found) >= most:
            break
    return found


def _by_their_domains(fit: Fit, rows: list[int]) -> list[list[int]]:
    """Return the rows as they follow each other in one domain; all together where nothing bounds the gang."""
    if not bounded(fit.shape):
        return [rows]
    numbers = domains_of(fit.shape, fit.table, np.array(rows, np.int64)).numbers.tolist()
    of_row = dict(zip(rows, numbers, strict=True))
    return [list(some) for _, some in groupby(rows, key=of_row.__getitem__)]


def promising(index: Index, fit: Fit, job: Job, victims: Victims, barred: frozenset[int]) -> list[list[int]]:
    """Return the rows that could hold members if everybody left who ever might, those that need least to leave first.

    First those that could hold the whole gang, then all that could hold a member: whoever is protected is counted in,
    so the first may all turn out not to. Nothing: whoever leaves, the job would not fit, nor any that needs more.
    """
    table, size = index.table, fit.shape.gang_size
    room = table.later[:, : len(table)].copy()
    reclaims = index.share(job.tenant).guaranteed is not None
    victims.lower.add_to(room, None if reclaims else victims.below(job))
    count_parts(room, table.later)
    holds = fit.members(room, which="any")
    if barred:
        holds[list(barred)] = 0
    if not could_hold_by(fit, holds):
        return []
    most, ways = LOOKED_AT_MAX + size, list[list[int]]()
    whole = np.flatnonzero(holds >= size)
    if len(whole):
        ways.append(emptiest(table, whole, most).tolist())
    if size > 1:
        able = np.flatnonzero(holds >= 1)
        ways.append(_by_domain(fit, able, holds)[:most] if bounded(fit.shape) else emptiest(table, able, most).tolist())
    return ways


def _by_domain(fit: Fit, able: Ints, holds: Ints) -> list[int]:
    """Return the rows of the domains that could hold the gang, one domain after the other, the emptiest first."""
    table, later = fit.table, fit.table.later
    domains = domains_of(fit.shape, table, able)
    large = np.flatnonzero(domains.sums(holds[able]) >= fit.shape.gang_size).tolist()
    gpus, cpu = domains.sums(np.maximum(later[GPUS, able], 0)), domains.sums(np.maximum(later[CPU, able], 0))
    large.sort(key=lambda number: (-int(gpus[number]), -int(cpu[number]), domains.names[number]))
    rank = np.full(len(domains.names), len(large), np.int64)
    rank[large] = np.arange(len(large))
    ranks = rank[domains.numbers]
    order = np.lexsort((table.place[able], -later[CPU, able], -later[GPUS, able], ranks))
    return [int(able[position]) for position in order if ranks[position] < len(large)]


def _offer(index: Index, fit: Fit, row: int, for_job: Job, victims: Victims) -> _Offer | None:
    """Return the cheapest way in which the node holds as many members as it can; None where it holds none."""
    there, later = victims.on_row(row, for_job), index.table.later_on(row)
    most = [have + freed for have, freed in zip(later, there.most, strict=False)] if there.jobs else later
    if not fit.holds_one(most):
        return None
    able = list(there.jobs)
    with Cleared(index, fit, row) as cleared:
        taken = _clear(cleared, fit, able, victims.together(for_job))
        if cleared.members < fit.shape.gang_size and len(able) > VICTIMS_MAX:  # of those who hold most, fewer may do
            members, floors = cleared.members, index.state.floors
            cleared.all_stay()
            able.sort(key=lambda job: (-floors[job.id].gpus, -floors[job.id].cpu_millis, victims.cost(job)))
            larger = _clear(cleared, fit, able, victims.together(for_job))
            if cleared.members > members:
                taken = larger
            else:
                cleared.all_stay()
                for victim in taken:
                    cleared.leave(victim)
        members = cleared.members
        if members == 0:
            return None
        for victim in sorted(taken, key=victims.cost, reverse=True):
            cleared.stay(victim)
            if cleared.members < members:
                cleared.leave(victim)
            else:
                taken.remove(victim)
    return _Offer(row, members, tuple(taken), tuple(victims.cost(victim) for victim in taken))


def _clear(cleared: Cleared, fit: Fit, able: list[Job], together: Together) -> list[Job]:
    """Let so many of them leave as may and are of use, in this order; return who they are."""
    taken: list[Job] = []
    for candidate in able:
        if cleared.members >= fit.shape.gang_size or len(taken) >= VICTIMS_MAX:
            break
        if together.add((candidate,)):
            taken.append(candidate)
            cleared.leave(candidate)
    return taken


def _choices(index: Index, fit: Fit, offers: list[_Offer], job: Job, victims: Victims) -> list[list[_Offer]]:
    """Return the ways in which offers hold the gang, the cheapest first: one alone, else those of one domain."""
    size = fit.shape.gang_size
    if whole := [[offer] for offer in offers if offer.members >= size]:
        return sorted(whole, key=lambda chosen: _price(index, chosen))
    found, domains = list[list[_Offer]](), dict[int, list[_Offer]]()
    numbers = domains_of(fit.shape, index.table, np.array([offer.row for offer in offers], np.int64)).numbers
    for offer, number in zip(offers, numbers.tolist(), strict=True):
        domains.setdefault(number, []).append(offer)
    for domain in domains.values():
        if (chosen := _together(index, size, domain, job, victims)) is not None:
            found.append(chosen)
    return sorted(found, key=lambda chosen: _price(index, chosen))


def _together(index: Index, size: int, domain: list[_Offer], job: Job, victims: Victims) -> list[_Offer] | None:
    """Return the cheapest offers of a domain that hold the gang, whose victims may all leave; None where none do.

    Where the cheapest take all that their tenant may give, those for which least is given may do.
    """
    floors = index.state.floors

    def given(offer: _Offer) -> tuple[int, int, tuple[int, int, int, str]]:
        needs = [floors[victim.id] for victim in offer.victims]
        gpu_millis = sum(need.gpus * WHOLE_MILLIS + need.gpu_millis for need in needs)
        return gpu_millis, sum(need.cpu_millis for need in needs), _price(index, [offer])

    by_price = sorted(domain, key=lambda each: _price(index, [each]))
    found = _enough(size, by_price, job, victims)
    return found if found is not None else _enough(size, sorted(domain, key=given), job, victims)


def _enough(size: int, offers: list[_Offer], job: Job, victims: Victims) -> list[_Offer] | None:
    """Return the first of the offers that hold the gang, of those whose victims may all leave; None where none do."""
    taken, together, members = list[_Offer](), victims.together(job), 0
    for offer in offers:
        more = sum(victim.id not in together.jobs for victim in offer.victims)
        if len(together.jobs) + more > VICTIMS_MAX + size or not together.add(offer.victims):
            continue  # another one may do instead
        taken.append(offer)
        members += offer.members
        if members >= size:
            return taken
    return None


def _price(index: Index, offers: list[_Offer]) -> tuple[int, int, int, str]:
    """Return what the offers cost: the highest priority that leaves, what is lost, how many leave, and a name."""
    costs = {cost.job: cost for offer in offers for cost in offer.costs}
    highest = max((cost.priority for cost in costs.values()), default=-(1 << 62))
    lost = sum(cost.lost_seconds for cost in costs.values())
    return (highest, lost, len(costs), index.table.names[offers[0].row])
