"""`tidegate simulate`: a recorded workload in virtual time, under the elastic policy or one to compare it with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from tidegate.cli import exits, output
from tidegate.cli.exits import CommandError

from tidegate_scheduler.policy.parameters import as_values
from tidegate_scheduler.simulator import choice, picture, report
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.engine import simulate as make_run
from tidegate_scheduler.simulator.errors import InputError, SimulationError
from tidegate_scheduler.simulator.run import Run
from tidegate_scheduler.simulator.traces import find, nodespec

TraceOption = Annotated[Path, typer.Option("--trace", metavar="FILE", help="The workload: a CSV file, or JSON.")]
NodesOption = Annotated[
    str, typer.Option("--nodes", metavar="SPEC", help="8x8, 8x(cpu=32,gpus=4,memory=128G), or a node list CSV.")
]
PolicyOption = Annotated[
    str, typer.Option("--policy", metavar="FILE|NAME", help="elastic, a baseline, or a JSON file that says more.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of the failures of nodes.")]
CostsOption = Annotated[Path | None, typer.Option("--costs", metavar="FILE", help="What things take, as JSON.")]
PictureOption = Annotated[Path | None, typer.Option("--picture", metavar="FILE", help="Draw it: .png or .svg.")]


def simulate(  # noqa: PLR0917 - typer calls it by name, one argument for each option
    trace: TraceOption,
    nodes: NodesOption,
    policy: PolicyOption = choice.ELASTIC,
    seed: SeedOption = 0,
    costs: CostsOption = None,
    picture_file: PictureOption = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Simulate a workload in virtual time: the scheduler's own core, on a cluster that is a model.

    The same input and seed give the same result, to the byte. Nothing is written but the picture that is asked for.

    Exit code 2: an input cannot be used; the message says which, why, and what is accepted.

    \b
    Examples:
      tidegate simulate --trace muri_trace1_pr.csv --nodes 8x8
      tidegate simulate --trace philly.csv --nodes 64x8 --policy tiresias --json
      tidegate simulate --trace pods.csv --nodes node_list.csv --policy elastic.json --picture run.png
    """
    run, asked = _run(trace, nodes, policy, seed, costs, picture_file)
    if as_json:
        output.print_document(report.document(run, asked))
    else:
        output.show(*report.lines(run, asked))
    if picture_file is not None:
        picture.draw([run], picture_file)


def _run(  # noqa: PLR0917 - the options of the command
    trace: Path, nodes: str, policy: str, seed: int, costs: Path | None, picture_file: Path | None
) -> tuple[Run, report.Asked]:
    """Return the run, and what it was asked for with. Raises CommandError for an input that cannot be used."""
    try:
        if picture_file is not None:
            picture.check(picture_file)
        chosen = choice.choose(policy)
        stated = Costs() if costs is None else choice.costs_in(costs)
        cluster = nodespec.parse(nodes)
        with output.Progress(f"Reading {trace}") as progress:
            workload = find.read(trace, cluster)

            def told(done: int, jobs: int) -> None:
                progress.update(report.progress(workload.name), done, jobs)

            told(0, len(workload.arrivals))
            rules = choice.rules_for(chosen, workload)
            run = make_run(workload, rules, stated, seed=seed, told=told)
    except InputError as error:
        raise CommandError(f"{error}.", exit_code=exits.USAGE) from error
    except SimulationError as error:
        raise CommandError(f"{error}.", exit_code=exits.FAILED) from error
    run = msgspec.structs.replace(run, stated=choice.stated(rules))
    return run, report.Asked(len(cluster), nodes, as_values(rules.parameters), rules.knows_durations, rules.queues)
