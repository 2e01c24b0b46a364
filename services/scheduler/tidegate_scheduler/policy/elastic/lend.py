"""Who may enter the phase that it asks for: owners when what they lent is back, borrowers when there is something.

What a phase needs within the member's floor is its own: if others have it, it is recalled. What it needs beyond that is
granted from what nobody holds, else leased from what others lend, for all members of a gang or for none, and in the
order in which they asked. Where somebody waits for what is leased, nothing more is leased.
"""

from __future__ import annotations

import msgspec
from tidegate_events.resources import Resources

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic import replicas
from tidegate_scheduler.policy.elastic.claims import Claim, claim_of, lacks_devices, spare_mib
from tidegate_scheduler.policy.elastic.coming import coming_on, returns_within_ns, starts_on
from tidegate_scheduler.policy.elastic.physical import asking_on, has_mib, need_of
from tidegate_scheduler.policy.elastic.recall import Recalls, Wanted
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, MEMORY, accepts
from tidegate_scheduler.policy.elastic.terms import (
    Terms,
    added,
    as_they_are,
    devices_of,
    settled,
    wanted_need,
    wish,
)
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import LEAVING_STAGES, Job, Member

PASSED_NS = 300 * SECOND_NS
"""How long others, who need less, may be granted phases before one that asked earlier."""

HELD_UP_NS = 600 * SECOND_NS
"""How long they may not then, so that what it waits for gathers; thereafter they may again, lest it idles for ever."""

Key = tuple[str, int]
"""A job and the rank of a member of it."""


class _Ledger(msgspec.Struct):
    """What of a row this pass may still give: memory and CPU that nobody has, and devices that are lent.

    `claimed_mib` and `claimed_gpus` are what those wait for who wait on the row already: all of it is recalled at once.
    `leftovers`: sandboxes that were given up still run there, and nobody knows what they hold: nobody gets more.
    """

    spare_mib: int
    spare_millis: int
    lent: dict[int, None]
    simulators_mib: int
    claimed_mib: int = 0
    claimed_gpus: int = 0
    closed: bool = False
    leftovers: bool = False

    def copied(self) -> _Ledger:
        """Return a copy, to take from."""
        return msgspec.structs.replace(self, lent=dict(self.lent))


class _Ask(msgspec.Struct, frozen=True):
    """A member that waits for a phase."""

    job: Job
    member: Member
    phase: str
    row: int


