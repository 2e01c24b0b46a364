"""The `tidegate-metrics` command."""

from __future__ import annotations

import sys

from tidegate_events import bus
from tidegate_events.clock import SystemClock
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.process import journal_archive, log_as, run_until_signalled

from tidegate_metrics import settings as configuration
from tidegate_metrics.database import Database
from tidegate_metrics.feed.nats import NatsFeed
from tidegate_metrics.polls import NatsPolls
from tidegate_metrics.shell import MetricsService, Ports


def main() -> None:
    """Run the service until a signal ends it; exit code 2 for settings that cannot be used."""
    if len(sys.argv) > 1:
        print(f"unknown argument {sys.argv[1]!r}: settings are TIDEGATE_* variables", file=sys.stderr)
        raise SystemExit(2)
    try:
        settings = configuration.from_environment()
    except configuration.SettingsError as error:
        print(f"tidegate-metrics: {error}", file=sys.stderr)
        raise SystemExit(2) from error

    async def serve() -> None:
        client = await bus.connect(settings.bus)
        database = Database(settings.database_url) if settings.database_url else None
        try:
            feed = NatsFeed(client, create_bytes_max=settings.telemetry_bytes_max)
            ports = Ports(NatsJournal(client, journal_archive()), feed, NatsPolls(client), database, SystemClock())
            await MetricsService(settings, ports).run()
        finally:
            if database is not None:
                await database.close()
            await bus.close(client)

    log_as("metrics", settings.instance)
    run_until_signalled(serve)


if __name__ == "__main__":
    main()
