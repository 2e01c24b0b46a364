"""`tidegate history state` and `why`: the cluster at a point, and why a job was as it was."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from tidegate.cli import line, moments, output, text
from tidegate_events.resources import Resources

from tidegate_scheduler.history.cluster import ClusterThen, Held, NodeThen, Waiting, cluster_at
from tidegate_scheduler.history.commands.asking import FileOption, HomeOption, ask, moment
from tidegate_scheduler.history.commands.looking import event_table
from tidegate_scheduler.history.commands.looks import facts, plain, rows
from tidegate_scheduler.history.point import Told, reach_known
from tidegate_scheduler.history.shares import Share
from tidegate_scheduler.history.source import Source
from tidegate_scheduler.history.why import Why, why
from tidegate_scheduler.policy.outlook import Verdict

STORY_SHOWN_MAX = 30

AtOption = Annotated[str | None, typer.Option("--at", metavar="WHEN", help="The moment; without it, history's end.")]


def state(
    at: AtOption = None,
    file: FileOption = None,
    home: HomeOption = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Show the whole cluster as the scheduler saw it at a moment: nodes, who held what, who waited and why.

    WHEN is a sequence (the state right after it), a date with its zone, Unix nanoseconds, or a span before now: -10m.
    A time is the scheduler's own. Exit code 4: the moment is not in this history.

    \b
    Examples:
      tidegate history state --at -10m
      tidegate history state --at 48211
      tidegate history state --at 2026-11-29T03:00:00Z --json | jq '.nodes[] | {node, free}'
      tidegate history state --at -90s --file incident.tgj
    """

    async def question(source: Source, told: Told) -> ClusterThen:
        return cluster_at(await reach_known(source, await moment(source, at, "--at"), told))

    then = ask(file, home, "Folding history", question)
    if as_json:
        output.print_document(msgspec.to_builtins(then))
        return
    output.show(
        facts(
            {
                "after": f"sequence {then.seq}, {moments.stamp(then.at_ns)}",
                "led by": f"epoch {then.epoch}, policy {then.policy}, generation {then.generation}",
                "jobs": _counts(then.jobs),
                "ended": _counts(then.ended),
                "digest": then.state_digest,
            }
        )
    )
    output.show("", _nodes(then.nodes))
    held = [(node.node, one) for node in then.nodes for one in node.holds]
    if held:
        output.show("", _held(held))
    if then.queue:
        output.show("", _line(then.queue, then.at_ns), line.LEGEND)
    if then.waiting > len(then.queue):
        output.note(f"{then.waiting - len(then.queue)} more wait.")


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def amount(resources: Resources) -> str:
    """Return an amount in words."""
    gpus = f" {resources.gpus} GPU" if resources.gpus else ""
    return f"{text.cpus(resources.cpu_millis)} CPU {text.mib(resources.memory_mib)}{gpus}"


def _nodes(nodes: tuple[NodeThen, ...]) -> Any:
    return rows(
        ("NODE", "STATUS", "LEVELS", "HAS", "FREE", "MEMBERS", "LEFTOVERS"),
        (
            (
                node.node,
                node.status,
                ",".join(node.levels),
                amount(node.capacity),
                amount(node.free),
                str(len(node.holds)),
                text.cell(" ".join(node.leftovers)),
            )
            for node in nodes
        ),
        wraps="LEFTOVERS",
    )


def _held(held: list[tuple[str, Held]]) -> Any:
    return rows(
        ("NODE", "JOB", "PRIO", "STAGE", "ATTEMPT", "RANK", "MEMBER", "PHASE", "KEPT FOR IT", "LIMITS"),
        (
            (
                node,
                one.job,
                str(one.priority),
                one.stage,
                str(one.attempt),
                str(one.rank),
                one.status,
                one.phase,
                amount(one.floor),
                ", ".join(f"{q.component} {text.cpus(q.cpu_millis)} CPU {text.mib(q.memory_mib)}" for q in one.quotas),
            )
            for node, one in held
        ),
        wraps="LIMITS",
    )


def _line(queue: tuple[Waiting, ...], at_ns: int) -> Any:
    return rows(
        ("POSITION", "JOB", "TENANT", "PRIO", "STATE", "WAITS", "START", "REASON"),
        (
            (
                str(one.position),
                one.job,
                one.tenant,
                str(one.priority),
                one.state,
                text.since(one.submitted_ns, at_ns),
                line.start(msgspec.to_builtins(one), at_ns),
                text.reasons([msgspec.to_builtins(reason) for reason in one.reasons]),
            )
            for one in queue
        ),
        wraps="REASON",
    )


