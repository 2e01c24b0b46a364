"""`tidegate checkpoint pin|gc|scrub|repair`: what the checkpoint service does by itself, now and by hand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli import exits, output, text
from tidegate.cli.commands.checkpoint import JobArgument
from tidegate.cli.commands.tiers import (
    CheckpointArgument,
    Moving,
    SomeJob,
    TierOption,
    found_in,
    here,
    job_tiers,
    say,
    staging_directory,
    tenants_of,
)
from tidegate.cli.wording import short
from tidegate.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from tidegate.tiers.holding import Holding
    from tidegate.tiers.job import JobTier
    from tidegate.tiers.scrubbing import Damage
    from tidegate.tiers.tiers import Tiers


def pin(
    job: JobArgument,
    checkpoint: CheckpointArgument = None,
    reason: Annotated[str, typer.Option(help="Why, for whoever finds it.")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Let policies decide about it again.")] = False,
    as_json: output.JsonFlag = False,
) -> None:
    """Keep a checkpoint in the shared tiers whatever the retention policies say.

    \b
    Examples:
      tidegate checkpoint pin j-4k2mz7q5x3w6y2ab 4f1c09d27e --reason "the one in the paper"
      tidegate checkpoint pin j-4k2mz7q5x3w6y2ab 4f1c09d27e --remove
    """
    from tidegate.tiers import retaining  # noqa: PLC0415

    with job_tiers(job) as (tiers, tenant, held), output.Progress(f"Looking for checkpoints of {job}"):
        found = found_in(held, checkpoint, job)
        shared = [tier for tier in tiers.of_job(tenant, job) if tier.name in found.tiers]
        if not shared:
            said = f"checkpoint {short(found.root.id)} is in no shared tier yet, and the hot one keeps no pins."
            raise exits.CommandError(said, "Try again once it was promoted.", exits.FAILED)
        for tier in shared:
            if remove:
                retaining.unpin(tier, found.root.name)
            else:
                retaining.pin(tier, found.root.name, reason)
    names = [tier.name for tier in shared]
    if as_json:
        output.print_document({"checkpoint_id": found.root.id, "pinned": not remove, "tiers": names})
    else:
        print(f"checkpoint {short(found.root.id)} {'is no longer' if remove else 'is'} pinned in {', '.join(names)}.")


_COUNTED = (("retired", "retired"), ("repacked", "written again"), ("quarantined", "set apart"), ("returned", "back"))


def gc(
    job: SomeJob = None,
    keep_last: Annotated[
        int | None, typer.Option(min=1, help="First retire all but so many of each job (pinned ones stay).")
    ] = None,
    pause_seconds: Annotated[
        int, typer.Option(min=0, help="Delete what was set apart so long ago. Below an hour only when nothing moves.")
    ] = 3600,
    as_json: output.JsonFlag = False,
) -> None:
    """Set apart what no checkpoint in the shared tiers needs, and delete what was set apart a pause ago.

    \b
    Examples:
      tidegate checkpoint gc
      tidegate checkpoint gc j-4k2mz7q5x3w6y2ab --keep-last 2
    """
    from tidegate.tiers import collecting, retaining  # noqa: PLC0415

    done: list[dict[str, Any]] = []
    with output.Progress("Collecting") as progress, staging_directory() as staging:
        tiers = here()
        if not tiers.shared:
            said = "There is no shared tier here to collect in; the hot one is collected by its jobs as they save."
            raise exits.CommandError(said, "Name one with TIDEGATE_WARM or TIDEGATE_COLD.", exits.ENVIRONMENT)
        for tenant, name in tenants_of(tiers, job):
            for tier in tiers.of_job(tenant, name):
                progress.update(f"Collecting {name} in {tier.name}")
                policy = retaining.Policy(keep_last) if keep_last else None
                retired = retaining.retain(tier, policy, time.time_ns()) if policy else []
                repacked, why_not = _repacked(tier, staging)
                collected = collecting.collect(tier, int(time.time()), pause_seconds)
                found = {"retired": retired, "repacked": repacked, "repacking_failed": why_not, **collected._asdict()}
                done.append({"job_id": name, "tier": tier.name, **found})
    if as_json:
        output.print_document({"collected": done})
        return
    for each in done:
        counts = ", ".join(f"{len(each[what])} {said}" for what, said in _COUNTED)
        freed = text.size(each["deleted_bytes"])
        print(f"{each['job_id']} in {each['tier']}: {counts}, {len(each['deleted'])} deleted ({freed})")
    if not done:
        output.note("No shared tier holds anything.")


def _repacked(tier: JobTier, staging: int) -> tuple[list[str], str | None]:
    """Return the packs that were written again, or why that is not possible now: the rest is collected all the same."""
    from tidegate.tiers import repacking  # noqa: PLC0415

    try:
        done = repacking.repack(tier, staging)
        return (done.replaced, None) if done else ([], "something is being brought there")
    except CorruptCheckpointError as error:
        output.note(f"{tier.job} in {tier.name}: no pack was written again: {error}. `repair` may help.")
        return [], str(error)


def scrub(job: SomeJob = None, tier: TierOption = None, as_json: output.JsonFlag = False) -> None:
    """Read back everything in the tiers, and name what is damaged. Nothing is changed. Exit code 1 where something is.

    \b
    Examples:
      tidegate checkpoint scrub
      tidegate checkpoint scrub j-4k2mz7q5x3w6y2ab --tier cold --json
    """
    _scrub(job, tier, as_json, repair=False)


def repair(job: SomeJob = None, tier: TierOption = None, as_json: output.JsonFlag = False) -> None:
    """Read back everything in the tiers, and replace what is damaged by what another tier holds whole.

    Exit code 1 where no tier has something whole.

    \b
    Examples:
      tidegate checkpoint repair j-4k2mz7q5x3w6y2ab
    """
    _scrub(job, tier, as_json, repair=True)


def _scrub(job: str | None, only: str | None, as_json: bool, *, repair: bool) -> None:
    from tidegate.tiers.scrubbing import Scrub  # noqa: PLC0415

    tiers = here()
    if only is not None and only not in tiers.names():
        accepted = f"Accepted is one of: {', '.join(tiers.names())}."
        raise exits.CommandError(f"There is no tier {only!r} here.", accepted, exits.USAGE)
    damages: list[Damage] = []
    read = {"roots": 0, "packs": 0}
    with output.Progress("Reading the tiers") as progress:
        for tenant, name in tenants_of(tiers, job):
            with _targets(tiers, tenant, name) as (held, staging):
                for target in held:
                    if only is not None and target.name != only:
                        continue
                    others = [each for each in held if each is not target] if repair else []
                    moving = Moving(progress, f"Comparing {name} in {target.name}")
                    done = Scrub(target, others, staging, moving).run()
                    damages += done.damages
                    read = {"roots": read["roots"] + done.roots, "packs": read["packs"] + done.packs}
    whole = f"{read['roots']} checkpoints and {read['packs']} packs are whole."
    say({"job_id": job, **read}, damages, as_json, whole)


@contextmanager
def _targets(tiers: Tiers, tenant: str, job: str) -> Iterator[tuple[list[Holding], int]]:
    """Yield what holds a job's checkpoints, so that it may be repaired, and where packs are compared."""
    from tidegate.tiers.holding import HotHolding  # noqa: PLC0415

    if (tiers.hot / tenant / job).is_dir():
        with tiers.hot_store(tenant, job) as held:
            yield [HotHolding(held), *tiers.of_job(tenant, job)], held.staging
    else:
        with tiers.staging() as staging:
            yield [*tiers.of_job(tenant, job)], staging
