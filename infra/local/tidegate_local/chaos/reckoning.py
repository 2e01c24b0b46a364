"""The one line that a chaos run ends with: what was promised, what became of it, and whether that is all right."""

from __future__ import annotations

from collections import Counter

import msgspec

from tidegate_local.chaos import records
from tidegate_local.chaos.history import percentile, takeover_ms
from tidegate_local.chaos.run import ENDED, Outcome

NAMED_MAX = 20


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What `tidegate history verify --json` says; `refused`: what it said instead, where it could not be asked."""

    ok: bool = False
    decisions: int = 0
    decisions_verified: int = 0
    refused: str = ""


class Report(msgspec.Struct, kw_only=True):
    """The result of a run. The first five after `found` must be 0, and every decision verified."""

    seed: int
    acked: int
    found: int
    lost: int
    duplicated: int
    double_starts: int
    leaked_sandboxes: int
    stuck_jobs: int
    decisions: int
    decisions_verified: int
    verified: bool
    takeovers: int
    takeover_ms_p99: int | None
    takeover_ms: list[int]
    jobs_completed: int
    jobs_failed: int
    unanswered: int
    preemptions: int
    runs: int
    kills: dict[str, int]
    stops: dict[str, int]
    faults_skipped: int
    journal_full_refusals: int
    refusals: dict[str, int]
    generations: int
    frames: int
    drain_seconds: float
    trouble: list[str]

    @property
    def ok(self) -> bool:
        """Say whether nothing was lost, doubled, leaked or stuck, no job failed, and every decision was verified."""
        wrong = (
            self.lost
            + self.duplicated
            + self.double_starts
            + self.leaked_sandboxes
            + self.stuck_jobs
            + self.jobs_failed
        )
        return wrong == 0 and self.verified and 0 < self.decisions == self.decisions_verified


def reckon(seed: int, outcome: Outcome, verified: Verified, leftovers: list[str]) -> Report:
    """Return the report; `leftovers` is what was still there when the stack had been taken down."""
    history = outcome.history
    found = {name: job for name, job in outcome.acked.items() if job in history.submissions}
    lost = sorted(outcome.acked.keys() - found.keys())
    doubles = [f"{each.name}: {each.what}" for each in records.started_twice(outcome.runs)] + _beside_history(outcome)
    leaked = [*outcome.left, *leftovers]
    stuck = [f"{name} is {state}" for name, state in outcome.states.items() if state not in ENDED]
    ends = Counter(history.ends.get(job, "") for job in outcome.acked.values())
    failed = [name for name, job in found.items() if history.ends.get(job, "JobCompleted") != "JobCompleted"]
    took = takeover_ms(outcome.hits, history.elected)
    named = {"lost": lost, "twice": history.written_twice, "started twice": doubles, "left": leaked}
    named |= {"stuck": stuck, "failed": failed, "not verified": [verified.refused] if verified.refused else []}
    return Report(
        seed=seed,
        acked=len(outcome.acked),
        found=len(found),
        lost=len(lost),
        duplicated=len(history.written_twice),
        double_starts=len(doubles),
        leaked_sandboxes=len(leaked),
        stuck_jobs=len(stuck),
        decisions=verified.decisions,
        decisions_verified=verified.decisions_verified,
        verified=verified.ok,
        takeovers=max(0, len(history.elected) - 1),
        takeover_ms_p99=percentile(took, 99),
        takeover_ms=took,
        jobs_completed=ends["JobCompleted"],
        jobs_failed=len(failed),
        unanswered=len(outcome.unanswered),
        preemptions=history.preemptions,
        runs=len(outcome.runs),
        kills=_count(outcome, {"kill", "restart"}),
        stops=_count(outcome, {"stop", "fill"}),
        faults_skipped=outcome.skipped,
        journal_full_refusals=outcome.refusals["journal_full"],
        refusals=dict(outcome.refusals),
        generations=history.generations,
        frames=history.frames,
        drain_seconds=round(outcome.drain_seconds, 1),
        trouble=[f"{what}: {each}" for what, every in named.items() for each in every[:NAMED_MAX]],
    )


def _beside_history(outcome: Outcome) -> list[str]:
    """Return starts that the journal has twice, and runs that it does not know: nobody placed them."""
    history = outcome.history
    twice = [f"{key}: started twice in the journal" for key, count in history.started.items() if count > 1]
    unplaced = [
        f"{run.name}: attempt {run.attempt} rank {run.rank} ran and was never placed"
        for run in outcome.runs
        if not any((job, run.attempt) in history.placed for job in history.names.get(run.name, ()))
    ]
    return [*twice, *unplaced]


def _count(outcome: Outcome, what: set[str]) -> dict[str, int]:
    return dict(sorted(Counter(hit.name for hit in outcome.hits if hit.what in what).items()))
