"""What the shell offers when somebody presses Tab: jobs and states. It asks the gateway, and is silent without."""

from __future__ import annotations

from typing import Any

from tidegate.errors import TidegateError

JOBS_OFFERED = 50
ANSWER_SECONDS_MAX = 1.0
JOB_STATES = (
    *("pending", "placed", "running", "suspending", "stopping", "suspended"),
    *("completed", "failed", "cancelled", "rejected"),
)
NODE_STATES = ("reachable", "unreachable", "lost")


def jobs(incomplete: str) -> list[tuple[str, str]]:
    """Return the newest jobs whose id begins so, each with its name and state."""
    found = _asked("/v1/jobs", "jobs", {"limit": JOBS_OFFERED})
    return [(job["job_id"], f"{job['name']}, {job['state']}") for job in found if job["job_id"].startswith(incomplete)]


def nodes(incomplete: str) -> list[tuple[str, str]]:
    """Return the nodes whose name begins so, each with its state."""
    found = _asked("/v1/nodes", "nodes", {})
    return [(node["node"], node["state"]) for node in found if node["node"].startswith(incomplete)]


def _asked(path: str, name: str, params: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a list of the gateway, an empty one where there is no quick answer."""
    from tidegate.client.http import Connection  # noqa: PLC0415

    try:
        connection = Connection(None)
    except TidegateError:
        return []  # a shell that completes has nowhere to show an error: no offer is what it understands
    silent: tuple[type[Exception], ...] = (*connection.transport_errors, ValueError, KeyError, TypeError)
    try:
        with connection.sync_client(None) as http:
            answer = http.get(path, params=params, timeout=ANSWER_SECONDS_MAX)
        found: list[dict[str, Any]] = answer.json()[name]
    except silent:
        return []
    return found


def job_states(incomplete: str) -> list[str]:
    """Return the states of jobs that begin so."""
    return [state for state in JOB_STATES if state.startswith(incomplete)]


def node_states(incomplete: str) -> list[str]:
    """Return the states of nodes that begin so."""
    return [state for state in NODE_STATES if state.startswith(incomplete)]
