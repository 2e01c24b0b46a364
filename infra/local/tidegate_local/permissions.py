"""Who may say what on the bus: one login for each process, which may publish only what it is the writer of.

Only the stack's own login and the keeper's may make, change or delete a stream, and the keeper's only the journal's.
"""

from __future__ import annotations

from typing import Any

from tidegate_events.deadletter import DEADLETTER_PREFIX, DEADLETTER_STREAM
from tidegate_events.positions import POSITIONS_PREFIX, POSITIONS_STREAM
from tidegate_events.subjects import CLOSED_SUBJECTS, DECISION, HEADS_SUBJECTS, TELEMETRY_STREAM, USER_STREAM, fact

from tidegate_local.streams import LEASE, SNAPSHOTS
from tidegate_local.topology import CHECKPOINT, EXECUTOR, SCHEDULER, Process, Topology

ADMIN = "stack"
OPERATOR = "operator"
KEEPER = "keeper"
# In the order in which the configuration lists them.
KINDS = (SCHEDULER, EXECUTOR, "gateway", CHECKPOINT, "projector", "metrics", KEEPER)
ASK = "tg.ask.>"
# What reading any stream needs: no call among these changes what a stream holds.
READING = (
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.STREAM.MSG.GET.*",
    "$JS.API.CONSUMER.INFO.*.>",
    "$JS.API.CONSUMER.CREATE.*.>",
    "$JS.API.CONSUMER.DELETE.*.>",
    "$JS.API.CONSUMER.MSG.NEXT.*.>",
    "$JS.API.DIRECT.GET.*",
    "$JS.API.DIRECT.GET.*.>",
    "$JS.ACK.>",
    "$JS.FC.>",
)
# The keeper may make the bucket of snapshots, which it alone fills, but not take it away.
NOT_THE_KEEPERS = (USER_STREAM, TELEMETRY_STREAM, DEADLETTER_STREAM, f"KV_{LEASE}", POSITIONS_STREAM)


def publish_permissions(topology: Topology) -> dict[str, list[str]]:
    """Return what each login may publish, besides reading streams."""
    logins = {process.name: _own(process) for kind in KINDS for process in topology.processes(kind)}
    return {**logins, OPERATOR: [ASK, f"{DEADLETTER_PREFIX}.>"]}


def _own(process: Process) -> list[str]:
    kind, instance = process.kind, process.instance
    if kind == SCHEDULER:
        return [DECISION, "tg.order.>", ASK, f"$KV.{LEASE}.scheduler"]
    if kind == EXECUTOR:
        own = [f"tg.live.{instance}", "tg.user.>", f"tg.telemetry.{instance}", f"tg.gang.{instance}.*"]
        return [fact("node", instance), *own, ASK]
    if kind == KEEPER:
        return [fact(KEEPER, instance), ASK, f"$O.{SNAPSHOTS}.>", f"$JS.API.STREAM.PURGE.OBJ_{SNAPSHOTS}", *_keeping()]
    letters = f"{DEADLETTER_PREFIX}.{kind}.>"
    if kind == "projector":
        return [ASK, letters]
    if kind == CHECKPOINT:
        # Its consumer is called as its login is: that of a node has a position and dead letters of its own.
        consumer = f"{DEADLETTER_PREFIX}.{process.name}.>"
        return [fact(kind, instance), ASK, f"{POSITIONS_PREFIX}.{process.name}", consumer]
    return [fact(kind, instance), ASK]


def _keeping() -> list[str]:
    """Return what opens, closes, seals and trims generations."""
    return [*(f"$JS.API.STREAM.{call}.*" for call in ("CREATE", "UPDATE", "DELETE")), *HEADS_SUBJECTS, *CLOSED_SUBJECTS]


def denied(login: str) -> list[str]:
    """Return what `login` may not publish although a pattern allows it: names cannot be matched by their beginning."""
    if login != KEEPER:
        return []
    kept = [(call, stream) for call in ("UPDATE", "DELETE") for stream in (*NOT_THE_KEEPERS, f"OBJ_{SNAPSHOTS}")]
    made = [("CREATE", stream) for stream in NOT_THE_KEEPERS]
    return [f"$JS.API.STREAM.{call}.{stream}" for call, stream in (*made, *kept)]


def users(topology: Topology, passwords: dict[str, str]) -> list[dict[str, Any]]:
    """Return the users as nats-server's configuration takes them."""
    listed: list[dict[str, Any]] = [{"user": ADMIN, "password": passwords[ADMIN]}]
    for login, subjects in publish_permissions(topology).items():
        publish = {"allow": [*subjects, *READING]}
        if refused := denied(login):
            publish["deny"] = refused
        permissions = {
            "publish": publish,
            "subscribe": {"allow": [">"]},
            "allow_responses": {"max": 1, "expires": "60s"},
        }
        listed.append({"user": login, "password": passwords[login], "permissions": permissions})
    return listed
