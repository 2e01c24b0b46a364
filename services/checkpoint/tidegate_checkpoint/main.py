"""The `tidegate-checkpoint` command."""

from __future__ import annotations

import sys

from tidegate_events import bus
from tidegate_events.clock import SystemClock
from tidegate_events.consumer import ReaderPorts
from tidegate_events.deadletter import nats_letters
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.positions import nats_positions
from tidegate_events.process import journal_archive, log_as, run_until_signalled

from tidegate_checkpoint import settings as configuration
from tidegate_checkpoint.shell import CheckpointService


def main() -> None:
    """Run the service until a signal ends it."""
    if len(sys.argv) > 1:
        print(f"unknown argument {sys.argv[1]!r}: settings are TIDEGATE_* variables", file=sys.stderr)
        raise SystemExit(2)
    try:
        settings = configuration.from_environment()
    except (LookupError, ValueError) as error:
        print(f"tidegate-checkpoint: {error}", file=sys.stderr)
        raise SystemExit(2) from error

    async def serve() -> None:
        client = await bus.connect(settings.bus)
        try:
            journal = NatsJournal(client, journal_archive())
            ports = ReaderPorts(journal, nats_positions(client), nats_letters(client), SystemClock())
            await CheckpointService(settings, client, ports).run()
        finally:
            await bus.close(client)

    log_as("checkpoint", settings.instance)
    run_until_signalled(serve)


if __name__ == "__main__":
    main()
