"""A stretch of recorded history as a workload: what came, what jobs really did, and what happened whoever decides.

A simulation of it begins with the state at the beginning of the stretch. What really happened is a run like any other,
so the same measures say how far a simulation by the recorded policy is from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing
from statistics import median_low

import msgspec
from tidegate_events import events as e
from tidegate_events.spec import DEFAULT_PHASE

from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.history.errors import NotInHistoryError
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.point import FRAMES_PER_WORD, Point, Told, reach
from tidegate_scheduler.history.source import Source
from tidegate_scheduler.policy.parameters import SECOND_NS, Parameters, as_parameters
from tidegate_scheduler.simulator.clocks import Clocks, Timed, time_at, timed
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.measured import Cost, Meter
from tidegate_scheduler.simulator.run import Run
from tidegate_scheduler.simulator.witness import Story, Witness
from tidegate_scheduler.simulator.workload import Span, Truth, Workload
from tidegate_scheduler.snapshot import decode_snapshot, encode_snapshot
from tidegate_scheduler.state import State

OWN_FAULTS = frozenset({"JobError", "OutOfMemory"})
WORK_SECONDS_ASSUMED = 60
"""What a job works of which nothing is known, in a history of which nothing is known: no job of it ever ended."""

REPLAYED: tuple[type[e.Event], ...] = (
    e.CancelRequested, e.HoldRequested, e.ReleaseRequested, e.SuspendRequested, e.ResumeRequested, e.RequeueRequested,
    e.JobPriorityChanged, e.JobLimitChanged, e.QueueChanged, e.NodeDrainRequested, e.NodeResumeRequested,
    e.NodeForgetRequested, e.MaintenancePlanned, e.MaintenanceCancelled, e.NodeUnreachable, e.NodeReachable,
)  # fmt: skip
"""What happens whoever decides, at the time at which it happened. `NodeJoined` does, too, but not as it is."""


class Recording(msgspec.Struct, frozen=True):
    """A stretch from after `from_seq` to `until_seq`; `happened` is what really happened.

    `policy` and `parameters` are those that decided most of it, of `policies` different ones. `assumed` are jobs that
    never worked, so that nobody knows for how long they would. `clock_ahead_ns` is by how much a writer's clock was
    ahead of the scheduler's at most. `away` are nodes that were not there when it ended: nobody knows whether they come
    back.
    """

    workload: Workload
    begin: State
    happened: Run
    costs: Costs
    measured: tuple[Cost, ...]
    policy: int
    parameters: Parameters
    policies: int
    from_seq: int
    until_seq: int
    assumed: tuple[str, ...] = ()
    clock_ahead_ns: int = 0
    away: tuple[str, ...] = ()


async def read(source: Source, name: str, begin: Moment, end: Moment, told: Told) -> Recording:
    """Return the stretch of `source` from `begin` to `end`, each of which may be anywhere in it.

    Raises NotInHistoryError where one of them is not in the history.
    """
    last, until_ns = await _ending(source, end, told)
    point = await _beginning(source, begin, told)
    if point.state.seq > last:
        raise NotInHistoryError(
            f"After {point.state.seq} and up to {last} there is no history: --to lies before --from."
        )
    reading = _Reading(point.state, point.at_ns)
    async with aclosing(source.read(point.state.seq, last)) as read_on, aclosing(timed(read_on)) as frames:
        async for each in frames:
            reading.take(each)
            if each.recorded.seq % FRAMES_PER_WORD == 0:
                told(f"Reading what happened: frame {each.recorded.seq} of {last}")
    return reading.result(name, until_ns)


async def _ending(source: Source, end: Moment, told: Told) -> tuple[int, int]:
    """Return the last sequence, and until when what runs there goes on; what came after history's end is not known."""
    if end == Moment():
        return source.end, source.now_ns()
    point = await reach(source, end, told)
    known = point.state.seq < source.end
    return point.state.seq, point.at_ns if known else min(point.at_ns, source.now_ns())


