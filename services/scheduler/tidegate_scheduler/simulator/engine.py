"""Runs the scheduler's core in virtual time: facts of a modelled cluster, passes by the given rules, until all is done.

The state, its folding and the settling of what was seen are those of the service; between two runs on one workload
nothing differs but who fills the drafts of passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from tidegate_events import events as e

from tidegate_scheduler.decide import decide_by
from tidegate_scheduler.policy.parameters import as_values
from tidegate_scheduler.simulator import held_for_life
from tidegate_scheduler.simulator.agenda import Agenda
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.errors import SimulationError
from tidegate_scheduler.simulator.never import why_never
from tidegate_scheduler.simulator.nodes import Nodes
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.simulator.run import Decided, Run
from tidegate_scheduler.simulator.sandbox import Ground
from tidegate_scheduler.simulator.scribe import Scribe
from tidegate_scheduler.simulator.tally import Tally
from tidegate_scheduler.simulator.work import MILLI_NS
from tidegate_scheduler.simulator.workload import Arrival, Workload
from tidegate_scheduler.simulator.world import World
from tidegate_scheduler.snapshot import decode_snapshot, encode_snapshot
from tidegate_scheduler.state import Job, Node, State

PASSES_MAX = 10_000
"""Passes of one round: rules that have more to say at one time never come to rest."""

QUIET_STEPS_MAX = 10_000
"""Times at which nothing is decided about a job while nothing but passes and failures of nodes is to come: who waits
waits for ever."""

Told = Callable[[int, int], None]
Watch = Callable[[State], None]


def simulate(
    workload: Workload,
    rules: Rules,
    costs: Costs,
    *,
    seed: int = 0,
    begin: State | None = None,
    told: Told | None = None,
    watch: Watch | None = None,
) -> Run:
    """Return what becomes of the workload under these rules.

    It begins with a copy of `begin`, else with nothing. `told(done, jobs)` is called as jobs end, `watch(state)` after
    each pass. Raises SimulationError for a workload that does not fit the state, or rules that never rest.
    """
    return Engine(workload, rules, costs, seed, begin).run(told, watch)


class Engine:
    """One simulation."""

    def __init__(self, workload: Workload, rules: Rules, costs: Costs, seed: int, begin: State | None) -> None:
        self._workload = workload if rules.grants_phases else held_for_life.arriving(workload)
        self._rules = rules
        self._costs = costs
        self._seed = seed
        self.state = State() if begin is None else decode_snapshot(encode_snapshot(begin))
        self._scribe = Scribe(self.state)
        self._agenda = Agenda()
        self._tally = Tally()
        self._nodes = Nodes(self._scribe, self._agenda, self._tally, costs, seed)
        self._world = World(Ground(self._agenda, self._nodes, self._tally, costs))
        self._sent_back: dict[str, bool] = {}
        """Who borrows and leaves as the simulation begins, under rules that grant no phases: whether it is asked to."""

        self._decided: list[Decided] = []
        self._now_ns = self._begin_ns = self._end_ns = self.state.header.now_ns
        self._last_round_ns: int | None = None
        self._wake_at_ns: int | None = None
        self._waiting: Mapping[str, e.Reason] = {}

    def run(self, told: Told | None = None, watch: Watch | None = None) -> Run:
        """Simulate until every job has ended, or nothing more can happen to any; it ends with what happened last."""
        self._open()
        self._sample()
        done, jobs, quiet = 0, len(self._tally.records), 0
        while self._tally.open and quiet < QUIET_STEPS_MAX and (at_ns := self._next_ns()) is not None:
            self._now_ns = max(self._now_ns, at_ns)
            for act in self._agenda.due(self._now_ns):
                act(self._now_ns)
            decided = self._round(watch) if self._round_due() else 0
            quiet = 0 if decided or self._agenda.pending else quiet + 1
            self._end_ns = self._now_ns if decided else self._end_ns
            self._sample()
            if told is not None and jobs - self._tally.open != done:
                done = jobs - self._tally.open
                told(done, jobs)
        self._say_who_waits()
        self._end_ns = max(self._end_ns, self._agenda.happened_ns)
        self._tally.close(self._end_ns)  # passes and nodes that came to nothing for any job are no part of it
        return self._result()

    def _sample(self) -> None:
        self._tally.check()
        self._tally.sample(self._now_ns)

    def _say_who_waits(self) -> None:
        """Note why those wait that nobody will place any more: by what the rules said last, else by what there is."""
        for name, job in self.state.jobs.items():
            if job.waiting:
                said = self._waiting.get(name)
                self._tally.waits_because(name, said if said is not None else why_never(self.state, name))

    def _result(self) -> Run:
        return Run(
            workload=self._workload.name,
            rules=self._rules.name,
            seed=self._seed,
            costs=self._costs,
            jobs=self._tally.runs(),
            stays=tuple(self._tally.stays),
            samples=tuple(self._tally.samples),
            decided=tuple(each for each in self._decided if each.at_ns <= self._end_ns),
            begin_ns=self._begin_ns,
            end_ns=self._end_ns,
        )

    # ---- it begins ----

    def _open(self) -> None:
        """Take over the state, put everything that will happen on the agenda, and let the first term begin."""
        now_ns, scribe, rules = self._now_ns, self._scribe, self._rules
        scribe.lead(now_ns)
        values = as_values(rules.parameters)
        scribe.scheduler_says(
            e.PolicyChanged(id=scribe.next_id(), at_ns=now_ns, policy=rules.policy, parameters=values)
        )
        for queue in rules.queues:
            scribe.users_say(msgspec.structs.replace(queue, id=scribe.next_id(), at_ns=now_ns))
        for known in list(self.state.nodes.values()):
            self._nodes.know(_joined(known), heard=known.status == "up")
        for event in self._workload.nodes:
            if event.node in self._nodes.by_name:
                raise SimulationError(f"node {event.node} is there already: each has a name of its own")
            self._nodes.join(event)
        for arrival in self._workload.arrivals:
            self._expect(arrival)
        if not rules.grants_phases:
            self._take_over()
        self._adopt()
        for index, fact in enumerate(self._workload.facts):
            self._agenda.at(max(fact.at_ns, now_ns), self._happening(index, fact))

    def _expect(self, arrival: Arrival) -> None:
        if arrival.job in self._tally.records or arrival.job in self.state.finished:
            raise SimulationError(f"job {arrival.job} arrives more than once: each job has one arrival")
        if not arrival.truth.spans:
            raise SimulationError(f"job {arrival.job} does nothing: its truth needs at least one span")
        known = self.state.jobs.get(arrival.job)
        if known is not None:
            self._tally.expect(arrival, known.submitted_ns)
            self._world.expect(arrival.job, arrival.truth, _last_step(known))
            return
        self._tally.expect(arrival, arrival.at_ns)
        self._world.expect(arrival.job, arrival.truth)
        self._agenda.at(max(arrival.at_ns, self._now_ns), lambda now_ns: self._submit(arrival, now_ns))

    def _submit(self, arrival: Arrival, now_ns: int) -> None:
        spec = arrival.spec
        if not self._rules.knows_durations and spec.expected_seconds is not None:
            spec = msgspec.structs.replace(spec, expected_seconds=None)
        self._scribe.users_say(
            e.JobSubmitted(id=self._scribe.next_id(), at_ns=now_ns, tenant=spec.tenant, job=arrival.job, spec=spec)
        )
        self._tally.waits(arrival.job, now_ns)

    def _take_over(self) -> None:
        """Have those who are there already hold what they need for life, or leave."""
        asked = {job.id for job in self.state.jobs.values() if job.stage in ("placed", "running")}
        for _ in range(PASSES_MAX):
            found = decide_by(held_for_life.take_over, self.state, self._now_ns)
            if not found.events:
                break
            self._scribe.scheduler_says(*found.events)
        else:
            raise SimulationError(
                "what jobs hold as the simulation begins cannot be brought to what they are guaranteed"
            )
        self._sent_back = {job: job in asked for job in held_for_life.present(self.state)}

    def _adopt(self) -> None:
        """Go on with the jobs that the state holds."""
        unknown = [job for job in self.state.jobs if job not in self._tally.records]
        if unknown:
            raise SimulationError(
                f"the state holds jobs of which nothing is known: {', '.join(unknown[:8])}; "
                "the workload needs an arrival for each, with what is left to do"
            )
        for job in list(self.state.jobs.values()):
            if job.waiting:
                self._tally.waits(job.id, self._now_ns)
            else:
                self._world.adopt(job, self._now_ns, sent_back=self._sent_back.get(job.id, False))
        for name, node in list(self.state.nodes.items()):
            if node.status == "up":
                self._nodes.bury(name, self._now_ns)
            elif not self._comes_back(-1, name):
                self._nodes.die(name, self._now_ns)
        self._scribe.news = True

    def _happening(self, index: int, fact: e.AnyEvent) -> Callable[[int], None]:
        """Return what happens when the workload says that this fact does."""

        def happens(now_ns: int) -> None:
            if isinstance(fact, e.NodeJoined):
                self._nodes.joined(fact, self._world.held_on(fact.node), now_ns)
            elif isinstance(fact, e.NodeUnreachable):
                self._nodes.unreachable(fact, now_ns, dead=not self._comes_back(index, fact.node))
            elif isinstance(fact, e.NodeReachable):
                self._nodes.reachable(fact, now_ns)
            else:
                self._scribe.recorded(fact)

        return happens

    def _comes_back(self, index: int, node: str) -> bool:
        """Say whether a node that falls silent is back with what runs there: by what is heard of it next."""
        for fact in self._workload.facts[index + 1 :]:
            if isinstance(fact, e.NodeReachable | e.NodeJoined) and fact.node == node:
                return isinstance(fact, e.NodeReachable) or bool(fact.sandboxes)
        return False

    # ---- it goes on ----

    def _next_ns(self) -> int | None:
        """Return when something happens next, or the next round of passes is due."""
        times = [self._agenda.next_ns, self._round_ns()]
        return min((each for each in times if each is not None), default=None)

    def _round_ns(self) -> int | None:
        """Return when the next round is due by what is known now: at once for news, else when the rules asked."""
        wanted_ns = self._now_ns if self._scribe.news else self._wake_at_ns
        if wanted_ns is None or self._last_round_ns is None:
            return wanted_ns
        return max(wanted_ns, self._last_round_ns + self._costs.pass_interval_ms * MILLI_NS)

    def _round_due(self) -> bool:
        due_ns = self._round_ns()
        return due_ns is not None and due_ns <= self._now_ns

    def _round(self, watch: Watch | None) -> int:
        """Make passes until the rules have nothing more to say; return how much was decided about jobs."""
        self._scribe.news = False
        self._last_round_ns = self._now_ns
        about_jobs = 0
        for _ in range(PASSES_MAX):
            found = decide_by(self._rules.fill, self.state, self._now_ns)
            if watch is not None:
                watch(self.state)
            self._waiting = found.waiting
            if not found.events:
                if found.wake_at_ns is not None and found.wake_at_ns <= self._now_ns:
                    raise SimulationError(f"{self._rules.name} decides nothing, and asks for the next pass at once")
                self._wake_at_ns = found.wake_at_ns
                return about_jobs
            self._scribe.scheduler_says(*found.events)
            for event in found.events[1:]:
                self._decided.append(self._described(event))
                about_jobs += isinstance(event, e.Decision)
                self._world.decided(event, self._now_ns)
                if isinstance(event, e.JobSuspended | e.JobRequeued) and event.job in self._sent_back:
                    del self._sent_back[event.job]
                    held_for_life.ask_nothing(self.state, event.job)
        raise SimulationError(f"{self._rules.name} does not come to rest: {PASSES_MAX} passes at {self._now_ns} ns")

    def _described(self, event: e.AnyEvent) -> Decided:
        job = getattr(event, "job", "")
        nodes: tuple[str, ...] = ()
        if isinstance(event, e.JobPlaced):
            nodes = tuple(member.node for member in event.members)
        elif isinstance(event, e.RoomReserved):
            nodes = event.nodes
        elif node := getattr(event, "node", ""):
            nodes = (node,)
        return Decided(self._now_ns, type(event).__name__, job, nodes)


def _last_step(job: Job) -> int:
    newest = job.newest_checkpoint
    return newest.step if newest is not None else 0


def _joined(node: Node) -> e.NodeJoined:
    """Return what a node said when it joined, as far as the state keeps it."""
    return e.NodeJoined(
        id="",
        at_ns=0,
        node=node.name,
        incarnation=node.incarnation,
        capacity=node.capacity,
        levels=node.levels,
        images=dict(node.images),
        gpus=node.gpus,
        cpu_model=node.cpu_model,
        isa=node.isa,
        rack=node.rack,
        switch=node.switch,
        address=node.address,
        fetches_images=node.fetches_images,
        gpu_levels=node.gpu_levels,
    )
