"""Writes `infra/nats/nats.conf` for a server that something else starts: `python -m tidegate_local.nats_config`.

The same logins, rights and bounds as the local stack's own bus; passwords come from the server's environment.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tidegate_local.bus import Bus, server_config
from tidegate_local.permissions import ADMIN, publish_permissions
from tidegate_local.topology import NATS, ONE_OF_EACH

PORT = 4222
STORE_DIR = Path("/data")
HEADER = """\
# Written by `python -m tidegate_local.nats_config`; a test compares the two. Do not edit.
# One login per service, which may publish only what that service is the writer of. Nobody may delete from the journal.
# Passwords: TIDEGATE_PASSWORD_<LOGIN> in the server's environment.
"""
_VARIABLE = re.compile(r'"(\$TIDEGATE_PASSWORD_[A-Z]+)"')


def render() -> str:
    """Return the file's text."""
    logins = (ADMIN, *publish_permissions(ONE_OF_EACH))
    bus = Bus(ports=(PORT,), passwords={login: f"$TIDEGATE_PASSWORD_{login.upper()}" for login in logins})
    (server,) = ONE_OF_EACH.processes(NATS)
    return HEADER + _VARIABLE.sub(r"\1", json.dumps(server_config(bus, server, STORE_DIR), indent=2)) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
