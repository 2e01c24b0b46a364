"""Who may enter the phase that it asks for: owners when what they lent is back, borrowers when there is something.

What a phase needs within the member's floor is its own: if others have it, it is recalled. What it needs beyond that is
borrowed (`borrow.py`).
"""

from __future__ import annotations

import msgspec

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.borrow import Borrowing
from tidegate_scheduler.policy.elastic.claims import Claim, claim_of, lacks_devices
from tidegate_scheduler.policy.elastic.coming import coming_on, starts_on
from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.elastic.grants import Ask, Grants, Key, Ledger
from tidegate_scheduler.policy.elastic.parts import Part, device_of
from tidegate_scheduler.policy.elastic.physical import asking_on, need_of
from tidegate_scheduler.policy.elastic.recall import Recalls, Wanted
from tidegate_scheduler.policy.elastic.short import NOTHING, Short
from tidegate_scheduler.policy.elastic.terms import Terms, as_they_are, devices_of, settled, wanted_need, wish
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.state import LEAVING_STAGES, Member


class Lending:
    """The stage in one pass. `terms` are those of every member that asks, on the rows that were looked at."""

    def __init__(self, draft: Draft, trial: Trial, placed: int) -> None:
        self.restless: dict[int, None] = {}
        """The rows on which somebody waits: they are looked at in each pass, for others may be there on other rows."""

        self._draft = draft
        self._trial = trial
        self._index = trial.index
        self._recalls = Recalls(draft, trial)
        self._grants = Grants(trial.index, draft.now_ns, placed)

    @property
    def terms(self) -> dict[Key, Terms]:
        """Return the terms of every member that asks, on the rows that were looked at."""
        return self._grants.terms

    @property
    def granted(self) -> dict[str, list[Key]]:
        """Return who is granted a phase in this pass, by job."""
        return self._grants.by_job

    def unused_mib(self, row: int, unused_mib: int) -> int:
        """Return what is left of the memory of a row for more simulators, after what was granted."""
        return self._grants.unused_mib(row, unused_mib)

    def run(self, rows: list[int]) -> Lending:
        """Decide for the members on the rows (others are not considered), in the order of the rows."""
        borrowing: dict[str, list[Ask]] = {}
        there = self._index.asking.on_row
        for row in rows if there else ():
            if row in there:
                for ask in self._on_row(row):
                    borrowing.setdefault(ask.job.id, []).append(ask)
        borrowers = Borrowing(self._draft, self._trial, self._grants)
        for asks in sorted(borrowing.values(), key=_turn):
            borrowers.borrow(asks)
        return self

    def _on_row(self, row: int) -> list[Ask]:
        """Settle the members of a row, grant or recall what is their own; return who asks for more than that."""
        state, asks = self._draft.state, list[Ask]()
        for job, member in asking_on(self._index, row):
            spec, floor = state.specs[job.id], state.floors[job.id]
            if job.stage in LEAVING_STAGES or job.id in self._draft.leaving:
                self.terms[job.id, member.rank] = as_they_are(spec, member)
                continue
            terms = self.terms[job.id, member.rank] = settled(spec, floor, member)
            if terms.extra != member.extra:
                self._grants.coming_free.add(row)
            if phase := wish(spec, floor, member):
                self.restless[row] = None
                asks.append(Ask(job, member, phase, row))
        ledger = self._grants.ledger(row)
        claims = {ask.key: claim_of(self._index, ask.job, ask.member) for ask in asks}
        for claim in sorted((each for each in claims.values() if each is not None), key=lambda claim: claim.turn):
            self._return_own(claim, row, ledger)
        self._return_to_those_who_come(row, ledger)
        return [ask for ask in asks if claims[ask.key] is None]

    def _return_own(self, claim: Claim, row: int, ledger: Ledger) -> None:
        """Grant a phase that needs no more than the floor, or recall what is in the way of this and earlier ones."""
        job, member, more_mib, missing = claim.job, claim.member, claim.more_mib, claim.missing
        ask = Ask(job, member, claim.phase, row)
        spec, floor = self._draft.state.specs[job.id], self._draft.state.floors[job.id]
        terms = settled(spec, floor, msgspec.structs.replace(member, granted=ask.phase))
        need = wanted_need(spec, floor, member, ask.phase)
        here = tuple(each for each in member.lent_gpus if ledger.lends_whole(each))[:missing]
        share = tuple((each, claim.missing_millis) for each in device_of(member) if claim.missing_millis)
        short_mib = more_mib + ledger.claimed_mib - max(0, ledger.spare_mib) if more_mib else 0
        short = self._short_share(row, ledger, share) if share else self._short_whole(member, ledger, here, missing)
        if short_mib > 0 or short.count or (ledger.leftovers and (more_mib or missing or share)):
            ledger.closed = True
            ledger.claimed_mib += more_mib
            for device, millis in share:
                ledger.claimed[device] = ledger.claimed.get(device, 0) + millis
            self._recalls.recall(ask.row, job.id, Wanted(short_mib, short.parts, short.count))
            return
        if terms.extra != member.extra:
            self._grants.coming_free.add(row)
        ledger.spare_mib -= more_mib
        ledger.spare_millis -= need.cpu_millis - need_of(spec, member.phase, member.granted).cpu_millis
        ledger.give((*((each, WHOLE_MILLIS) for each in here), *share))
        indices = _devices(member, terms, here) if need.gpus else device_of(member) if share else terms.gpu_indices
        lent_millis = terms.lent_millis - claim.missing_millis
        terms = msgspec.structs.replace(terms, limits=need.limits, gpu_indices=indices, lent_millis=lent_millis)
        self._grants.grant(ask, terms)

    def _short_whole(self, member: Member, ledger: Ledger, here: tuple[int, ...], missing: int) -> Short:
        """Return what is leased of the devices that the member lent and needs, beside those that are here."""
        away = {each: WHOLE_MILLIS - ledger.lent.get(each, 0) for each in member.lent_gpus if each not in here}
        return Short(away, missing - len(here)) if missing > len(here) else NOTHING

    def _short_share(self, row: int, ledger: Ledger, share: tuple[Part, ...]) -> Short:
        """Return what is short of the share that the member lent, beside what others wait for."""
        devices = self._index.table.devices[row]
        short = {
            device: millis + ledger.claimed.get(device, 0) - max(0, ledger.spare_of(devices, device))
            for device, millis in share
        }
        return Short(short, 1) if any(millis > 0 for millis in short.values()) else NOTHING

    def _return_to_those_who_come(self, row: int, ledger: Ledger) -> None:
        """Recall what jobs need that would be placed here but for that, and what is more than the node has."""
        trial, index, coming = self._trial, self._index, dict[int, int]()
        for name in trial.awaited_by.get(row, ()):
            ledger.closed = True
            job, count = index.state.jobs[name], trial.promises.get(name, ()).count(row)
            need, short = index.state.floors[name], lacks_devices(index, row, job, count, coming)
            ledger.claimed_mib += need.memory_mib * count
            for device, millis in short.takes.items():
                coming[device] = coming.get(device, 0) + millis
            gpus = short.count + ledger.claimed_gpus if short.count else 0
            ledger.claimed_gpus += need.gpus * count
            self._recalls.recall(row, name, Wanted(ledger.claimed_mib - ledger.spare_mib, short.parts, gpus))
        if starts_on(trial, row):
            self.restless[row] = None  # what is told of a start changes nothing on the row
        for each in coming_on(trial, row):
            if self._draft.now_ns < each.due_ns:
                self._draft.wake_by(each.due_ns)
            elif each.lacks:
                self._recalls.recall(row, each.job, Wanted(each.short_mib, each.short.parts, each.short.count))
        if ledger.spare_mib < 0:
            ledger.closed = True
            self._recalls.recall(row, "", Wanted(-ledger.spare_mib))


def _devices(member: Member, terms: Terms, here: tuple[int, ...]) -> tuple[int, ...]:
    """Return the devices of a member that has back what is here of those it lent."""
    floor = devices_of(member).floor
    return floor + here + tuple(each for each in terms.gpu_indices if each not in floor)


def _turn(asks: list[Ask]) -> tuple[int, int, str]:
    job = asks[0].job
    return min(ask.member.wanted_ns for ask in asks), job.submitted_seq, job.id
