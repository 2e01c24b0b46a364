"""What is granted beyond floors: from what nobody holds, else leased from what others lend.

All that a phase needs or nothing, for all members of a gang or for none, and in the order in which they asked. Where
somebody waits for what is leased, nothing more is leased.
"""

from __future__ import annotations

import msgspec
from tidegate_events.resources import Resources

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.coming import returns_within_ns, starts_on
from tidegate_scheduler.policy.elastic.devices import members_of
from tidegate_scheduler.policy.elastic.grants import Ask, Grants, Ledger
from tidegate_scheduler.policy.elastic.parts import Part
from tidegate_scheduler.policy.elastic.physical import Need, asking_on, has_mib, need_of
from tidegate_scheduler.policy.elastic.picking import Offer, Picked, Pool, devices, pick
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, MEMORY
from tidegate_scheduler.policy.elastic.terms import Terms, added, devices_of, wanted_need
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job, Member

PASSED_NS = 300 * SECOND_NS
"""How long others, who need less, may be granted phases before one that asked earlier."""

HELD_UP_NS = 600 * SECOND_NS
"""How long they may not then, so that what it waits for gathers; thereafter they may again, lest it idles for ever."""


class Borrowing:
    """The stage in one pass."""

    def __init__(self, draft: Draft, trial: Trial, grants: Grants) -> None:
        self._draft = draft
        self._trial = trial
        self._index = trial.index
        self._grants = grants

    def borrow(self, asks: list[Ask]) -> None:
        """Grant what is asked beyond floors to all members of the job who ask, or to none."""
        draft, job = self._draft, asks[0].job
        due_ns = max(self._rests_until(ask) for ask in asks)
        if any(each.active and each.hand_back_ns for each in job.members) or not self._all_ask(asks):
            return
        if any(ask.row in self._grants.coming_free for ask in asks):
            return  # now it would be leased, though it is nobody's; this pass decides something, so another one follows
        if any(self._grants.terms[ask.key].differ(ask.member) for ask in asks):
            return  # it gives something back just now, and asks anew when that is folded
        if draft.now_ns < due_ns:
            draft.wake_by(due_ns)
            return
        if not draft.has_room_for(self._grants.decided + 1):
            return
        mark = self._trial.mark
        found = self._all_leased(asks)
        if found is not None and self._trial.mark > mark and not self._within_ceiling(job):
            found = None
        if found is None:
            self._trial.back_to(mark)
            self._stand(asks)
            return
        for ask, (terms, ledger) in zip(asks, found, strict=True):
            self._grants.enter(ask.row, ledger)
            self._grants.grant(ask, terms)

    def _rests_until(self, ask: Ask) -> int:
        """Return until when the member is granted nothing beyond its floor: it was just now, or resumed just now."""
        parameters, job = self._draft.parameters, ask.job
        leased_ns = ask.member.leased_ns
        until_ns = leased_ns + parameters.lend_interval_seconds * SECOND_NS if leased_ns else 0
        if job.preemptions:
            resumed_ns = job.started_ns or job.placed_ns
            until_ns = max(until_ns, resumed_ns + parameters.preemption_cooldown_seconds * SECOND_NS)
        return until_ns

    def _all_ask(self, asks: list[Ask]) -> bool:
        """Say whether every member of the job asks, or has more than its floor: none shall have that and wait."""
        waiting = {ask.member.rank for ask in asks}
        others = [each for each in asks[0].job.members if each.active and each.rank not in waiting]
        return all(each.leased is not None or each.extra is not None for each in others)

    def _within_ceiling(self, job: Job) -> bool:
        """Say whether the job's tenant may hold what was tried; the trial has counted it."""
        share = self._index.share(job.tenant)
        return share.ceiling is None or all(
            not most or used <= most for used, most in zip(share.used, share.ceiling, strict=True)
        )

    # ---- what there is ----

    def _all_leased(self, asks: list[Ask]) -> list[tuple[Terms, Ledger]] | None:
        """Return the terms for all of them, and what is left of their rows then; None where one finds too little."""
        ledgers = {ask.row: self._grants.ledger(ask.row).copied() for ask in asks}
        found: list[tuple[Terms, Ledger]] = []
        for ask in asks:
            terms = None if ledgers[ask.row].closed else self._leased(ask, ledgers[ask.row])
            if terms is None or (terms.leased != ask.member.leased and self._comes_too_soon(ask)):
                return None
            found.append((terms, ledgers[ask.row]))
        return found

    def _comes_too_soon(self, ask: Ask) -> bool:
        """Say whether somebody comes to the row, by what was told, before a lease could be back that is given now."""
        back_ns = self._draft.now_ns + returns_within_ns(self._index, ask.job)
        return any(0 < start_ns < back_ns for start_ns in starts_on(self._trial, ask.row).values())

    def _leased(self, ask: Ask, ledger: Ledger) -> Terms | None:
        """Return the terms on which a member may enter its phase, taken from the ledger; None: there is too little."""
        job, member, state, table = ask.job, ask.member, self._draft.state, self._index.table
        spec, floor, terms = state.specs[job.id], state.floors[job.id], self._grants.terms[ask.key]
        need = wanted_need(spec, floor, member, ask.phase)
        beyond, has = need.beyond(floor), Resources()
        for part in (terms.extra, terms.leased):
            has = has if part is None else has.plus(part)
        now, free = table.now_on(ask.row), table.free_on(ask.row)
        millis, mib = max(0, beyond.cpu_millis - has.cpu_millis), max(0, beyond.memory_mib - has.memory_mib)
        own_millis, own_mib = min(millis, max(0, now[CPU])), min(mib, max(0, now[MEMORY]))
        more_mib = self._grants.more_mib(ask)
        if (
            more_mib > ledger.spare_mib - self._grants.kept_mib(ask.row)
            or millis > ledger.spare_millis
            or millis - own_millis > max(0, ledger.spare_millis - free[CPU])
        ):
            return None
        picked = pick(floor, member, need, self._offer(ask, need, ledger))
        if picked is None:
            return None
        ledger.spare_mib -= more_mib
        ledger.spare_millis -= millis
        ledger.give(picked.back + picked.leased)
        own = _amount(Resources(own_millis, own_mib), picked.own, need)
        if own != Resources():
            self._trial.hold(job, ask.row, own, devices(picked.own))
        leased = _amount(Resources(millis - own_millis, mib - own_mib), picked.leased, need)
        return Terms(
            granted=ask.phase,
            limits=need.limits,
            gpu_indices=_together(member, picked, need),
            leased=added(terms.leased, leased),
            extra=added(terms.extra, own),
            lent_millis=terms.lent_millis - sum(back for _, back in picked.back if need.gpu_millis),
        )

    def _offer(self, ask: Ask, need: Need, ledger: Ledger) -> Offer:
        table, spec = self._index.table, self._draft.state.specs[ask.job.id]
        there, models, gpus = table.devices[ask.row], spec.gpu_models, table.now_on(ask.row)[GPUS]
        if ask.row in table.mixed:
            one = Resources(gpus=1, gpu_memory_mib=need.gpu_memory_mib)
            gpus = members_of(there, one, models, gpus, "now")
        return Offer(there, ledger, gpus, models)

    # ---- where there is not enough ----

    def _stand(self, asks: list[Ask]) -> None:
        """Let simulators make room that was only theirs, and nobody pass by who has waited for long.

        Who could have its phase if only all borrowers gave back what they have keeps the others from having more.
        """
        for ask in asks:
            if self._only_simulators(ask, self._grants.ledger(ask.row)):
                self._trial.awaited_mib.setdefault(ask.row, self._grants.more_mib(ask))
        now_ns, wanted_ns = self._draft.now_ns, min(ask.member.wanted_ns for ask in asks)
        begun_ns = max(0, now_ns - wanted_ns) // (PASSED_NS + HELD_UP_NS) * (PASSED_NS + HELD_UP_NS) + wanted_ns
        if now_ns < begun_ns + PASSED_NS:
            self._draft.wake_by(begun_ns + PASSED_NS)
            return
        self._draft.wake_by(begun_ns + PASSED_NS + HELD_UP_NS)
        for row in sorted({ask.row for ask in asks}):
            if not self._could([ask for ask in asks if ask.row == row], row):
                return
        for ask in asks:
            self._grants.ledger(ask.row).closed = True

    def _could(self, asks: list[Ask], row: int) -> bool:
        """Say whether the row has enough for them, were all handed back that was granted beyond floors there."""
        index, state, back_mib = self._index, self._draft.state, 0
        there = [member for _, member in asking_on(index, row)]
        for job, member in asking_on(index, row):
            back_mib += max(0, has_mib(state.specs[job.id], member) - state.floors[job.id].memory_mib)
        pool = Pool(index.table.devices[row], there)
        for ask in asks:
            spec = state.specs[ask.job.id]
            if not pool.take(state.floors[ask.job.id], ask.member, need_of(spec, ask.phase), spec.gpu_models):
                return False
        return sum(self._grants.more_mib(ask) for ask in asks) <= self._grants.ledger(row).spare_mib + back_mib

    def _only_simulators(self, ask: Ask, ledger: Ledger) -> bool:
        """Say whether nothing but simulators that were added has what the member waits for."""
        spec, floor = self._draft.state.specs[ask.job.id], self._draft.state.floors[ask.job.id]
        need = wanted_need(spec, floor, ask.member, ask.phase)
        spare_mib = ledger.spare_mib - self._grants.kept_mib(ask.row)
        if ledger.closed or not spare_mib < self._grants.more_mib(ask) <= spare_mib + ledger.simulators_mib:
            return False
        return pick(floor, ask.member, need, self._offer(ask, need, ledger)) is not None


def _amount(amount: Resources, parts: tuple[Part, ...], need: Need) -> Resources:
    """Return the amount with these parts of devices: whole ones, or a share of one."""
    if need.gpu_millis:
        return msgspec.structs.replace(amount, gpu_millis=sum(millis for _, millis in parts))
    return msgspec.structs.replace(amount, gpus=len(parts))


def _together(member: Member, picked: Picked, need: Need) -> tuple[int, ...]:
    """Return the devices that the member has then: those of its floor, then other own, then leased."""
    back, own, leased = devices(picked.back), devices(picked.own), devices(picked.leased)
    if need.gpu_millis:
        return (*member.gpu_indices, *back, *own, *leased)[:1]
    there = devices_of(member)
    return there.floor + back + there.extra + own + there.leased + leased
