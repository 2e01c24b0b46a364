"""The command `tidegate-gateway`."""

from __future__ import annotations

import os
import sys

import structlog
import uvloop
from tidegate_events.bus import BusUnreachableError
from tidegate_events.process import log_as

from tidegate_gateway import shell
from tidegate_gateway.settings import Settings, SettingsError, from_arguments
from tidegate_gateway.tenants import TenantsFileError

EXIT_USAGE = 2
EXIT_FAILED = 1


def main() -> None:
    """Serve until SIGTERM; exit 0 after a stop, 1 after a failure, 2 for settings that cannot be used."""
    try:
        settings = from_arguments(sys.argv[1:], os.environ)
    except SettingsError as error:
        print(f"tidegate-gateway: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    log_as("gateway", settings.instance)
    sys.exit(_serve(settings))


def _serve(settings: Settings) -> int:
    log = structlog.get_logger()
    code = 0
    try:
        uvloop.run(shell.run(settings))
    except* TenantsFileError as group:
        log.error("settings_refused", error=str(group.exceptions[0]))
        code = EXIT_USAGE
    except* (BusUnreachableError, OSError) as group:
        log.error("cannot_run", error=str(group.exceptions[0]))
        code = EXIT_FAILED
    except* Exception as group:
        log.error("failed", exc_info=group)
        code = EXIT_FAILED
    return code


if __name__ == "__main__":
    main()
