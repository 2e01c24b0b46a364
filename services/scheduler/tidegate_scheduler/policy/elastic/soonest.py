"""Where a blocked gang fits first, of all nodes that suit it: when that is, and the few rows that hold it then."""

from __future__ import annotations

import msgspec
import numpy as np

from tidegate_scheduler.policy.elastic.domains import Domains, domains_of
from tidegate_scheduler.policy.elastic.emptiest import emptiest
from tidegate_scheduler.policy.elastic.holders import NEVER, Holders, Steps
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, SHARE, Flags, Ints


class Candidates(msgspec.Struct, frozen=True):
    """Rows that are looked at for a gang, and a moment before which it fits on none of all; None: none is known."""

    rows: list[int]
    not_before_ns: int | None = None


class _Gains(msgspec.Struct, frozen=True):
    """By how many members more each of the rows holds, from when on; a row may be named more than once."""

    rows: Ints
    members: Ints
    at_ns: Ints


def soonest(holders: Holders, now_ns: int, fit: Fit, suits: Flags, most: int) -> Candidates | None:
    """Return up to `most` rows on which the gang fits first of all that suit it, and when; None where it never does.

    That is moment 0 where it fits before anybody leaves. Of several domains that hold it then, it is the one where
    least is left over; of the rows there, the emptiest. `most` is at least the size of the gang.
    """
    domains = domains_of(fit.shape, fit.table, np.arange(len(suits)))
    steps, size, at_ns = holders.steps, fit.shape.gang_size, None
    # Most fit when a few have left: then those who leave later are not looked at.
    for until_ns in (steps.early_ns, NEVER) if steps.early_ns < NEVER else (NEVER,):
        gains = _gains(holders, until_ns, fit, suits)
        if (at_ns := _first(gains, domains, size)) is not None:
            break
    if at_ns is None:
        return None
    by_then, holds = gains.at_ns <= at_ns, np.zeros(len(suits), np.int64)
    np.add.at(holds, gains.rows[by_then], gains.members[by_then])
    inside = domains.numbers == _tightest(domains, holds, fit)
    rows = emptiest(fit.table, np.flatnonzero(inside & (holds > 0)), most).tolist()
    return Candidates(rows, max(at_ns, now_ns) if at_ns else 0)


def _gains(holders: Holders, until_ns: int, fit: Fit, suits: Flags) -> _Gains:
    """Return how what each row holds grows, as those who end until then leave one after the other."""
    count, parts, steps = len(suits), bool(fit.shape.need.gpu_millis), holders.steps
    before = fit.table.later[: SHARE + parts, :count].copy()
    before[: GPUS + 1] -= holders.still[:, :count]
    if parts:
        before[SHARE] = holders.shares[:count]
    at_first = np.where(suits, fit.members_in(before, which="counted"), 0)
    each = _with_most(steps, until_ns, fit, before, suits)
    rows = steps.rows[each]
    there = before[:, rows]
    there[: GPUS + 1] += steps.gained[:, each]
    if parts:
        there[SHARE] = steps.shares[each]
    members = fit.members_in(there, rows, "counted")
    earlier = np.zeros_like(members)
    follow = np.flatnonzero(each[1:] == each[:-1] + 1) + 1
    earlier[follow] = members[follow - 1]
    begins = steps.is_first[each]
    earlier[begins] = at_first[rows[begins]]
    more = np.flatnonzero(members != earlier)
    able = np.flatnonzero(at_first)
    return _Gains(
        np.concatenate([able, rows[more]]),
        np.concatenate([at_first[able], (members - earlier)[more]]),
        np.concatenate([np.zeros_like(able), steps.ends_ns[each[more]]]),
    )


def _with_most(steps: Steps, until_ns: int, fit: Fit, before: Ints, suits: Flags) -> Ints:
    """Return which steps until then leave enough for a member on a row that suits it, of what is scarce as a rule."""
    need = fit.shape.need
    amount, least = (GPUS, need.gpus) if need.gpus else (CPU, need.cpu_millis)
    each = np.flatnonzero(steps.ends_ns <= until_ns)
    if least:
        each = each[before[amount][steps.rows[each]] + steps.gained[amount, each] >= least]
    found: Ints = each[suits[steps.rows[each]]]
    return found


def _first(gains: _Gains, domains: Domains, size: int) -> int | None:
    """Return the first moment at which one domain holds so many: found by halving, with ever fewer gains to add up."""
    numbers, members, at_ns = domains.numbers[gains.rows], gains.members, gains.at_ns
    held, moments = np.zeros(len(domains.names), np.int64), np.unique(at_ns)
    low, high = 0, len(moments)
    while low < high:
        middle = (low + high) // 2
        inside = at_ns <= moments[middle]
        then = held.copy()
        np.add.at(then, numbers[inside], members[inside])
        if int(then.max(initial=0)) >= size:
            high = middle
        else:
            low, held, inside = middle + 1, then, ~inside
        numbers, members, at_ns = numbers[inside], members[inside], at_ns[inside]
    return int(moments[low]) if low < len(moments) else None


def _tightest(domains: Domains, holds: Ints, fit: Fit) -> int:
    """Return which domain holds the gang then: on one node where that may be, and with least left over."""
    sums, size = domains.sums(holds), fit.shape.gang_size
    able = np.flatnonzero(sums >= size).tolist()
    if len(able) == 1:
        return int(able[0])
    whole = np.zeros(len(sums), np.bool_)
    if fit.shape.intensive:
        whole[domains.numbers[holds >= size]] = True
    return int(min(able, key=lambda number: (not whole[number], int(sums[number]), domains.names[number])))