async def _beginning(source: Source, begin: Moment, told: Told) -> Point:
    """Return the state to begin with, and when that was: after a sequence, when the newest that it knows was written.

    A history from its first frame on begins with nothing, when that was written.
    """
    if begin != Moment():
        point = await reach(source, begin, told)
        if begin.seq is not None and begin.seq >= source.first:
            point.at_ns = max(point.state.header.now_ns, await time_at(source, begin.seq))
        return point
    point = await reach(source, Moment(seq=source.first - 1), told)
    if not point.state.header.now_ns and source.end >= source.first:
        point.at_ns = await time_at(source, source.first)
    return point


class _Reading:
    """Folds the stretch, and has everything that counts seen by those who need it."""

    def __init__(self, state: State, begin_ns: int) -> None:
        self.begin = decode_snapshot(encode_snapshot(state))
        self.begin.header.now_ns = max(begin_ns, state.header.now_ns)
        self.begin.touch("header")
        self._begin_ns = self.begin.header.now_ns
        self._state = state
        self._from_seq = state.seq
        self._witness = Witness(state, self._begin_ns)
        self._meter = Meter()
        self._clocks = Clocks()
        self._until_ns: int | None = None
        self._writer = ""
        self._facts: list[e.AnyEvent] = []
        self._decided_by: Counter[tuple[int, tuple[tuple[str, int], ...]]] = Counter()
        self._before: dict[str, bool] = {}
        """Of nodes that join: whether they were there, and had something to do."""

    def take(self, each: Timed) -> None:
        """Fold a frame."""
        recorded, self._until_ns = each.recorded, each.until_ns
        writer = recorded.frame.writer
        self._writer = f"{writer.service}/{writer.instance}"
        for event in recorded.frame.events:
            if isinstance(event, e.NodeJoined):
                known = self._state.nodes.get(event.node)
                self._before[event.node] = (
                    known is not None and known.status == "up" and self._running_on(event.node) > 0
                )
        evolve(self._state, recorded, self._saw)
        self._witness.frame_over()

    def _saw(self, event: e.AnyEvent) -> None:
        believed_ns = self._clocks.believed_ns(event.at_ns, self._writer, self._until_ns)
        if believed_ns != event.at_ns:
            event = msgspec.structs.replace(event, at_ns=believed_ns)
        self._witness.saw(event)
        self._meter.saw(event)
        if isinstance(event, REPLAYED):
            self._facts.append(self._timed(event))
        elif isinstance(event, e.NodeJoined):
            self._joined(event)
        elif isinstance(event, e.DecisionPass):
            header = self._state.header
            self._decided_by[header.policy, tuple(sorted(header.parameters.items()))] += event.decisions

    def _joined(self, event: e.NodeJoined) -> None:
        """Replay that a node joined; one that lost what ran there was away before, and where it was not, it is now."""
        if self._before.pop(event.node, False) and not self._running_on(event.node):
            silent = e.NodeUnreachable(
                id=f"{event.id}-away", at_ns=event.at_ns, node=event.node, incarnation=event.incarnation
            )
            self._facts.append(self._timed(silent))
        self._facts.append(self._timed(event))

    def _running_on(self, node: str) -> int:
        return sum(
            member.active and member.status == "started" and member.node == node
            for job in self._state.seats.on(node)
            for member in job.members
        )

    def _timed(self, event: e.AnyEvent) -> e.AnyEvent:
        return msgspec.structs.replace(event, at_ns=max(event.at_ns, self._begin_ns))

    # ---- what comes of it ----

    def result(self, name: str, until_ns: int) -> Recording:
        """Return the stretch, once all of it was taken; what ran at its end did so until then."""
        witness = self._witness
        witness.now_ns = max(witness.now_ns, until_ns)
        witness.close()
        stories = list(witness.stories.values())
        assumed = self._give_truths(stories)
        costs, measured = self._meter.costs()
        policy, parameters = self._decided_most()
        arrivals = sorted((story.arrival for story in stories), key=lambda arrival: (arrival.at_ns, arrival.job))
        return Recording(
            workload=Workload(name, (), tuple(arrivals), tuple(sorted(self._facts, key=lambda fact: fact.at_ns))),
            begin=self.begin,
            happened=self._run(name, costs),
            costs=costs,
            measured=measured,
            policy=policy,
            parameters=parameters,
            policies=len(self._decided_by),
            from_seq=self._from_seq,
            until_seq=self._state.seq,
            assumed=assumed,
            clock_ahead_ns=self._clocks.ahead_ns,
            away=tuple(sorted(name for name, node in self._state.nodes.items() if node.status != "up")),
        )

    def _run(self, name: str, costs: Costs) -> Run:
        witness = self._witness
        return Run(
            workload=name,
            rules="as it happened",
            seed=0,
            costs=costs,
            jobs=witness.tally.runs(),
            stays=tuple(witness.tally.stays),
            samples=tuple(witness.tally.samples),
            decided=tuple(witness.decided),
            begin_ns=self._begin_ns,
            end_ns=witness.now_ns,
        )

    def _decided_most(self) -> tuple[int, Parameters]:
        header = self._state.header
        now = (header.policy, tuple(sorted(header.parameters.items())))
        (policy, values), _ = max(self._decided_by.items(), key=lambda item: item[1], default=(now, 0))
        return policy, as_parameters(dict(values))

    def _give_truths(self, stories: list[Story]) -> tuple[str, ...]:
        """Put into each arrival what the job really did; return the jobs of which that had to be assumed."""
        assumed = []
        usual, leaves_in_ms = _usual_seconds(stories), _usual_leave_ms(stories)
        for story in stories:
            truth = _truth(story, leaves_in_ms)
            if not truth.spans and not truth.censored:  # it ended before anybody could see it work
                truth = msgspec.structs.replace(truth, spans=(Span(DEFAULT_PHASE, 0),))
            elif not truth.spans:
                assumed.append(story.arrival.job)
                seconds = story.arrival.spec.expected_seconds or usual
                truth = msgspec.structs.replace(truth, spans=(Span(DEFAULT_PHASE, max(1, seconds)),))
            story.arrival = msgspec.structs.replace(story.arrival, truth=truth)
            self._witness.tally.records[story.arrival.job].arrival = story.arrival
        return tuple(assumed)


