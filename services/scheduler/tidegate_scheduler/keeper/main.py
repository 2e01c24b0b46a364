"""The `tidegate-keeper` command."""

from __future__ import annotations

import sys

from tidegate_events import bus
from tidegate_events.clock import SystemClock
from tidegate_events.journal.archive import ArchiveDirectory
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.process import log_as, run_until_signalled

from tidegate_scheduler.keeper import settings as configuration
from tidegate_scheduler.keeper.archiving import Archivist
from tidegate_scheduler.keeper.shell import Keeper, Ports
from tidegate_scheduler.keeper.streams import JournalStreams
from tidegate_scheduler.snapshot_store import SnapshotStore


def main() -> None:
    """Keep the journal until a signal ends it; exit code 2 for settings that cannot be used."""
    if len(sys.argv) > 1:
        print(f"unknown argument {sys.argv[1]!r}: settings are TIDEGATE_* variables", file=sys.stderr)
        raise SystemExit(2)
    try:
        settings = configuration.from_environment()
    except configuration.SettingsError as error:
        print(f"tidegate-keeper: {error}", file=sys.stderr)
        raise SystemExit(2) from error

    async def serve() -> None:
        client = await bus.connect(settings.bus)
        try:
            archive, snapshots = ArchiveDirectory(settings.archive_dir), SnapshotStore(client, keeps=True)
            ports = Ports(
                streams=JournalStreams(client),
                journal=NatsJournal(client, archive),
                snapshots=snapshots,
                archivist=Archivist(NatsJournal(client), archive, snapshots),
                clock=SystemClock(),
            )
            await Keeper(settings, ports).run()
        finally:
            await bus.close(client)

    log_as("keeper", settings.instance)
    run_until_signalled(serve)


if __name__ == "__main__":
    main()
