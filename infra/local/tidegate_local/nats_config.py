"""Writes `infra/nats/nats.conf` for a server that something else starts: `python -m tidegate_local.nats_config`.

The same logins, rights and bounds as the local stack's own bus; passwords come from the server's environment. With the
argument `cluster` it writes `infra/nats/cluster/authorization.conf`: the same logins, for the servers of a cluster.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tidegate_local.bus import Bus, server_config
from tidegate_local.permissions import ADMIN, publish_permissions, users
from tidegate_local.topology import NATS, ONE_OF_EACH

PORT = 4222
STORE_DIR = Path("/data")
HEADER = """\
# Written by `python -m tidegate_local.nats_config{argument}`; a test compares the two. Do not edit.
# One login per service, which may publish only what that service is the writer of. Nobody may delete from the journal.
# Passwords: TIDEGATE_PASSWORD_<LOGIN> in the server's environment.
"""
_VARIABLE = re.compile(r'"(\$TIDEGATE_PASSWORD_[A-Z]+)"')


def render() -> str:
    """Return the text of the one server's file."""
    (server,) = ONE_OF_EACH.processes(NATS)
    bus = Bus(ports=(PORT,), passwords=_variables())
    return _text(server_config(bus, server, STORE_DIR), "")


def render_cluster() -> str:
    """Return the text of the part that says who may log in at a cluster's servers."""
    return _text({"authorization": {"users": users(ONE_OF_EACH, _variables())}}, " cluster")


def _variables() -> dict[str, str]:
    logins = (ADMIN, *publish_permissions(ONE_OF_EACH))
    return {login: f"$TIDEGATE_PASSWORD_{login.upper()}" for login in logins}


def _text(config: dict[str, Any], argument: str) -> str:
    return HEADER.format(argument=argument) + _VARIABLE.sub(r"\1", json.dumps(config, indent=2)) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render_cluster() if sys.argv[1:] == ["cluster"] else render())
