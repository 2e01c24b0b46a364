"""Writes `infra/nats/nats.conf` for a server that something else starts: `python -m tidegate_local.nats_config`.

The same logins, rights and bounds as the local stack's own bus; passwords come from the server's environment. With the
argument `cluster` it writes `infra/nats/cluster/authorization.conf`: the same logins, for the servers of a cluster.
Names of nodes after it are those that have a hot directory of their own: each has a login for its checkpoint service.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidegate_events.subjects import token

from tidegate_local.bus import Bus, server_config
from tidegate_local.permissions import ADMIN, publish_permissions, users
from tidegate_local.topology import NATS, ONE_OF_EACH, Topology

PORT = 4222
STORE_DIR = Path("/data")
HEADER = """\
# Written by `python -m tidegate_local.nats_config{argument}`; a test compares the two. Do not edit.
# One login per service, which may publish only what that service is the writer of. Nobody may delete from the journal.
# Passwords: TIDEGATE_PASSWORD_<LOGIN> in the server's environment.
"""
_VARIABLE = re.compile(r'"(\$TIDEGATE_PASSWORD_[A-Z0-9_]+)"')


def render() -> str:
    """Return the text of the one server's file."""
    (server,) = ONE_OF_EACH.processes(NATS)
    bus = Bus(ports=(PORT,), passwords=_variables())
    return _text(server_config(bus, server, STORE_DIR), "")


def render_cluster(checkpoint_nodes: Sequence[str] = ()) -> str:
    """Return the text of the part that says who may log in at a cluster's servers.

    Raises ValueError for a name that can be no part of a subject, or whose variable another one has.
    """
    for node in checkpoint_nodes:
        token(node)
    topology = Topology(checkpoint_nodes=tuple(checkpoint_nodes))
    variables = _variables(topology)
    if len(set(variables.values())) < len(variables) or len(set(checkpoint_nodes)) < len(checkpoint_nodes):
        raise ValueError(f"nodes {', '.join(checkpoint_nodes)} were refused: two would share a login or its variable")
    arguments = " ".join(("", "cluster", *checkpoint_nodes))
    return _text({"authorization": {"users": users(topology, variables)}}, arguments)


def _variables(topology: Topology = ONE_OF_EACH) -> dict[str, str]:
    logins = (ADMIN, *publish_permissions(topology))
    return {login: f"$TIDEGATE_PASSWORD_{login.upper().replace('-', '_')}" for login in logins}


def _text(config: dict[str, Any], argument: str) -> str:
    return HEADER.format(argument=argument) + _VARIABLE.sub(r"\1", json.dumps(config, indent=2)) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render_cluster(sys.argv[2:]) if sys.argv[1:2] == ["cluster"] else render())
