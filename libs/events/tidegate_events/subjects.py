"""Names on the bus. Journal subjects name the writer, so permissions are per writer and their number stays bounded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate_events.frame import Writer

JOURNAL_SUBJECTS = ("tg.fact.>", "tg.decision")
HEADS_STREAM = "JOURNAL_HEADS"
HEADS_SUBJECTS = ("tg.head.>",)
CLOSED_SUBJECTS = ("tg.closed.*",)
USER_STREAM = "USER"
USER_SUBJECTS = ("tg.user.>",)
TELEMETRY_STREAM = "TELEMETRY"
TELEMETRY_SUBJECTS = ("tg.telemetry.*",)
DECISION = "tg.decision"

_GENERATION = re.compile(r"JOURNAL_([1-9][0-9]*)\Z")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def token(name: str) -> str:
    """Return `name` if it can be one token of a subject; raise ValueError if not."""
    if not _TOKEN.match(name):
        raise ValueError(f"{name!r} cannot name a writer: use 1 to 64 of A-Z a-z 0-9 _ -")
    return name


def journal_stream(generation: int) -> str:
    """Return the name of the stream that holds a generation of the journal; they count from 1."""
    return f"JOURNAL_{generation}"


def generation_of(stream: str) -> int | None:
    """Return the generation that the stream holds, None for another stream."""
    match = _GENERATION.match(stream)
    return int(match[1]) if match else None


def closed(generation: int) -> str:
    """Return what a closed generation's stream listens to: nothing is written there; the keeper asks for its end."""
    return f"tg.closed.{generation}"


def opening(generation: int) -> str:
    """Return what the stream of a generation listens to before it takes appends: nobody publishes there."""
    return f"tg.opening.{generation}"


def head(subject: str) -> str:
    """Return where the last frame on a journal subject is kept when its generation is trimmed."""
    return f"tg.head.{subject}"


def fact(service: str, instance: str) -> str:
    """Return the journal subject of a service's instance; an agent is `fact("node", <node>)`."""
    return f"tg.fact.{token(service)}.{token(instance)}"


def speaks_for(subject: str, writer: Writer) -> bool:
    """Say whether a frame on `subject` may carry this writer: the bus guards subjects, not what frames claim."""
    if writer.service == "scheduler":
        return subject == DECISION
    return subject == f"tg.fact.{writer.service}.{writer.instance}"


def order(node: str) -> str:
    """Return where the scheduler sends a node its desired state."""
    return f"tg.order.{token(node)}"


def live(node: str) -> str:
    """Return where a node's agent sends heartbeats; `live_all` is the wildcard."""
    return f"tg.live.{token(node)}"


LIVE_ALL = "tg.live.*"


def ask_scheduler(what: str) -> str:
    """Return the request subject for a question to the leading scheduler."""
    return f"tg.ask.scheduler.{token(what)}"


def ask_node(node: str, what: str) -> str:
    """Return the request subject for a question to a node's agent."""
    return f"tg.ask.node.{token(node)}.{token(what)}"


def gang(sender: str, receiver: str) -> str:
    """Return where one node's agent speaks to another's about a gang that has members on both."""
    return f"tg.gang.{token(sender)}.{token(receiver)}"


def gang_to(receiver: str) -> str:
    """Return the wildcard of what other nodes' agents say to this one."""
    return f"tg.gang.*.{token(receiver)}"


def gang_sender(subject: str) -> str:
    """Return the node that spoke on a subject of `gang`: its login can publish on no other node's."""
    return subject.split(".")[2]


def telemetry(node: str) -> str:
    """Return where a node's samples go (stream TELEMETRY: in memory, of short age)."""
    return f"tg.telemetry.{token(node)}"


def user(tenant: str) -> str:
    """Return where the user's own events of a tenant's jobs go (stream USER, bounded)."""
    return f"tg.user.{token(tenant)}"
