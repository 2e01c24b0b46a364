"""Every claim of the demo as a check on what was seen. Pure: no I/O, so that the checks themselves can be tested."""

from __future__ import annotations

import msgspec

from tidegate_local.demo.observed import Entry, Observed, TraceSeen

SOLVED_RETURN = 195.0
EVALUATION_EPISODES_MIN = 100
HIGH_SPANS = frozenset({"submit", "queue", "attempt", "start", "sandbox", "phase sampling", "phase learning", "end"})
LOW_SPANS = HIGH_SPANS | {"preempt", "save", "suspend", "resume", "restore"}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One claim: whether it holds, and the numbers that say so."""

    claim: str
    ok: bool
    detail: str


def check_all(seen: Observed) -> list[Check]:
    """Return every check, in the order in which the story happens."""
    return [
        _completed(seen, seen.low, "low"),
        _completed(seen, seen.high, "high"),
        _learnt(seen, seen.low, "low"),
        _learnt(seen, seen.high, "high"),
        _preempted_once(seen),
        _high_undisturbed(seen),
        _saved_before_suspended(seen),
        _resumed_exactly(seen),
        _never_beside(seen),
        _quotas_followed_phases(seen),
        *([_kernel_obeyed(seen)] if seen.level != "unisolated" else []),
        _isolated_as_asked(seen),
        _history_verified(seen),
        _read_models_followed(seen),
        _traced(seen, seen.low, "low", LOW_SPANS),
        _traced(seen, seen.high, "high", HIGH_SPANS),
        *_commands_worked(seen),
    ]


def _completed(seen: Observed, job: str, name: str) -> Check:
    state = seen.jobs.get(job, {}).get("state")
    return Check(claim=f"the {name} job completed", ok=state == "completed", detail=f"state {state}")


def _learnt(seen: Observed, job: str, name: str) -> Check:
    result = seen.jobs.get(job, {}).get("result") or {}
    mean, episodes = result.get("mean_return"), result.get("episodes")
    ok = isinstance(mean, (int, float)) and mean >= SOLVED_RETURN and (episodes or 0) >= EVALUATION_EPISODES_MIN
    claim = f"the {name} job reached a mean return of {SOLVED_RETURN:g} over {EVALUATION_EPISODES_MIN} episodes"
    return Check(claim=claim, ok=ok, detail=f"mean return {mean} over {episodes} episodes")


def _preempted_once(seen: Observed) -> Check:
    requests = seen.of(seen.low, "PreemptRequested")
    ok = len(requests) == 1 and requests[0].data.get("for_job") == seen.high
    return Check(
        claim="the low job was asked once to make room, for the high one, with a grace period",
        ok=ok and requests[0].data.get("grace_seconds", 0) > 0,
        detail=f"{len(requests)} requests, grace {[entry.data.get('grace_seconds') for entry in requests]} s",
    )


def _high_undisturbed(seen: Observed) -> Check:
    requests = seen.of(seen.high, "PreemptRequested", "JobSuspended", "JobRequeued")
    return Check(claim="the high job ran through", ok=not requests, detail=f"{len(requests)} interruptions")


def _saved_before_suspended(seen: Observed) -> Check:
    asked, suspended = seen.of(seen.low, "PreemptRequested"), seen.of(seen.low, "JobSuspended")
    detail = f"{len(suspended)} suspensions"
    ok = False
    if asked and len(suspended) == 1:
        named = suspended[0].data.get("checkpoint_id")
        saved = [
            entry
            for entry in seen.of(seen.low, "CheckpointSaved")
            if entry.data["checkpoint"]["id"] == named and _at(asked[0]) < _at(entry) < _at(suspended[0])
        ]
        ok = len(saved) == 1 and bool(suspended[0].data.get("acknowledged"))
        layers = [layer["name"] for entry in saved for layer in entry.data["checkpoint"].get("layers", [])]
        detail = (
            f"checkpoint {named} with layers {', '.join(layers)}, acknowledged {suspended[0].data.get('acknowledged')}"
        )
        ok = ok and set(layers) == {"model", "optimizer", "experience", "state"}
    return Check(claim="it saved a layered checkpoint, then said so and left", ok=ok, detail=detail)


def _resumed_exactly(seen: Observed) -> Check:
    suspended, resumed = seen.of(seen.low, "JobSuspended"), seen.of(seen.low, "JobResumed")
    if len(suspended) != 1 or len(resumed) != 1:
        return Check(
            claim="it resumed at the step it had saved",
            ok=False,
            detail=f"{len(suspended)} suspensions, {len(resumed)} resumes",
        )
    step, lost = suspended[0].data.get("step"), suspended[0].data.get("lost_steps", 0)
    job = seen.jobs[seen.low]
    ok = (
        step == resumed[0].data.get("step") == job.get("resumed_step")
        and resumed[0].data.get("checkpoint_id") == suspended[0].data.get("checkpoint_id")
        and lost == 0
        and job.get("lost_steps") == 0
    )
    detail = f"saved at step {step}, resumed at step {resumed[0].data.get('step')}, {job.get('lost_steps')} steps lost"
    return Check(claim="it resumed at the step it had saved", ok=ok, detail=detail)


def _never_beside(seen: Observed) -> Check:
    """Sandboxes of both jobs must never have been alive at once, for they do not fit beside each other."""
    alive: set[str] = set()
    together = 0
    for entry in seen.events:
        if entry.kind == "SandboxStarted":
            alive.add(entry.job_id)
            together += len(alive) > 1
        elif entry.kind == "SandboxExited":
            alive.discard(entry.job_id)
    return Check(claim="they never ran beside each other", ok=not together, detail=f"{together} overlaps")


def _quotas_followed_phases(seen: Observed) -> Check:
    levels: dict[str, set[int]] = {}
    enforced = True
    applied = seen.of(seen.low, "QuotaApplied")
    for entry in applied:
        enforced = enforced and bool(entry.data.get("enforced", True))
        for quota in entry.data["quotas"]:
            levels.setdefault(quota["component"], set()).add(quota["cpu_millis"])
    moved = all(len(levels.get(component, ())) > 1 for component in ("simulator", "learner"))
    ok = moved and (enforced or seen.level == "unisolated")
    detail = f"{len(applied)} changes, CPU in thousandths: {_spread(levels)}, enforced {enforced}"
    return Check(claim="CPU moved between simulators and learner with the phases", ok=ok, detail=detail)


def _kernel_obeyed(seen: Observed) -> Check:
    levels: dict[str, set[int]] = {}
    for quota in seen.kernel.get(seen.low, set()):
        levels.setdefault(quota.component, set()).add(quota.cpu_millis)
    ok = all(len(levels.get(component, ())) > 1 for component in ("simulator", "learner"))
    return Check(claim="the kernel's cgroup files show it", ok=ok, detail=f"CPU in thousandths: {_spread(levels)}")


def _isolated_as_asked(seen: Observed) -> Check:
    levels = {entry.data.get("level") for entry in seen.events if entry.kind == "SandboxStarted"}
    return Check(
        claim=f"every sandbox ran at level {seen.level}",
        ok=levels == {seen.level},
        detail=f"levels {sorted(map(str, levels))}",
    )


def _history_verified(seen: Observed) -> Check:
    report = seen.verification
    decisions, verified = report.get("decisions", 0), report.get("decisions_verified", -1)
    ok = bool(report.get("ok")) and decisions == verified and decisions > 0
    detail = f"{report.get('passes')} passes, {verified} of {decisions} decisions recomputed and equal"
    return Check(claim="history verifies, bit for bit", ok=ok, detail=detail)


def _commands_worked(seen: Observed) -> list[Check]:
    return [
        Check(claim=f"`{' '.join(run.argv)}` works", ok=run.exit_code == 0, detail=f"exit code {run.exit_code}")
        for run in seen.commands
    ]


def _read_models_followed(seen: Observed) -> Check:
    models = seen.read_models
    newest = max((entry.seq for entry in seen.events), default=0)
    ok = models.lag_frames == 0 and models.seq >= newest > 0
    detail = f"generation {models.generation} is at frame {models.seq} of {models.head_seq}"
    return Check(claim="the read models in PostgreSQL followed to the last event", ok=ok, detail=detail)


def _traced(seen: Observed, job: str, name: str, expected: frozenset[str]) -> Check:
    trace = seen.traces.get(job, TraceSeen(names={}, roots=0))
    missing = sorted(expected - set(trace.names))
    detail = f"{trace.spans} spans, {trace.roots} of them roots" + (f", none of {missing}" if missing else "")
    return Check(claim=f"the {name} job's whole life is one trace", ok=not missing and trace.roots == 1, detail=detail)


def _at(entry: Entry) -> tuple[int, int]:
    return entry.seq, entry.index


def _spread(levels: dict[str, set[int]]) -> str:
    return "; ".join(f"{component} {sorted(values)}" for component, values in sorted(levels.items())) or "none"
