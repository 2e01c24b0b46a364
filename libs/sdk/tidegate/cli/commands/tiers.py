"""`tidegate checkpoint show|verify|diff|export|pin|gc|scrub|repair`: what lies in the tiers, read there directly.

They need the rights to read (and for pin, gc and repair to write) the tiers, and no gateway.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli import exits, output, text
from tidegate.cli.commands.checkpoint import JobArgument
from tidegate.cli.wording import short
from tidegate.errors import UsageError

if TYPE_CHECKING:
    from tidegate.tiers.holding import Holding
    from tidegate.tiers.reading import Found
    from tidegate.tiers.scrubbing import Damage
    from tidegate.tiers.tiers import Tiers

CheckpointArgument = Annotated[
    str | None,
    typer.Argument(metavar="[CHECKPOINT]", help="Its id or the beginning of it, or its name. Default: the newest."),
]
TierOption = Annotated[str | None, typer.Option("--tier", help="Only this tier: hot, warm or cold.")]
SomeJob = Annotated[
    str | None, typer.Argument(metavar="[JOB]", help="Only this job. Default: all that the tiers hold.")
]
PATHS_SHOWN = 20


def here() -> Tiers:
    """Return the tiers that TIDEGATE_* variables name, else those of the local stack; none of them is made.

    Raises CommandError where one that is named is not there, or none is there at all: an answer about nothing would
    look like one about tiers in which nothing is wrong.
    """
    from tidegate.client.endpoint import stack_home  # noqa: PLC0415
    from tidegate.tiers.tiers import Tiers, from_environment  # noqa: PLC0415

    for variable in ("TIDEGATE_HOT_DIR", "TIDEGATE_WARM", "TIDEGATE_COLD"):
        named = os.environ.get(variable, "")
        if named.startswith("/") and not Path(named).is_dir():
            said = f"{variable}={named} is no directory here: the tier is not mounted, or its name is wrong."
            raise exits.CommandError(said, _WHERE, exits.ENVIRONMENT)
    try:
        settings = from_environment(os.environ, stack_home())
        tiers = Tiers(settings, make=False)
    except ValueError as error:
        raise exits.CommandError(f"{error}.", _WHERE, exits.USAGE) from error
    if not tiers.shared and not tiers.hot.is_dir():
        raise exits.CommandError(
            f"There are no checkpoint tiers here: {tiers.hot} is not there.", _WHERE, exits.NOT_FOUND
        )
    return tiers


def tenants_of(tiers: Tiers, job: str | None) -> list[tuple[str, str]]:
    """Return (tenant, job) of one job, or of all that some tier holds."""
    if job is None:
        return tiers.all_jobs()
    try:
        return [(tiers.find_job(job), job)]
    except UsageError as error:
        raise exits.CommandError(str(error), _WHERE, exits.NOT_FOUND) from error


@contextmanager
def job_tiers(job: str) -> Iterator[tuple[Tiers, str, list[Holding]]]:
    """Yield the tiers, the job's tenant and what holds its checkpoints."""
    tiers = here()
    ((tenant, _),) = tenants_of(tiers, job)
    with tiers.holdings(tenant, job) as held:
        yield tiers, tenant, held


_WHERE = "The tiers are named by TIDEGATE_HOT_DIR, TIDEGATE_WARM and TIDEGATE_COLD, or TIDEGATE_HOME."


def found_in(held: Sequence[Holding], wanted: str | None, job: str) -> Found:
    from tidegate.tiers import reading  # noqa: PLC0415

    try:
        return reading.chosen(reading.known(held), wanted, job)
    except UsageError as error:
        raise exits.CommandError(str(error), exit_code=exits.NOT_FOUND) from error


def only_tier(held: Sequence[Holding], tier: str | None) -> list[Holding]:
    chosen = [each for each in held if tier is None or each.name == tier]
    if not chosen:
        there = ", ".join(each.name for each in held)
        raise exits.CommandError(f"No tier {tier!r} holds this job.", f"Accepted is one of: {there}.", exits.NOT_FOUND)
    return chosen