class Lending:
    """The stage in one pass. `terms` are those of every member that asks, on the rows that were looked at."""

    def __init__(self, draft: Draft, trial: Trial, placed: int) -> None:
        self.terms: dict[Key, Terms] = {}
        self.granted: dict[str, list[Key]] = {}
        """Who is granted a phase in this pass, by job."""

        self.restless: dict[int, None] = {}
        """The rows on which somebody waits: they are looked at in each pass, for others may be there on other rows."""

        self._draft = draft
        self._trial = trial
        self._index = trial.index
        self._recalls = Recalls(draft, trial)
        self._ledgers: dict[int, _Ledger] = {}
        self._coming_free: set[int] = set()
        """The rows on which somebody is left without something that was its own: the next pass finds that free."""

        self._decided = placed

    def run(self, rows: list[int]) -> Lending:
        """Decide for the members on the rows (others are not considered), in the order of the rows."""
        borrowing: dict[str, list[_Ask]] = {}
        there = self._index.asking.on_row
        for row in rows if there else ():
            if row in there:
                for ask in self._on_row(row):
                    borrowing.setdefault(ask.job.id, []).append(ask)
        for asks in sorted(borrowing.values(), key=_turn):
            self._borrow(asks)
        return self

    # ---- what a phase does not need any more, and what is its own ----

    def _on_row(self, row: int) -> list[_Ask]:
        """Settle the members of a row, grant or recall what is their own; return who asks for more than that."""
        state, asks = self._draft.state, list[_Ask]()
        for job, member in asking_on(self._index, row):
            spec, floor = state.specs[job.id], state.floors[job.id]
            if job.stage in LEAVING_STAGES or job.id in self._draft.leaving:
                self.terms[job.id, member.rank] = as_they_are(spec, member)
                continue
            terms = self.terms[job.id, member.rank] = settled(spec, floor, member)
            if terms.extra != member.extra:
                self._coming_free.add(row)
            if phase := wish(spec, member):
                self.restless[row] = None
                asks.append(_Ask(job, member, phase, row))
        ledger = self._ledger(row)
        claims = {(ask.job.id, ask.member.rank): claim_of(self._index, ask.job, ask.member) for ask in asks}
        for claim in sorted((each for each in claims.values() if each is not None), key=lambda claim: claim.turn):
            self._return_own(claim, row, ledger)
        self._return_to_those_who_come(row, ledger)
        return [ask for ask in asks if claims[ask.job.id, ask.member.rank] is None]

    def _return_own(self, claim: Claim, row: int, ledger: _Ledger) -> None:
        """Grant a phase that needs no more than the floor, or recall what is in the way of this and earlier ones."""
        job, member, more_mib, missing = claim.job, claim.member, claim.more_mib, claim.missing
        ask = _Ask(job, member, claim.phase, row)
        spec, floor = self._draft.state.specs[job.id], self._draft.state.floors[job.id]
        terms = settled(spec, floor, msgspec.structs.replace(member, granted=ask.phase))
        need = wanted_need(spec, member, ask.phase)
        devices = devices_of(member)
        here = tuple(each for each in member.lent_gpus if each in ledger.lent)[:missing]
        short_mib = more_mib + ledger.claimed_mib - max(0, ledger.spare_mib) if more_mib else 0
        if short_mib > 0 or len(here) < missing or (ledger.leftovers and (more_mib or missing)):
            ledger.closed = True
            ledger.claimed_mib += more_mib
            wanted = Wanted(short_mib, tuple(set(member.lent_gpus) - set(here)), missing - len(here))
            self._recalls.recall(ask.row, job.id, wanted)
            return
        if terms.extra != member.extra:
            self._coming_free.add(row)
        back, kept = devices.floor + here, tuple(each for each in terms.gpu_indices if each not in devices.floor)
        ledger.spare_mib -= more_mib
        ledger.spare_millis -= need.cpu_millis - need_of(spec, member.phase, member.granted).cpu_millis
        for each in here:
            del ledger.lent[each]
        self._grant(ask, msgspec.structs.replace(terms, limits=need.limits, gpu_indices=back + kept))

    def _return_to_those_who_come(self, row: int, ledger: _Ledger) -> None:
        """Recall what jobs need that would be placed here but for that, and what is more than the node has."""
        trial, index = self._trial, self._index
        for name in trial.awaited_by.get(row, ()):
            ledger.closed = True
            job, count = index.state.jobs[name], trial.promises.get(name, ()).count(row)
            devices = tuple(index.table.devices[row].leased)
            need, lacking = index.state.floors[name], lacks_devices(index, row, job, count)
            ledger.claimed_mib += need.memory_mib * count
            gpus = lacking + ledger.claimed_gpus if lacking else 0
            ledger.claimed_gpus += need.gpus * count
            self._recalls.recall(row, name, Wanted(ledger.claimed_mib - ledger.spare_mib, devices, gpus))
        if starts_on(trial, row):
            self.restless[row] = None  # what is told of a start changes nothing on the row
        for coming in coming_on(trial, row):
            if self._draft.now_ns < coming.due_ns:
                self._draft.wake_by(coming.due_ns)
            elif coming.lacks:
                self._recalls.recall(row, coming.job, Wanted(coming.short_mib, coming.devices, coming.gpus))
        if ledger.spare_mib < 0:
            ledger.closed = True
            self._recalls.recall(row, "", Wanted(-ledger.spare_mib))

    # ---- what others lend ----

    def _borrow(self, asks: list[_Ask]) -> None:
        """Grant what is asked beyond floors to all members of the job who ask, or to none."""
        draft, job = self._draft, asks[0].job
        due_ns = max(self._rests_until(ask) for ask in asks)
        if any(each.active and each.hand_back_ns for each in job.members) or not self._all_ask(asks):
            return
        if any(ask.row in self._coming_free for ask in asks):
            return  # now it would be leased, though it is nobody's; this pass decides something, so another one follows
        if draft.now_ns < due_ns:
            draft.wake_by(due_ns)
            return
        if not draft.has_room_for(self._decided + 1):
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
            self._ledgers[ask.row] = ledger
            self._grant(ask, terms)

    def _rests_until(self, ask: _Ask) -> int:
        """Return until when the member is granted nothing beyond its floor: it was just now, or resumed just now."""
        parameters, job = self._draft.parameters, ask.job
        leased_ns = ask.member.leased_ns
        until_ns = leased_ns + parameters.lend_interval_seconds * SECOND_NS if leased_ns else 0
        if job.preemptions:
            resumed_ns = job.started_ns or job.placed_ns
            until_ns = max(until_ns, resumed_ns + parameters.preemption_cooldown_seconds * SECOND_NS)
        return until_ns

    def _all_leased(self, asks: list[_Ask]) -> list[tuple[Terms, _Ledger]] | None:
        """Return the terms for all of them, and what is left of their rows then; None where one finds too little."""
        ledgers = {ask.row: self._ledger(ask.row).copied() for ask in asks}
        found: list[tuple[Terms, _Ledger]] = []
        for ask in asks:
            terms = None if ledgers[ask.row].closed else self._leased(ask, ledgers[ask.row])
            if terms is None or (terms.leased != ask.member.leased and self._comes_too_soon(ask)):
                return None
            found.append((terms, ledgers[ask.row]))
        return found

    def _comes_too_soon(self, ask: _Ask) -> bool:
        """Say whether somebody comes to the row, by what was told, before a lease could be back that is given now."""
        back_ns = self._draft.now_ns + returns_within_ns(self._index, ask.job)
        return any(0 < start_ns < back_ns for start_ns in starts_on(self._trial, ask.row).values())

    def _stand(self, asks: list[_Ask]) -> None:
        """Let simulators make room that was only theirs, and nobody pass by who has waited for long.

        Who could have its phase if only all borrowers gave back what they have keeps the others from having more.
        """
        for ask in asks:
            if self._only_simulators(ask, self._ledger(ask.row)):
                self._trial.awaited_mib.setdefault(ask.row, self._more_mib(ask))
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
            self._ledger(ask.row).closed = True

    def _could(self, asks: list[_Ask], row: int) -> bool:
        """Say whether the row has enough for them, were all handed back that was granted beyond floors there."""
        table, state, back_mib = self._index.table, self._draft.state, 0
        devices = table.devices[row]
        there = {gpu.index for gpu in devices.free}
        for job, member in asking_on(self._index, row):
            floor = state.floors[job.id]
            back_mib += max(0, has_mib(state.specs[job.id], member) - floor.memory_mib)
            there.update(member.lent_gpus, devices_of(member).extra)
        missing = 0
        for ask in asks:
            spec = state.specs[ask.job.id]
            need = need_of(spec, ask.phase)
            one = Resources(gpus=1, gpu_memory_mib=need.gpu_memory_mib)
            usable = sum(each in devices.all and accepts(devices.all[each], one, spec.gpu_models) for each in there)
            missing += max(0, need.gpus - len(ask.member.gpu_indices))
            if missing > usable:
                return False
        return sum(self._more_mib(ask) for ask in asks) <= self._ledger(row).spare_mib + back_mib

    def _more_mib(self, ask: _Ask) -> int:
        """Return the memory that the member needs for its phase beyond what it has."""
        spec = self._draft.state.specs[ask.job.id]
        return max(0, wanted_need(spec, ask.member, ask.phase).memory_mib - has_mib(spec, ask.member))

    def _kept_mib(self, row: int) -> int:
        """Return the memory that is free on a row and promised to others."""
        table = self._index.table
        return max(0, table.free_on(row)[MEMORY] - max(0, table.now_on(row)[MEMORY]))

    def _only_simulators(self, ask: _Ask, ledger: _Ledger) -> bool:
        """Say whether nothing but simulators that were added has what the member waits for."""
        spec = self._draft.state.specs[ask.job.id]
        need, spare_mib = wanted_need(spec, ask.member, ask.phase), ledger.spare_mib - self._kept_mib(ask.row)
        if ledger.closed or not spare_mib < self._more_mib(ask) <= spare_mib + ledger.simulators_mib:
            return False
        return self._devices(ask, ledger, need.gpus, need.gpu_memory_mib) is not None

    def _all_ask(self, asks: list[_Ask]) -> bool:
        """Say whether every member of the job asks, or has more than its floor: none shall have that and wait."""
        waiting = {ask.member.rank for ask in asks}
        others = [each for each in asks[0].job.members if each.active and each.rank not in waiting]
        return all(each.leased is not None or each.extra is not None for each in others)

    def _leased(self, ask: _Ask, ledger: _Ledger) -> Terms | None:
        """Return the terms on which a member may enter its phase, taken from the ledger; None: there is too little."""
        job, member, state, table = ask.job, ask.member, self._draft.state, self._index.table
        spec, floor, terms = state.specs[job.id], state.floors[job.id], self._terms_of(job, member)
        need = wanted_need(spec, member, ask.phase)
        beyond, has = need.beyond(floor), Resources()
        for part in (terms.extra, terms.leased):
            has = has if part is None else has.plus(part)
        now, free = table.now_on(ask.row), table.free_on(ask.row)
        millis, mib = max(0, beyond.cpu_millis - has.cpu_millis), max(0, beyond.memory_mib - has.memory_mib)
        own_millis, own_mib = min(millis, max(0, now[CPU])), min(mib, max(0, now[MEMORY]))
        more_mib = self._more_mib(ask)
        if (
            more_mib > ledger.spare_mib - self._kept_mib(ask.row)
            or millis > ledger.spare_millis
            or millis - own_millis > max(0, ledger.spare_millis - free[CPU])
        ):
            return None
        devices = self._devices(ask, ledger, need.gpus, need.gpu_memory_mib)
        if devices is None:
            return None
        back, own, leased = devices
        ledger.spare_mib -= more_mib
        ledger.spare_millis -= millis
        for each in (*back, *leased):
            del ledger.lent[each]
        if own_millis or own_mib or own:
            self._trial.hold(job, ask.row, Resources(own_millis, own_mib, len(own)), own)
        there = devices_of(member)
        return Terms(
            granted=ask.phase,
            limits=need.limits,
            gpu_indices=there.floor + back + there.extra + own + there.leased + leased,
            leased=added(terms.leased, millis - own_millis, mib - own_mib, len(leased)),
            extra=added(terms.extra, own_millis, own_mib, len(own)),
        )

    def _devices(
        self, ask: _Ask, ledger: _Ledger, gpus: int, gpu_memory_mib: int
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
        """Return the devices that a member gets: back from those it lent, that nobody holds, and leased ones."""
        member, table, spec = ask.member, self._index.table, self._draft.state.specs[ask.job.id]
        missing = max(0, gpus - len(member.gpu_indices))
        if not missing:
            return (), (), ()
        room = table.devices[ask.row]
        back = member.lent_gpus[:missing]
        if any(each not in ledger.lent for each in back):
            return None
        one = Resources(gpus=1, gpu_memory_mib=gpu_memory_mib)
        free = room.at_hand(one, spec.gpu_models)[: max(0, table.now_on(ask.row)[GPUS])]
        own = tuple(gpu.index for gpu in free[: missing - len(back)])
        lent = [each for each in ledger.lent if each not in back and each not in member.lent_gpus and each in room.all]
        usable = [each for each in lent if accepts(room.all[each], one, spec.gpu_models)]
        leased = tuple(usable[: missing - len(back) - len(own)])
        return (back, own, leased) if len(back) + len(own) + len(leased) == missing else None

    def _within_ceiling(self, job: Job) -> bool:
        """Say whether the job's tenant may hold what was tried; the trial has counted it."""
        share = self._index.share(job.tenant)
        return share.ceiling is None or all(
            not most or used <= most for used, most in zip(share.used, share.ceiling, strict=True)
        )

    def unused_mib(self, row: int, unused_mib: int) -> int:
        """Return what is left of the memory of a row for more simulators, after what was granted."""
        if self._leftovers(row):
            return min(0, unused_mib)
        ledger = self._ledgers.get(row)
        return unused_mib if ledger is None else min(unused_mib, ledger.spare_mib)

    # ---- both ----

    def _grant(self, ask: _Ask, terms: Terms) -> None:
        """Let the member enter the phase, or have what the phase that it is in needs."""
        key = (ask.job.id, ask.member.rank)
        self.terms[key] = msgspec.structs.replace(terms, granted=ask.phase if ask.member.wanted else "")
        self.granted.setdefault(ask.job.id, []).append(key)
        self._decided += 1

    def _terms_of(self, job: Job, member: Member) -> Terms:
        return self.terms[job.id, member.rank]

    def _ledger(self, row: int) -> _Ledger:
        """Return what the row has to give, worked out when it is asked for first."""
        if row not in self._ledgers:
            index, state = self._index, self._draft.state
            simulators_mib = replicas.held(index, row, self._draft.now_ns)[0]
            leased, needs_millis = index.table.devices[row].leased, 0
            lent: dict[int, None] = {}
            for job, member in asking_on(index, row):
                lent |= {each: None for each in member.lent_gpus if each not in leased}
                held = state.floors[job.id].cpu_millis + (member.extra.cpu_millis if member.extra else 0)
                needs_millis += need_of(state.specs[job.id], member.phase, member.granted).cpu_millis - held
            spare_millis = index.table.free_on(row)[CPU] - needs_millis
            ledger = _Ledger(spare_mib(index, row, simulators_mib), spare_millis, lent, simulators_mib)
            ledger.closed = ledger.leftovers = self._leftovers(row)
            self._ledgers[row] = ledger
        return self._ledgers[row]

    def _leftovers(self, row: int) -> bool:
        return bool(self._draft.state.nodes[self._index.table.names[row]].zombies)


def _turn(asks: list[_Ask]) -> tuple[int, int, str]:
    job = asks[0].job
    return min(ask.member.wanted_ns for ask in asks), job.submitted_seq, job.id
