"""The `tidegate-scheduler` command: run the service, or look into its history (`tidegate-scheduler history --help`)."""

from __future__ import annotations

import sys

from tidegate_events import bus
from tidegate_events.clock import SystemClock
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.process import journal_archive, log_as, run_until_signalled

from tidegate_scheduler import settings as configuration
from tidegate_scheduler.commands import history
from tidegate_scheduler.shell import Scheduler
from tidegate_scheduler.start import load_state


async def serve() -> None:
    """Connect and schedule until cancelled."""
    settings = configuration.from_environment()
    client = await bus.connect(settings.bus)
    try:
        journal, state = NatsJournal(client, journal_archive()), await load_state(client)
        await Scheduler(settings, client, journal, SystemClock(), state).run()
    finally:
        await bus.close(client)


def main() -> None:
    """Run the service without arguments; `history ...` reads instead."""
    if len(sys.argv) > 1:
        if sys.argv[1] == "history":
            history(sys.argv[2:], prog_name="tidegate-scheduler history")
        print(f"unknown argument {sys.argv[1]!r}: run without arguments, or `history verify`", file=sys.stderr)
        raise SystemExit(2)
    try:
        settings = configuration.from_environment()
    except configuration.SettingsError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from error
    log_as("scheduler", settings.instance)
    run_until_signalled(serve)


if __name__ == "__main__":
    main()
