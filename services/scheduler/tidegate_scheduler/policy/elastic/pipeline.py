"""Policy 2 as a whole: its stages in their order, on one draft."""

from __future__ import annotations

import msgspec
from tidegate_events import events as e

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic import admission, backfill, fit, leave, recall, resize, stranded
from tidegate_scheduler.policy.elastic.at_rest import AtRest
from tidegate_scheduler.policy.elastic.barred import Barred
from tidegate_scheduler.policy.elastic.cordon import cordon
from tidegate_scheduler.policy.elastic.entries import Seat
from tidegate_scheduler.policy.elastic.forget import forget
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.keeping import Keeping
from tidegate_scheduler.policy.elastic.nowhere import NO_LIMIT_SECONDS, Nowhere, Right
from tidegate_scheduler.policy.elastic.plans import Plans
from tidegate_scheduler.policy.elastic.prefetch import Prefetch
from tidegate_scheduler.policy.elastic.queue import FairOrder, Line, Turn, Turns
from tidegate_scheduler.policy.elastic.reasons import Waiting
from tidegate_scheduler.policy.elastic.rebalance import rebalance
from tidegate_scheduler.policy.elastic.rounds import rest_begins_at
from tidegate_scheduler.policy.elastic.seek import Seek
from tidegate_scheduler.policy.elastic.shrink import Shrinking
from tidegate_scheduler.policy.elastic.slicing import Slicing
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.elastic.victims import Victims
from tidegate_scheduler.policy.elastic.yielding import Yielding
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.policy.settle import settle_job, settle_node
from tidegate_scheduler.state import Job, State


class Placement(msgspec.Struct, frozen=True):
    """A job and the seats of its members."""

    job: Job
    seats: tuple[Seat, ...]


def index_of(state: State) -> Index:
    """Return the index of the state, made when it is asked for first."""
    if not isinstance(state.derived, Index):
        state.derived = Index(state)
    return state.derived


def decide(draft: Draft) -> None:
    """Fill the draft."""
    index = index_of(draft.state)
    index.refresh(draft.now_ns)
    trial = Trial(index)
    try:
        elastic = _Pass(draft, trial)
        elastic.settle()
        placements: list[Placement] = []
        if not cordon(draft, index):
            placements = elastic.place_waiting()
            elastic.rebalance()
        quotas = resize.resize(draft, trial, [(each.job, each.seats) for each in placements])
        elastic.work_off()
        trial.leave_placed(quotas)
    finally:
        trial.undo()
        index.table.peaks.end_pass()
    for due_ns in (index.next_ns, elastic.victims.spared_until_ns, elastic.slicing.spared_until_ns):
        elastic.at_rest.until(due_ns)
        if due_ns is not None:
            draft.wake_by(due_ns)
    # A pass that is just full counts as cut: what it would have looked at next depends on what the index has settled.
    draft.has_room_for(1)