def _truth(story: Story, usual_leave_ms: int | None) -> Truth:
    """Return what the job did, as far as it was recorded. One that ran into its time limit would have gone on."""
    spans, ended_by = story.effort.spans(completed=story.ended_by == "JobCompleted"), story.ended_by
    fails_after_seconds = None
    if ended_by == "JobFailed" and OWN_FAULTS & story.codes:
        fails_after_seconds = _seconds(spans)
    elif ended_by == "JobFailed" and "TimeLimit" in story.codes and spans:
        last = spans[-1]
        spans = (*spans[:-1], msgspec.structs.replace(last, seconds=last.seconds + 1 + _seconds(spans)))
    return Truth(
        spans,
        story.effort.saves_every_seconds,
        fails_after_seconds=fails_after_seconds,
        censored=ended_by != "JobCompleted" and fails_after_seconds is None,
        leaves_in_ms=_leaves_in_ms(story, usual_leave_ms),
        stumbles_ms=tuple(story.stumbles_ms),
        saves_first_ms=story.effort.saves_first_ms,
    )


def _seconds(spans: tuple[Span, ...]) -> int:
    return sum(span.work_ms for span in spans) // 1000


def _leaves_in_ms(story: Story, usual_ms: int | None) -> int | None:
    """Return how long the job takes to leave without saving, None if it saves; as most did, where it was not asked."""
    if story.saved_to_leave or (story.effort.own_saves_ns and not story.unsaved_ms):
        return None
    return median_low(story.unsaved_ms) if story.unsaved_ms else usual_ms


def _usual_leave_ms(stories: Iterable[Story]) -> int | None:
    """Return how long jobs take to leave that save nothing, None if most save, or nobody was asked to leave."""
    saved, unsaved_ms = 0, []
    for story in stories:
        saved += story.saved_to_leave
        unsaved_ms += story.unsaved_ms
    return median_low(unsaved_ms) if len(unsaved_ms) > saved else None


def _usual_seconds(stories: Iterable[Story]) -> int:
    done = [story.effort.position_ns // SECOND_NS for story in stories if story.ended_by == "JobCompleted"]
    return median_low(done) if done else WORK_SECONDS_ASSUMED