class Moving:
    """Progress over bytes whose number is not known before."""

    def __init__(self, progress: output.Progress, what: str) -> None:
        self._progress, self._what, self._done = progress, what, 0

    def __call__(self, size_bytes: int) -> None:
        self._done += size_bytes
        self._progress.update(f"{self._what}: {text.size(self._done)} read")


def show(job: JobArgument, checkpoint: CheckpointArgument = None, as_json: output.JsonFlag = False) -> None:
    """Show one checkpoint: its layers, where it came from, and which tiers hold it whole.

    \b
    Examples:
      tidegate checkpoint show j-4k2mz7q5x3w6y2ab
      tidegate checkpoint show j-4k2mz7q5x3w6y2ab 4f1c09d27e --json | jq .tiers
    """
    from tidegate.tiers.holding import missing_of  # noqa: PLC0415
    from tidegate.tiers.retaining import pins  # noqa: PLC0415

    with job_tiers(job) as (tiers, tenant, held), output.Progress(f"Looking for checkpoints of {job}"):
        found = found_in(held, checkpoint, job)
        root = found.root
        missing = {each.name: missing_of(each, root) for each in held if each.name in found.tiers}
        pinned = sorted(tier.name for tier in tiers.of_job(tenant, job) if root.name in pins(tier))
    layers = [
        {
            "name": layer.name,
            "kind": layer.kind,
            "size_bytes": layer.bytes,
            "manifest": layer.manifest,
            "packs": list(layer.packs),
            "parent": layer.parent,
        }
        for layer in root.layers
    ]
    document = {
        "job_id": job,
        "tenant": tenant,
        "checkpoint_id": root.id,
        "name": root.name,
        "step": root.step,
        "attempt": root.stamp.attempt,
        "rank": root.stamp.rank,
        "created_ns": root.created_ns,
        "predecessor": root.predecessor,
        "lost": list(root.lost),
        "size_bytes": root.bytes,
        "layers": layers,
        "tiers": missing,
        "pinned": pinned,
    }
    if as_json:
        output.print_document(document)
        return
    print(f"checkpoint {root.id} of {job}, step {root.step}, {text.since(root.created_ns, time.time_ns())} old")
    output.show(_shown(document))
    for name, why in missing.items():
        print(f"{name}: {'; '.join(why) or 'has all of it'}{', pinned' if name in pinned else ''}")
    if root.lost:
        print(f"Not saved in time: {', '.join(root.lost)}")


def _shown(document: dict[str, Any]) -> Any:
    table = output.table()
    for name in ("LAYER", "KIND", "SIZE", "PACKS", "MANIFEST"):
        table.add_column(name, justify="right" if name in ("SIZE", "PACKS") else "left")
    for layer in document["layers"]:
        size, packs = text.size(layer["size_bytes"]), str(len(layer["packs"]))
        table.add_row(layer["name"], layer["kind"], size, packs, short(layer["manifest"]))
    return table


def verify(
    job: JobArgument, checkpoint: CheckpointArgument = None, tier: TierOption = None, as_json: output.JsonFlag = False
) -> None:
    """Read every byte of a checkpoint in each tier that has it, and compare it. Exit code 1 where something is damaged.

    \b
    Examples:
      tidegate checkpoint verify j-4k2mz7q5x3w6y2ab
      tidegate checkpoint verify j-4k2mz7q5x3w6y2ab 4f1c09d27e --tier cold
    """
    from tidegate.tiers.scrubbing import Scrub  # noqa: PLC0415

    damages: list[Damage] = []
    with job_tiers(job) as (_, _, held), staging_directory() as staging, output.Progress(f"Reading {job}") as progress:
        found = found_in(held, checkpoint, job)
        read = [each for each in only_tier(held, tier) if each.name in found.tiers]
        for each in read:
            moving = Moving(progress, f"Comparing {each.name}")
            damages += Scrub(each, [], staging, moving).run({found.root.name}).damages
    document = {"job_id": job, "checkpoint_id": found.root.id, "tiers": [each.name for each in read]}
    say(document, damages, as_json, f"checkpoint {short(found.root.id)} is whole in {', '.join(document['tiers'])}.")


