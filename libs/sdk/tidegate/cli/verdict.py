"""What `tidegate submit --dry-run` says: the scheduler's verdict on a job that was not submitted, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.cli import line, output, text

if TYPE_CHECKING:
    from rich.console import RenderableType


def render(found: dict[str, Any]) -> list[RenderableType]:
    """Return the verdict: a sentence, why, and whom the job would displace."""
    parts: list[RenderableType] = [f"{_verdict(found)}. Nothing was submitted."]
    why = text.reasons(found["reasons"])
    parts += [f"why: {why}"] if why else []
    if found["displaces"]:
        table = output.table()
        for name in ("DISPLACES", "TENANT", "PRIO", "HOW"):
            table.add_column(name)
        for victim in found["displaces"]:
            table.add_row(
                victim["job_id"], victim["tenant"], str(victim["priority"]), _HOW.get(victim.get("how", ""), "")
            )
        parts.append(table)
    return parts


_HOW = {
    "leaves": "saves and leaves",
    "moves": "saves and goes on elsewhere",
    "hands_back": "hands back what it has beyond its guarantee",
}


def _verdict(found: dict[str, Any]) -> str:
    where = f" on {', '.join(found['nodes'])}" if found["nodes"] else ""
    when = line.start_in_words(found, found["now_ns"])
    place = f" at place {found['position']} in the queue" if found["position"] else ""
    sentences = {
        "starts_now": f"It would start now{where}",
        "displaces": f"It would displace {_jobs(len(found['displaces']))} and start{where}; {when}",
        "waits": f"It would wait{place}; {when}{where}",
        "never": "It could never run here",
    }
    return sentences[found["verdict"]]


def _jobs(count: int) -> str:
    return "one job" if count == 1 else f"{count} jobs"
