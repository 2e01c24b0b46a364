"""What people ask of jobs, nodes and queues, as flows: each names who asks, and may be repeated."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence
from urllib.parse import quote

from tidegate.client.flow import Call, Flow, ask_document
from tidegate.client.source import submitter

Document = Dict[str, Any]
Amounts = Mapping[str, int]
"""Of `cpu_millis`, `memory_mib` and `gpus`."""


class Kept:
    """The type of KEPT."""

    def __repr__(self) -> str:
        return "KEPT"


KEPT = Kept()
"""What stands for a setting that shall stay as it is, where None would take it away."""


def ask_job(job_id: str, act: str, reason: str = "", **fields: Any) -> Flow[Document]:
    """Ask for `act` (hold, release, suspend, resume, requeue, priority, limit, rollback) of a job."""
    return (yield from _ask(f"/v1/jobs/{_quoted(job_id)}/{act}", reason, fields))


def drain(node: str, deadline_ns: int, reason: str) -> Flow[Document]:
    """Ask the jobs of a node to leave by a time, and keep new ones away."""
    return (yield from _ask(f"/v1/nodes/{_quoted(node)}/drain", reason, {"deadline_ns": deadline_ns}))


def resume_node(node: str, reason: str) -> Flow[Document]:
    """End drain and cordon of a node."""
    return (yield from _ask(f"/v1/nodes/{_quoted(node)}/resume", reason, {}))


def forget_node(node: str, reason: str) -> Flow[Document]:
    """Have nothing kept of a lost node any more."""
    return (yield from _ask(f"/v1/nodes/{_quoted(node)}/forget", reason, {}))


def queues() -> Flow[List[Document]]:
    """Return the tenants' queues."""
    found: List[Document] = (yield from ask_document(Call("GET", "/v1/queues")))["queues"]
    return found


def create_queue(tenant: str, settings: Mapping[str, Any], reason: str) -> Flow[Document]:
    """Give a tenant's queue its settings."""
    return (yield from _ask("/v1/queues", reason, {"tenant": tenant, **_given(settings)}))


def set_queue(tenant: str, settings: Mapping[str, Any], reason: str) -> Flow[Document]:
    """Change the settings that are given."""
    return (yield from _ask(f"/v1/queues/{_quoted(tenant)}", reason, _given(settings)))


def switch_queue(tenant: str, act: str, reason: str) -> Flow[Document]:
    """Stop or start a tenant's queue."""
    return (yield from _ask(f"/v1/queues/{_quoted(tenant)}/{act}", reason, {}))


def maintenance(everything: bool) -> Flow[List[Document]]:
    """Return the maintenance windows."""
    params = {"all": "1"} if everything else {}
    found: List[Document] = (yield from ask_document(Call("GET", "/v1/maintenance", params=params)))["maintenance"]
    return found


def plan_maintenance(name: str, nodes: Sequence[str], between_ns: Sequence[int], reason: str) -> Flow[Document]:
    """Plan a window; `between_ns` are its start and its end."""
    start_ns, end_ns = between_ns
    window = {"name": name, "nodes": list(nodes), "start_ns": start_ns, "end_ns": end_ns}
    return (yield from _ask("/v1/maintenance", reason, window))


def cancel_maintenance(name: str, reason: str) -> Flow[Document]:
    """Take a window back, or end one that has begun."""
    return (yield from _ask(f"/v1/maintenance/{_quoted(name)}/cancel", reason, {}))


def _ask(path: str, reason: str, fields: Mapping[str, Any]) -> Flow[Document]:
    content = {**fields, **({"reason": reason} if reason else {})}
    headers = {"X-Tidegate-Submitter": submitter()}
    return (yield from ask_document(Call("POST", path, content=content, headers=headers)))


def _given(settings: Mapping[str, Any]) -> Document:
    return {name: value for name, value in settings.items() if value is not KEPT}


def _quoted(name: str) -> str:
    return quote(name, safe="")