def why_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")],
    at: AtOption = None,
    file: FileOption = None,
    home: HomeOption = None,
    as_json: output.JsonFlag = False,
) -> None:
    """Say why a job waits, or ran where it ran, was resized, was asked to leave: at a moment, with the numbers.

    From the reasons that were recorded; and decided again on the state of that moment: what was short on each node,
    who was in front, the earliest start, who shares the CPU. Exit code 4: nobody knew the job then.

    \b
    Examples:
      tidegate history why j-4k2mz7q5x3w6y2ab
      tidegate history why j-4k2mz7q5x3w6y2ab --at 48211
      tidegate history why j-4k2mz7q5x3w6y2ab --at -10m --json | jq '.waits.nodes'
      tidegate history why j-4k2mz7q5x3w6y2ab --file incident.tgj
    """

    async def question(source: Source, told: Told) -> Why:
        return await why(source, job, await moment(source, at, "--at"), told)

    found = ask(file, home, f"Looking for {job}", question)
    if as_json:
        output.print_document(msgspec.to_builtins(found))
    else:
        _show_why(found)


def _show_why(found: Why) -> None:
    output.show(
        facts(
            {
                "job": found.job,
                "state": f"{found.state}, after sequence {found.seq}, {moments.stamp(found.at_ns)}",
                "why": found.answer,
            }
        )
    )
    if found.waits is not None:
        starts = line.start_in_words(msgspec.to_builtins(found.waits.place), found.at_ns)
        output.show(plain(f"number {found.waits.place.position} of {found.waits.in_line} in line; {starts}"))
        output.show("", _verdicts(found.waits.nodes))
        if found.waits.in_front:
            output.show("", plain("in front of it", "bold"), _line(found.waits.in_front, found.at_ns))
    if found.placed is not None:
        _show_decision(f"attempt {found.placed.decision['attempt']} was placed", found.placed.decision)
        if found.placed.nodes:
            output.show(plain(f"what each node meant for it, on the state after {found.placed.at_seq}:"))
            output.show(_verdicts(found.placed.nodes))
    if found.leaving is not None:
        _show_decision("it was asked to leave", found.leaving.decision)
        if found.leaving.nodes:
            output.show(plain(f"what each node meant for {found.leaving.for_job}, after {found.leaving.at_seq}:"))
            output.show(_verdicts(found.leaving.nodes))
    if found.resized is not None:
        _show_decision("its limits were changed", found.resized.decision)
        if found.resized.triggers:
            output.show(plain("after what moved CPU on its nodes:"), event_table(list(found.resized.triggers)))
    if found.shares:
        output.show("", _shares(found.shares))
    output.show("", plain("what happened to it", "bold"), event_table(list(found.story[-STORY_SHOWN_MAX:])))
    if len(found.story) > STORY_SHOWN_MAX:
        output.note(f"{len(found.story) - STORY_SHOWN_MAX} earlier events: `tidegate history ls --job {found.job}`.")


def _show_decision(what: str, decision: dict[str, Any]) -> None:
    place = f"{decision['seq']}.{decision['index']}, {moments.stamp(decision['at_ns'])}"
    output.show("", plain(f"{what} ({place})", "bold"), plain(decision["words"]))


def _verdicts(nodes: tuple[Verdict, ...]) -> Any:
    return rows(
        ("NODE", "VERDICT"),
        (
            (each.node, text.reason({"code": each.code, "detail": each.detail, "numbers": each.numbers}))
            for each in nodes
        ),
        wraps="VERDICT",
    )


def _shares(found: tuple[Share, ...]) -> Any:
    return rows(
        ("NODE", "CPU", "JOB", "RANK", "PRIO", "PHASE", "GUARANTEED", "AT MOST", "HAS"),
        (
            (
                one.node,
                text.cpus(one.node_cpu_millis),
                one.job,
                str(one.rank),
                str(one.priority),
                one.phase,
                text.cpus(one.minimum_millis),
                text.cpus(one.maximum_millis),
                text.cpus(one.has_millis),
            )
            for one in found
        ),
    )