@contextmanager
def staging_directory() -> Iterator[int]:
    with tempfile.TemporaryDirectory(prefix="tidegate-") as directory:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def say(document: dict[str, Any], damages: Sequence[Damage], as_json: bool, whole: str) -> None:
    if as_json:
        output.print_document({**document, "damages": [each._asdict() for each in damages]})
    elif not damages:
        print(whole)
    for each in () if as_json else damages:
        repaired = f"repaired from {each.repaired_from}" if each.repaired_from else "not repaired"
        print(f"{each.tier}: {each.what}: {each.why} ({repaired})")
    if any(each.repaired_from is None for each in damages):
        raise typer.Exit(exits.FAILED)


def diff(
    job: JobArgument,
    first: Annotated[str, typer.Argument(metavar="A", help="A checkpoint, as in `show`.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one of the same job.")],
    as_json: output.JsonFlag = False,
) -> None:
    """Say which layers, tensors and files differ between two checkpoints; no content is read.

    \b
    Examples:
      tidegate checkpoint diff j-4k2mz7q5x3w6y2ab 4f1c09d27e 93ab00c412
    """
    from tidegate.tiers import comparing  # noqa: PLC0415

    with job_tiers(job) as (_, _, held), output.Progress(f"Reading manifests of {job}"):
        before, after = found_in(held, first, job), found_in(held, second, job)
        found = comparing.diff(before.root, after.root, held)
    if as_json:
        layers = [each._asdict() for each in found]
        output.print_document({"job_id": job, "a": before.root.id, "b": after.root.id, "layers": layers})
        return
    for each in found:
        shared = f", {text.size(each.shared_bytes)} of {text.size(each.size_bytes)} shared"
        print(f"{each.name}: {each.status}{shared if each.status == 'changed' else ''}")
        for sign, paths in (("+", each.added), ("-", each.removed), ("~", each.changed)):
            for path in paths[:PATHS_SHOWN]:
                print(f"  {sign} {path}")
            if len(paths) > PATHS_SHOWN:
                print(f"  {sign} and {len(paths) - PATHS_SHOWN} more (--json names all)")


def export(
    job: JobArgument,
    checkpoint: CheckpointArgument = None,
    safetensors: Annotated[Path | None, typer.Option("--safetensors", help="Write this file.")] = None,
    layer: Annotated[str, typer.Option(help="The layer whose tensors are written.")] = "model",
    as_json: output.JsonFlag = False,
) -> None:
    """Write the tensors of a layer as a safetensors file, each byte compared first.

    \b
    Examples:
      tidegate checkpoint export j-4k2mz7q5x3w6y2ab --safetensors model.safetensors
    """
    from tidegate.tiers import exporting, reading  # noqa: PLC0415

    if safetensors is None:
        raise exits.CommandError("No file to write was named.", "Accepted is --safetensors FILE.", exits.USAGE)
    target = safetensors.expanduser().absolute()
    with job_tiers(job) as (tiers, tenant, held), output.Progress(f"Reading {layer} of {job}") as progress:
        found = found_in(held, checkpoint, job)
        wanted = reading.Wanted(tenant, job, found.root, [layer], target.parent)
        moving = Moving(progress, "Fetching")
        try:
            done = reading.read_from(
                tiers, wanted, lambda store: exporting.export(store, found.root, layer, target), moving
            )
        except OSError as error:
            why = error if isinstance(error, FileExistsError) else error.strerror
            raise exits.CommandError(f"{target} was not written: {why}.", exit_code=exits.ENVIRONMENT) from error
    if as_json:
        output.print_document({"checkpoint_id": found.root.id, "file": str(target), **done._asdict()})
    else:
        print(f"{target}: {done.tensors} tensors, {text.size(done.size_bytes)}")
        if done.left_out:
            output.note(f"Left out, since they are no tensors: {', '.join(done.left_out[:PATHS_SHOWN])}")
