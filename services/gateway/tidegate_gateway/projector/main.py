"""The command `tidegate-projector`: run the service, or `migrate`, `rebuild`, `status`."""

from __future__ import annotations

import os
import sys

import structlog
from tidegate_events.process import log_as, run_until_signalled

from tidegate_gateway.projector import commands, shell
from tidegate_gateway.projector.settings import ProjectorSettingsError, from_environment
from tidegate_gateway.traces.export import OtlpSettingsError

EXIT_FAILED = 1
EXIT_USAGE = 2


def main() -> None:
    """Run the service without arguments (or with `run`); the other subcommands do one thing and end."""
    if len(sys.argv) > 1 and sys.argv[1] != "run":
        commands.projector(prog_name="tidegate-projector")
        return
    try:
        settings = from_environment(os.environ)
    except ProjectorSettingsError as error:
        print(f"tidegate-projector: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    log_as("projector", settings.instance)
    log, code = structlog.get_logger(), 0
    try:
        run_until_signalled(lambda: shell.run(settings))
    except* OtlpSettingsError as group:
        log.error("settings_refused", error=str(group.exceptions[0]))
        code = EXIT_USAGE
    except* Exception as group:
        log.error("failed", exc_info=group)
        code = EXIT_FAILED
    sys.exit(code)


if __name__ == "__main__":
    main()
