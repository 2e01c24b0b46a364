"""Follows a recorded history, event by event, and counts what happened by the same counts that a simulation has.

It looks at what the state became after each event that counts, so an event that was void changes nothing here either.
Times are those of the events' writers, and for one job they never go back.
"""

from __future__ import annotations

from typing import Any

import msgspec
from tidegate_events import events as e
from tidegate_events.spec import phase_need

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.simulator.effort import Effort, Pace, pace_of
from tidegate_scheduler.simulator.run import Decided
from tidegate_scheduler.simulator.tally import Tally
from tidegate_scheduler.simulator.work import MILLI_NS
from tidegate_scheduler.simulator.workload import Arrival, whole
from tidegate_scheduler.state import Job, Member, State

NOT_DECIDED = (e.DecisionPass, e.LeaderElected, e.PolicyChanged, e.NodeUnreachable, e.NodeReachable)
"""What the leader writes that no policy decided."""


class Story(msgspec.Struct, kw_only=True):
    """What was seen of one job. `seats` are the members that hold room, with what they hold; `pace` is None at rest.

    `gone_ns` is when the last of them left. `asked` are the members that wait for a phase, since when. `left_ns` is
    when it was asked to leave, `left_pace` how it worked then, and `unsaved_ms` how long it took to be gone each time
    that it saved nothing. `stumbles_ms` is how far it was each time that it failed and was tried again; one that
    `fails_already` as the stretch begins does so in any simulation. `unheard` is an attempt of which nobody heard any
    more, and what it may have done. `ended_by` is the decision that ended it, with its
    reasons.
    """

    arrival: Arrival
    effort: Effort
    now_ns: int
    stage: str = ""
    attempt: int = 0
    preemptions: int = 0
    seats: dict[int, tuple[Any, ...]] = {}
    gone_ns: int = 0
    asked: dict[int, tuple[str, int]] = {}
    pace: Pace | None = None
    left_ns: int = 0
    left_pace: Pace | None = None
    left_saved: bool = False
    saved_to_leave: bool = False
    unsaved_ms: list[int] = []
    ended_by: str = ""
    reasons: tuple[e.Reason, ...] = ()
    stumbles_ms: list[int] = []
    fails_already: bool = False
    unheard: tuple[int, list[tuple[str, int]]] = (0, [])

    @property
    def codes(self) -> frozenset[str]:
        """Return the codes of why it ended."""
        return frozenset(reason.code for reason in self.reasons)