class _Pass:
    """One pass: what is tried so far, and who waits for what."""

    def __init__(self, draft: Draft, trial: Trial) -> None:
        self._draft = draft
        self._trial = trial
        self._index = trial.index
        self._table = trial.index.table
        stranded.count_beside(self._table, draft.parameters.cpu_beside_gpu_millis)
        self.victims = Victims(trial.index, draft.now_ns, draft.parameters, draft.leaving)
        self._prefetch = Prefetch(draft, trial.index)
        self._barred = Barred(draft, trial.index.table)
        self._nowhere = Nowhere()
        self._waiting = draft.waiting = Waiting(trial.index, draft.now_ns)
        self._placements: list[Placement] = []
        self.at_rest = AtRest() if draft.on_trial else trial.index.settling.at_rest
        self.at_rest.begin_pass(draft.state.seq, draft.now_ns)
        self._put_off: list[Turn] = []
        """Those for whom a plan might make room, and whose turn for one it was not."""

        self._yielding = Yielding(draft, trial)
        self._seek = Seek(draft, trial, self._yielding)
        self.slicing = Slicing(trial.index, draft.now_ns, draft.parameters, draft.leaving)
        self._plans = Plans(draft, trial, (self.victims, self.slicing), self._yielding, self._barred)
        self._shrinking = Shrinking(draft, trial, self._yielding, self._plans.may_plan)
        self._keeping = Keeping(draft, trial, self._waiting, self._seek, self._plans.may_plan)

    # ---- what happened, and what operators and nodes ask ----

    def settle(self) -> None:
        """Decide what was seen, what operators asked for, and who leaves nodes that go away."""
        draft, index = self._draft, self._index
        for name in sorted(index.fleet.unreachable):
            if not draft.full:
                settle_node(draft, draft.state.nodes[name])
        for job in index.settling.unsettled():
            if draft.full:
                return
            self._settle(job)
        forget(draft, index)
        leave.relieve(draft, self._trial, self.victims)
        leave.clear_nodes(draft, self._trial)
        recall.overdue(draft, self._trial)
        backfill.reclaim(draft, self._trial)

    def _settle(self, job: Job) -> None:
        """Decide about one job; where nothing is to be decided, it is settled until it changes or falls due."""
        draft = self._draft
        earlier, draft.wake_at_ns, decided = draft.wake_at_ns, None, len(draft.events)
        settle_job(draft, job)
        leave.asked_by_operator(draft, self._trial, job)
        if job.waiting and job.held and job.reserved_nodes and job.id not in draft.leaving:
            self._trial.withdraw(job)
            self._keeping.release(job, "Held")
        due_ns, draft.wake_at_ns = draft.wake_at_ns, earlier
        if len(draft.events) > decided:
            if job.id in draft.leaving:
                self._trial.ask_to_leave(job)
                self._trial.withdraw(job)
            return
        self._index.settling.settled(job.id)
        if due_ns is not None:
            self._index.settling.look_again(job.id, due_ns)

    # ---- who waits ----

    def place_waiting(self) -> list[Placement]:
        """Ask the waiting jobs in turn: each is placed, or gets room promised, or waits and says why."""
        draft, index = self._draft, self._index
        shares, weights = index.shares, [share.weight for share in index.shares.values()]
        ageing_ns = draft.parameters.ageing_seconds * SECOND_NS
        turns = Turns(shares, FairOrder(index.total, weights), draft.now_ns, ageing_ns)
        stopped: list[Line] = []
        for line in index.lines.values():
            if index.share(line.key.tenant).stopped:
                stopped.append(line)
            else:
                turns.enter(line)
        for line in sorted(stopped, key=lambda line: line.waiters[0]):
            self._stop(line)
        for turn in turns:
            if not draft.has_room_for(len(self._placements) + 1):
                break
            job = draft.state.jobs[turn.job]
            self._plans.untried = False
            if self._ask(job, turn):
                turns.go_on(turn)
            if self._plans.untried:
                self._put_off.append(turn)
            else:
                self.at_rest.add(job.id)
        self.at_rest.until(turns.ages_ns)
        if turns.ages_ns is not None and self._trial.promises:
            draft.wake_by(turns.ages_ns)  # room that is kept for others may be for whoever is in front of them then
        return self._placements

    def work_off(self) -> None:
        """Work out who would leave for those whose turn for that it was not, in a pass that has decided nothing.

        Where room is kept for them is for another pass: whoever is in front of them may have it.
        """
        draft, plans, at_rest, put_off = self._draft, self._plans, self.at_rest, self._put_off
        plans.begin_rest()
        begin = rest_begins_at(draft.now_ns, len(put_off))
        for turn in (*put_off[begin:], *put_off[:begin]):
            job, line = draft.state.jobs[turn.job], turn.line
            if draft.events or job.id in self._trial.promises or self._keeping.may_keep():
                continue
            plans.untried = False
            if not (self._ruled_out(job, turn) or self._make_room(job, line, self._barred.rows(job, line.fit))):
                self._found_nowhere(job, turn)
            if not plans.untried:
                at_rest.add(job.id)
        at_rest.until(draft.wake_at_ns)  # whatever is due then may be what makes a plan possible
        if any(turn.job not in at_rest for turn in put_off):
            draft.wake_by((draft.now_ns // SECOND_NS + 1) * SECOND_NS)

    def rebalance(self) -> None:
        """Let borrowers move that wait while another node has what they wait for, once nobody is placed any more."""
        if self._placements or self._draft.cut:
            return  # what these take, or those who were not asked yet will, is known to the next pass
        rebalance(self._draft, self._trial, self.victims, self._barred.unwanted)

    def _stop(self, line: Line) -> None:
        """Let the jobs of a stopped queue wait, with nothing kept for them; reject those that no node could hold."""
        self._waiting.of_line(line, e.Reason(code="QueueStopped", detail=f"the queue of {line.key.tenant}"))
        alone = self._draft.state.jobs[line.key.alone] if line.key.alone else None
        reserved = alone is not None and bool(self._trial.withdraw(alone))
        if not self._reject_stopped(line) and alone is not None and reserved:
            self._keeping.release(alone, "QueueStopped")

    def _reject_stopped(self, line: Line) -> bool:
        """Reject the jobs of a stopped queue that no node could hold, as they stand in line; say whether any was."""
        draft, rejected = self._draft, False
        if admission.may_hold(line.fit):
            return False
        for waiter in line.waiters:
            job = draft.state.jobs[waiter.job]
            if job.attempt > 0 or job.id in draft.leaving:
                continue
            if draft.full or not admission.reject(draft, job, line.fit):
                break
            rejected = True
        return rejected

    def _ask(self, job: Job, turn: Turn) -> bool:
        """Place the job or let it wait; say whether the next one of its line is asked too."""
        draft, line = self._draft, turn.line
        if job.id in draft.leaving or job.not_before_ns > draft.now_ns:
            return True
        self._yielding.asked.add(job.id)
        reserved = self._trial.withdraw(job)
        if turn.share.ceiling is not None and (reached := admission.ceiling_reached(turn.share, line)) is not None:
            return self._stay_below_ceiling(job, line, reached)
        barred = self._barred.rows(job, line.fit)
        if not reserved and self._ruled_out(job, turn):
            self._waiting.of_line(line, None)
            self._prefetch.hint(job, line, barred, kept=False)
            return False
        rows = self._seek.rows(job, turn, reserved, barred)
        if rows is not None:
            rows = self._with_memory(job, turn, rows, reserved, barred)
            if rows is not None:
                seats = fit.seats(self._index, line.fit, rows)
                self._trial.place(job, seats)
                self._table.peaks.expect(draft.state.specs[job.id], line.fit.shape.need, seats)
                self._placements.append(Placement(job, seats))
            return True
        go_on = self._block(job, turn, reserved, barred)
        if not go_on:
            self._prefetch.hint(job, line, barred, kept=job.id in self._trial.promises)
        return go_on

    def _with_memory(
        self, job: Job, turn: Turn, rows: fit.Rows, reserved: fit.Rows, barred: frozenset[int]
    ) -> fit.Rows | None:
        """Return the rows, or others, if nobody has their memory or devices yet; else keep the room until then."""
        draft, need = self._draft, turn.line.fit.shape.need
        awaited = recall.awaited(self._trial, job, rows, draft.now_ns)
        if not awaited:
            return rows
        others = self._seek.rows(job, turn, (), barred | awaited.keys())
        if others is not None and not recall.awaited(self._trial, job, others, draft.now_ns):
            return others
        stays = recall.recalled_for(self._index, job)
        if stays and (same := fit.rows_in(turn.line.fit, self._table.now, barred, among=set(stays))) is not None:
            # Elsewhere it would begin to wait anew, and those who were told here would leave for nobody.
            rows, awaited = same, recall.awaited(self._trial, job, same, draft.now_ns)
            if not awaited:
                return rows
        if self._keeping.rests(job, turn.line, reserved, barred):
            return None
        for row in awaited:
            more_mib = need.memory_mib * rows.count(row)
            self._trial.awaited_mib[row] = self._trial.awaited_mib.get(row, 0) + more_mib
            self._trial.awaited_by.setdefault(row, []).append(job.id)
        back_ns = max(awaited.values())
        self._keeping.keep(job, turn.line, rows, back_ns)
        draft.wake_by(back_ns)
        return None

    def _ruled_out(self, job: Job, turn: Turn) -> bool:
        """Say whether the job need not be tried, as others found no room who need no more.

        One that needs more than they is tried all the same where more than that may come of it: room is kept for it, it
        is told that no node could hold it, or others whose turn comes later lose what is kept for them.
        """
        line = turn.line
        if self._nowhere.rules_out(line.key.shape, lambda: self._right(turn)):
            return True
        if job.reserved_nodes or self._keeping.may_keep() or self._yielding.may_lose():
            return False
        hopeless = self._nowhere.rules_out_larger(line.fit, lambda: self._right(turn))
        if hopeless is None or not fit.could_hold(line.fit, up_only=True):
            return False
        return hopeless or not self._plans.would_plan(job)

    def _right(self, turn: Turn) -> Right:
        key, guaranteed = turn.line.key, turn.share.guaranteed is not None
        limit = NO_LIMIT_SECONDS if key.limit_seconds is None else key.limit_seconds
        if self._draft.parameters.slice_steps:
            return Right(key.priority, limit, key.tenant, key.work)
        return Right(key.priority, limit, key.tenant if guaranteed else "")

    # ---- who is blocked ----

    def _block(self, job: Job, turn: Turn, reserved: fit.Rows, barred: frozenset[int]) -> bool:
        """Let a job wait that finds no room now; say whether the next one of its line is asked too."""
        line = turn.line
        if not fit.could_hold(line.fit, up_only=True):
            if admission.reject(self._draft, job, line.fit):
                return True
            self._keeping.release(job, "NoNode")
            reason = e.Reason(code="NoNode", detail="the nodes that are open could not hold it, were they empty")
            self._waiting.of_line(line, reason)
            return self._lets_others_be_rejected(job, line)
        return not self._keeping.rests(job, line, reserved, barred) and self._find_room(job, turn, reserved, barred)

    def _find_room(self, job: Job, turn: Turn, reserved: fit.Rows, barred: frozenset[int]) -> bool:
        """Promise the job room that is being left, or that others leave for it, or that comes free; else it waits."""
        line = turn.line
        found = self._keeping.once_left(job, line, reserved, barred)
        if found is not None:
            self._keeping.keep(job, line, found.rows, found.start_by_ns)
            return True
        if self._make_room(job, line, barred):
            return True
        self._found_nowhere(job, turn)
        if reserved and self._keeping.usable(reserved, barred) and self._keeping.may_keep():
            self._keeping.stay(job, line, reserved, barred)
            return False
        self._keeping.reserve(job, line, barred)
        return False

    def _found_nowhere(self, job: Job, turn: Turn) -> None:
        """Remember that the job found no room, unless that is for reasons of its own.

        Such are that nodes refused it, that it waits to be close together, and that it keeps to a start it was told.
        """
        # Windows bar no less from whoever runs for longer, and so has less right.
        own = job.excluded_nodes or job.reserved_start_ns or self._seek.waits_within(job, turn.line)
        if not own:
            tried, hopeless = not self._plans.untried, self._plans.hopeless and not self._plans.untried
            self._nowhere.add(turn.line.fit, self._right(turn), tried=tried, hopeless=hopeless)

    def _make_room(self, job: Job, line: Line, barred: frozenset[int]) -> bool:
        """Ask others to hand back so that the job fits, else to leave, or to move; say whether any are asked."""
        if (shrunk := self._shrinking.ask(job, line.fit, barred)) is not None:
            self._keeping.keep(job, line, shrunk.rows, shrunk.back_ns)
            return True
        plan, sliced = self._plans.preemption(job, line, barred), False
        if plan is None:
            plan, sliced = self._plans.slice(job, line, barred), True
        if plan is not None:
            if self._plans.asks_all(plan, beside=len(self._placements)):
                self._keeping.keep(job, line, plan.rows, self._keeping.left_by(plan.rows, plan.victims))
                self._plans.preempt(job, plan, sliced=sliced)
            else:
                self._keeping.hold(job, plan.rows)
            return True
        moves = self._plans.moves(job, line, barred)
        if moves is not None:
            self._keeping.keep(job, line, moves.rows, self._keeping.left_by(moves.rows, moves.jobs))
            self._plans.move(job, moves)
        return moves is not None

    def _stay_below_ceiling(self, job: Job, line: Line, reached: e.Reason) -> bool:
        """Let a line wait for its tenant to hold less; reject what no node could hold, were there no ceiling."""
        if admission.reject(self._draft, job, line.fit):
            return True
        self._waiting.of_line(line, reached)
        self._keeping.release(job, "QuotaReached")
        return self._lets_others_be_rejected(job, line)

    @staticmethod
    def _lets_others_be_rejected(job: Job, line: Line) -> bool:
        """Say whether no node could hold any of the line, and this one waits all the same: it has begun before."""
        return job.attempt > 0 and not admission.may_hold(line.fit)
