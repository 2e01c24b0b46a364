"""What would have been: a recorded stretch under other rules, beside the recorded policy in the same model.

Both are simulations from the same state, so they differ by their decisions alone. How far the model is from reality is
told by the calibration, and a difference that is not larger than its error is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set

import msgspec
from tidegate.cli import text
from tidegate_events import events as e
from tidegate_events.spec import JobSpec

from tidegate_scheduler.history.point import Told
from tidegate_scheduler.history.source import Source
from tidegate_scheduler.policy import registry
from tidegate_scheduler.policy.parameters import SECOND_NS, Parameters, as_parameters, as_values
from tidegate_scheduler.simulator import held_for_life, measures, report
from tidegate_scheduler.simulator.calibration import (
    Calibration,
    Numbers,
    Off,
    Pair,
    calibrate,
    mean_off,
    numbers,
    pairs,
)
from tidegate_scheduler.simulator.choice import Choice, rules_for, stated
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.divergence import Compared, first_divergence
from tidegate_scheduler.simulator.engine import simulate
from tidegate_scheduler.simulator.measured import Cost
from tidegate_scheduler.simulator.recorded import Recording
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.simulator.run import JobRun, Run

CLOCK_AHEAD_NS_MAX = SECOND_NS
"""Clocks that differ by less than this are told of nowhere."""

NOT_MODELLED = (
    "how far jobs say that they are (ProgressReported), and step rates that fall or recover",
    "nodes that refuse a member, and starts that time out",
    "times without a leader, and how long a sandbox that was given up takes to end",
    "that a job works faster or slower on another node",
)


class Change(msgspec.Struct, frozen=True):
    """The numbers of a group of jobs by the recorded policy and by the other one, both simulated.

    `off` is how far the model is from what happened to these very jobs; None: nothing that happened tells.
    """

    name: str
    recorded: Numbers
    other: Numbers
    off: Off | None


class JobChange(msgspec.Struct, frozen=True):
    """One job by the recorded policy (first) and by the other one: seconds, None where it did not end.

    `asked_s` is what its members waited to enter phases, in all, while they were placed.
    `censored`: the recording ended before the job did, or somebody cancelled it, so it may take longer. `assumed`: it
    never worked in the recording, so its work is a guess. `why`: why it did not complete, or waits still. `off` is how
    far the model is from what happened to it; None: it did not run to an end, or in another way.
    """

    job: str
    tenant: str
    outcomes: tuple[str, str]
    waiting_s: tuple[float, float]
    completion_s: tuple[float | None, float | None]
    asked_s: tuple[float, float]
    preemptions: tuple[int, int]
    lost_gpu_s: tuple[float, float]
    lost_s: tuple[float, float]
    censored: bool
    assumed: bool
    why: tuple[str, str]
    off: Off | None

    @property
    def ran(self) -> bool:
        """Say whether it ran to an end under both: who is refused or cancelled takes no time that means anything."""
        return all(outcome in measures.RAN for outcome in self.outcomes)


class WhatIf(msgspec.Struct, frozen=True):
    """The whole answer. Numbers of groups are of jobs that ran to an end under both policies and were not cut off.

    `away` are the nodes that were not there when the recording ended: they do not come back in either simulation.
    `stated` and `parameters` are those of the recorded policy and of the other one, which sets `queues`.
    """

    workload: str
    from_seq: int
    until_seq: int
    begin_ns: int
    end_ns: int
    recorded: str
    other: str
    stated: tuple[str, str]
    parameters: tuple[dict[str, int], dict[str, int]]
    queues: tuple[e.QueueChanged, ...]
    calibration: Calibration
    compared: Compared
    whole: Change
    tenants: tuple[Change, ...]
    jobs: tuple[JobChange, ...]
    left_out: tuple[str, ...]
    away: tuple[str, ...]
    notes: tuple[str, ...]
    costs: Costs
    measured: tuple[Cost, ...]


class Beside(msgspec.Struct, frozen=True):
    """The jobs of both simulations, and those that tell how far the model is from what happened."""

    same: tuple[JobRun, ...]
    other: tuple[JobRun, ...]
    alike: Sequence[Pair]


class Runs(msgspec.Struct, frozen=True):
    """What happened, and what the model makes of it under the recorded policy and under the other one."""

    happened: Run
    recorded: Run
    other: Run


async def what_if(source: Source, recording: Recording, choice: Choice, told: Told) -> tuple[WhatIf, Runs]:
    """Return what would have been under the chosen rules, and the runs that say so."""
    mine, theirs = recorded_rules(recording), other_rules(recording, choice)
    same = _simulated(recording, mine, told)
    other = _simulated(recording, theirs, told)
    compared = await first_divergence(source, recording, theirs, _as_seen(theirs), told)
    alike = pairs(recording.happened, same)
    changes = _changes(recording, same, other, alike)
    counted = {job.job for job in changes if job.ran and not job.censored}
    answer = WhatIf(
        workload=recording.workload.name,
        from_seq=recording.from_seq,
        until_seq=recording.until_seq,
        begin_ns=recording.happened.begin_ns,
        end_ns=recording.happened.end_ns,
        recorded=mine.name,
        other=theirs.name,
        stated=(stated(mine), stated(theirs)),
        parameters=(as_values(mine.parameters), as_values(theirs.parameters)),
        queues=theirs.queues,
        calibration=calibrate(recording.happened, same),
        compared=compared,
        whole=_change("all", Beside(same.jobs, other.jobs, alike), counted),
        tenants=tuple(
            _change(tenant, Beside(same.jobs, other.jobs, alike), counted & _of(tenant, same.jobs))
            for tenant in sorted({job.tenant for job in same.jobs})
        ),
        jobs=changes,
        left_out=tuple(job.job for job in changes if job.job not in counted),
        away=recording.away,
        notes=_notes(recording, theirs),
        costs=recording.costs,
        measured=recording.measured,
    )
    return answer, Runs(recording.happened, same, other)


def recorded_rules(recording: Recording) -> Rules:
    """Return the policy that decided the recording. Raises UnknownPolicyError."""
    return Rules(
        name=f"policy {recording.policy} as recorded",
        fill=registry.find(recording.policy).decide,
        parameters=recording.parameters,
        grants_phases=True,
        knows_durations=True,
        policy=recording.policy,
    )


def other_rules(recording: Recording, choice: Choice) -> Rules:
    """Return the chosen rules. What they do not say themselves is as it was recorded: parameters, and estimates."""
    queues = (fact.tenant for fact in recording.workload.facts if isinstance(fact, e.QueueChanged))
    rules = rules_for(choice, recording.workload, (*recording.begin.queues, *queues))
    own, usual = as_values(rules.parameters), as_values(Parameters())
    said = {name: value for name, value in own.items() if value != usual[name]} | choice.parameters
    return msgspec.structs.replace(
        rules,
        parameters=as_parameters(as_values(recording.parameters) | said),
        knows_durations=choice.estimates is not False,
    )


def _as_seen(rules: Rules) -> Callable[[JobSpec], JobSpec]:
    """Return how the rules see a job: without what they shall not know, and with no phases that they do not grant."""

    def seen(spec: JobSpec) -> JobSpec:
        spec = spec if rules.grants_phases else held_for_life.told(spec)
        return spec if rules.knows_durations else msgspec.structs.replace(spec, expected_seconds=None)

    return seen


def _simulated(recording: Recording, rules: Rules, told: Told) -> Run:
    """Simulate it by these rules; what was recorded of queues that they set themselves is left out."""
    own = {queue.tenant for queue in rules.queues}
    facts = recording.workload.facts
    facts = tuple(fact for fact in facts if not (isinstance(fact, e.QueueChanged) and fact.tenant in own))
    workload = msgspec.structs.replace(recording.workload, facts=facts)

    def progress(done: int, jobs: int) -> None:
        told(report.progress(rules.name), done, jobs)

    run = simulate(workload, rules, recording.costs, begin=recording.begin, told=progress)
    return msgspec.structs.replace(run, stated=stated(rules))


def _of(tenant: str, jobs: Iterable[JobRun]) -> frozenset[str]:
    return frozenset(job.job for job in jobs if job.tenant == tenant)


def _change(name: str, beside: Beside, takes: Set[str]) -> Change:
    return Change(
        name,
        recorded=numbers([job for job in beside.same if job.job in takes]),
        other=numbers([job for job in beside.other if job.job in takes]),
        off=mean_off([pair for pair in beside.alike if pair[0].job in takes]),
    )


def _changes(recording: Recording, same: Run, other: Run, alike: Sequence[Pair]) -> tuple[JobChange, ...]:
    """Return every job, those first that differ most."""
    by_other = {job.job: job for job in other.jobs}
    assumed = set(recording.assumed)
    off = {pair[0].job: mean_off([pair]) for pair in alike}
    found = [_job_change(job, by_other[job.job], job.job in assumed, off.get(job.job)) for job in same.jobs]
    return tuple(sorted(found, key=lambda job: (-_difference(job), job.job)))


def _job_change(one: JobRun, two: JobRun, assumed: bool, off: Off | None) -> JobChange:
    return JobChange(
        job=one.job,
        tenant=one.tenant,
        outcomes=(one.outcome, two.outcome),
        waiting_s=(_seconds(one.waited_ns), _seconds(two.waited_ns)),
        completion_s=(_completion_s(one), _completion_s(two)),
        asked_s=(_seconds(one.asked_ns), _seconds(two.asked_ns)),
        preemptions=(one.preemptions, two.preemptions),
        lost_gpu_s=(one.lost_gpu_ms / 1000, two.lost_gpu_ms / 1000),
        lost_s=(one.lost_ms / 1000, two.lost_ms / 1000),
        censored=one.censored,
        assumed=assumed,
        why=(report.why(one), report.why(two)),
        off=off,
    )


def _completion_s(job: JobRun) -> float | None:
    return None if job.ended_ns is None else _seconds(job.ended_ns - job.submitted_ns)


def _difference(job: JobChange) -> float:
    """Return by how much a job differs, in seconds; one that ends under one policy only differs most."""
    if job.outcomes[0] != job.outcomes[1]:
        return float("inf")
    before, after = job.completion_s
    ended = abs(after - before) if before is not None and after is not None else 0.0
    return max(ended, abs(job.waiting_s[1] - job.waiting_s[0]))


def _seconds(time_ns: int) -> float:
    return round(time_ns / SECOND_NS, 3)


def _notes(recording: Recording, theirs: Rules) -> tuple[str, ...]:
    """Return what is to be known of this recording before its simulation is believed."""
    notes = []
    cut_off = sum(
        arrival.truth.censored and arrival.job not in recording.assumed for arrival in recording.workload.arrivals
    )
    if cut_off > 0:
        notes.append(
            f"cut off (the recording ended, or somebody cancelled), may take longer: {text.count(cut_off, 'job')}"
        )
    if recording.assumed:
        assumed = text.count(len(recording.assumed), "job")
        notes.append(f"never worked in the recording, so how long it takes is assumed: {assumed}")
    if recording.clock_ahead_ns > CLOCK_AHEAD_NS_MAX:
        ahead = text.span(recording.clock_ahead_ns / SECOND_NS)
        notes.append(
            f"somebody's clock was ahead of the scheduler's by {ahead}: what it told counts at the scheduler's time"
        )
    if recording.policies > 1:
        notes.append(f"{recording.policies} policies decided the recording: calibrated is the one that decided most")
    if not theirs.grants_phases and any(arrival.spec.phase_entry == "asked" for arrival in recording.workload.arrivals):
        notes.append("the other policy grants no phases: jobs that ask for them hold the most that any phase needs")
    if any(span.cpu_bound for arrival in recording.workload.arrivals for span in arrival.truth.spans):
        notes.append("phases that may have more CPU than they need at least are taken to go as much faster with it")
    return tuple(notes)