class Witness:
    """Sees the events of a stretch, from the state at its beginning on."""

    def __init__(self, state: State, begin_ns: int) -> None:
        self.tally = Tally()
        self.stories: dict[str, Story] = {}
        self.decided: list[Decided] = []
        self.now_ns = begin_ns
        self._state = state
        for name in state.nodes:
            self._count_gpus(name)
        for job in state.jobs.values():
            arrival = Arrival(job.submitted_ns, job.id, state.specs[job.id], whole(0))
            story = self._meet(arrival, job.submitted_ns, begin_ns)
            story.effort.whole = not any(member.status == "started" for member in job.members)
            story.fails_already = any(member.status == "failed" for member in job.members)
            self._look(story, begin_ns)
            self._doubt_or_believe(story)
        self.tally.sample(begin_ns)

    def saw(self, event: e.AnyEvent) -> None:
        """See an event right after it was folded."""
        self.now_ns = max(self.now_ns, event.at_ns)
        if isinstance(event, e.JobEvent):
            self._saw_job(event)
        elif isinstance(event, e.NodeJoined | e.NodeLost | e.NodeForgotten | e.NodeUnreachable | e.NodeReachable):
            self._count_gpus(event.node)
            for story in [each for each in self.stories.values() if each.seats]:
                self._look(story, event.at_ns)
                self._doubt_or_believe(story)
            if isinstance(event, e.NodeJoined):
                self._heard_of_again(event)
        self._note_decision(event)

    def frame_over(self) -> None:
        """Take a sample: what one frame tells became true together."""
        self.tally.sample(self.now_ns)

    def close(self) -> None:
        """Count what goes on still."""
        for story in self.stories.values():
            story.effort.works(story.pace, max(story.now_ns, self.now_ns))
            story.effort.died()
            for phase, since_ns in story.asked.values():
                self.tally.asked(story.arrival.job, phase, max(0, self.now_ns - since_ns))
        self.tally.close(self.now_ns)

    # ---- events ----

    def _saw_job(self, event: e.JobEvent) -> None:
        story = self.stories.get(event.job)
        if story is None:
            if not isinstance(event, e.JobSubmitted):
                return
            arrival = Arrival(event.at_ns, event.job, event.spec, whole(0))
            story = self._meet(arrival, event.at_ns, event.at_ns)
        job = self._state.jobs.get(event.job)
        now_ns = max(story.now_ns, event.at_ns)
        if isinstance(event, e.CheckpointSaved) and job is not None:
            self._saved(story, job, event, now_ns)
        elif isinstance(event, e.SandboxExited) and event.outcome in ("completed", "failed") and story.left_pace:
            story.effort.works(story.left_pace, story.left_ns)  # it did not leave: it worked on until its end
            story.effort.works(None, now_ns)
            story.left_pace = None
        elif isinstance(event, e.JobRequeued) and event.outcome == "failed":
            if not story.fails_already:
                story.stumbles_ms.append(max(1, story.effort.position_ns // MILLI_NS))
            story.fails_already = False
        elif isinstance(event, e.JobCompleted | e.JobFailed | e.JobCancelled | e.JobRejected) and job is None:
            story.ended_by, story.reasons = type(event).__name__, event.reasons
        self._look(story, event.at_ns)

    def _meet(self, arrival: Arrival, submitted_ns: int, now_ns: int) -> Story:
        story = Story(
            arrival=arrival, effort=Effort(), now_ns=now_ns, seats={}, asked={}, unsaved_ms=[], stumbles_ms=[]
        )
        self.stories[arrival.job] = story
        self.tally.expect(arrival, submitted_ns)
        return story

    def _saved(self, story: Story, job: Job, event: e.CheckpointSaved, now_ns: int) -> None:
        if any(known.id == event.checkpoint.id for known in job.checkpoints):
            story.effort.works(story.pace, now_ns)
            leaving = job.stage == "preempting"
            story.effort.save(event.checkpoint.id, asked=leaving)
            story.left_saved = story.left_saved or leaving

    # ---- what the state became ----

    def _look(self, story: Story, at_ns: int) -> None:
        """Compare what the state says of the job with what it said before."""
        story.now_ns = now_ns = max(story.now_ns, at_ns)
        name = story.arrival.job
        job = self._state.jobs.get(name)
        stage = job.stage if job is not None else "ended"
        if story.stage == "ended":
            return
        if stage == "preempting" and story.stage != "preempting":
            story.left_ns, story.left_pace, story.left_saved = now_ns, story.pace, False
        self._look_at_work(story, job, now_ns)
        self._look_at_seats(story, job, now_ns)
        if job is not None and job.preemptions > story.preemptions:
            for _ in range(job.preemptions - story.preemptions if story.stage else 0):
                self.tally.preempted(name)
            story.preemptions = job.preemptions
        if stage != story.stage:
            self._look_at_stage(story, job, stage, now_ns)

    def _look_at_stage(self, story: Story, job: Job | None, stage: str, now_ns: int) -> None:
        name, before = story.arrival.job, story.stage
        story.stage = stage
        there, was_there = _there(stage), _there(before)
        if was_there and not there:
            self._attempt_over(story)
        if stage == "ended":
            end = self._state.finished.get(name)
            self.tally.ended(name, now_ns, end.state if end is not None else "", story.reasons)
        elif not there and (was_there or not before):
            self.tally.waits(name, now_ns)
        elif there and not was_there and job is not None:
            story.attempt = job.attempt
            if before:
                story.effort.go_back(job.resumed_from.id if job.resumed_from is not None else "")
            self.tally.placed(name, now_ns)

    def _attempt_over(self, story: Story) -> None:
        """Count what came to nothing: work after the newest checkpoint, and the time in which it saved to leave."""
        name = story.arrival.job
        if story.stage != "ended" or story.ended_by != "JobCompleted":
            self._died(story)
            for phase, lost_ns in story.effort.lost_in():
                self.tally.lost(name, lost_ns, phase)
        if story.left_ns and story.left_pace is not None:
            leaving_ns = max(0, story.gone_ns - story.left_ns)
            self.tally.lost(name, leaving_ns, story.left_pace.phase)
            if story.left_saved:
                story.saved_to_leave = True
            else:
                story.unsaved_ms.append(leaving_ns // MILLI_NS)
        story.left_ns, story.left_pace = 0, None

    def _look_at_seats(self, story: Story, job: Job | None, now_ns: int) -> None:
        """Note who came to a node, has other limits there, or is gone from it."""
        name, spec = story.arrival.job, story.arrival.spec
        members = {member.rank: member for member in job.members} if job is not None else {}
        fresh = job is None or job.attempt != story.attempt
        for rank in list(story.seats):
            member = members.get(rank)
            if fresh or member is None or not member.active:
                outcome = member.status if member is not None and not fresh else "lost"
                self.tally.left(name, rank, now_ns, outcome)
                if outcome == "lost":
                    self._died(story)
                story.gone_ns = now_ns
                del story.seats[rank]
        for rank, member in members.items():
            holds = (member.node, member.quotas, member.gpu_indices)
            if not member.active or story.seats.get(rank) == holds:
                continue
            if rank in story.seats:
                self.tally.changed(name, member, spec)
            else:
                self.tally.seated(name, member, spec, now_ns)
            story.seats[rank] = holds

    def _look_at_work(self, story: Story, job: Job | None, now_ns: int) -> None:
        """Note in which phase the job works, and how fast; and who waits for one."""
        name, spec = story.arrival.job, story.arrival.spec
        members = [member for member in job.members if member.active] if job is not None else []
        for rank in list(story.asked):
            member = next((each for each in members if each.rank == rank), None)
            phase, since_ns = story.asked[rank]
            if member is None or member.wanted != phase:
                self.tally.asked(name, phase, max(0, now_ns - since_ns))
                del story.asked[rank]
        for member in members:
            if member.wanted and member.rank not in story.asked:
                story.asked[member.rank] = (member.wanted, now_ns)
        pace = _pace(story, job, members)
        if pace == story.pace:
            return
        story.effort.works(pace, now_ns)
        story.pace = pace
        if pace is None:
            self.tally.rests(name, now_ns)
        else:
            need = phase_need(spec, pace.phase)
            busy_millis = (need.gpus * WHOLE_MILLIS + need.gpu_millis) * len(members)
            self.tally.works(name, now_ns, pace.phase, busy_millis)

    def _doubt_or_believe(self, story: Story) -> None:
        """Note whether somebody of it is not heard: if nobody hears of it again, it did nothing from then on."""
        nodes = [self._state.nodes.get(seat[0]) for seat in story.seats.values()]
        if any(node is None or node.status != "up" for node in nodes):
            story.effort.doubt(story.now_ns)
        elif nodes:
            story.effort.believe()

    def _died(self, story: Story) -> None:
        if undone := story.effort.died():
            story.unheard = (story.attempt, undone)

    def _heard_of_again(self, event: e.NodeJoined) -> None:
        """Count as lost what was done there by who was given up too early: it went on meanwhile."""
        for held in event.sandboxes:
            story = self.stories.get(held.job)
            if story is not None and held.attempt == story.unheard[0]:
                for phase, undone_ns in story.unheard[1]:
                    self.tally.lost(held.job, undone_ns, phase)
                story.unheard = (0, [])

    def _count_gpus(self, name: str) -> None:
        """Note whether a node is there: one that is not heard may be, with what its jobs do, until it is given up."""
        node = self._state.nodes.get(name)
        if node is not None and node.status != "lost":
            self.tally.node_there(name, len(node.gpus) * WHOLE_MILLIS)
        else:
            self.tally.node_gone(name)

    def _note_decision(self, event: e.AnyEvent) -> None:
        if isinstance(event, e.Decision):
            self.decided.append(Decided(event.at_ns, type(event).__name__, event.job, _nodes(event)))
        elif isinstance(event, e.NodeLost | e.NodeCordoned | e.NodeForgotten | e.ImagePrefetchHinted):
            self.decided.append(Decided(event.at_ns, type(event).__name__, "", (event.node,)))


def _there(stage: str) -> bool:
    return stage in ("placed", "running", "preempting", "stopping")


def _pace(story: Story, job: Job | None, members: list[Member]) -> Pace | None:
    """Return how the job works; None where somebody of it is not there (yet), leaves, or waits for a phase."""
    if job is None or job.stage not in ("placed", "running") or len(members) < len(job.members):
        return None
    if any(member.status != "started" or member.wanted for member in members):
        return None
    first = min(members, key=lambda member: member.rank)
    return pace_of(story.arrival.spec, first.phase, [member.quotas for member in members])


def _nodes(event: e.Decision) -> tuple[str, ...]:
    if isinstance(event, e.JobPlaced):
        return tuple(member.node for member in event.members)
    return event.nodes if isinstance(event, e.RoomReserved) else ()
