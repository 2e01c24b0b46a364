"""Runs a gateway: bus, fold and HTTP server in one task group, until a signal or the first fatal error."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager

import structlog
import uvicorn
from nats.aio.client import Client
from tidegate_events import bus
from tidegate_events.clock import Clock, SystemClock
from tidegate_events.journal.base import Journal
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.process import journal_archive, say_ready

from tidegate_gateway import tenants
from tidegate_gateway.asks.base import Asker
from tidegate_gateway.asks.nats import NatsAsker
from tidegate_gateway.blobs import BlobStore
from tidegate_gateway.database.connection import Database
from tidegate_gateway.database.starting import OtherJournalError, starting_view
from tidegate_gateway.desk import Desk
from tidegate_gateway.fold import Fold
from tidegate_gateway.hearing import hear
from tidegate_gateway.http.app import application
from tidegate_gateway.http.state import Gateway
from tidegate_gateway.settings import Settings
from tidegate_gateway.submission.places import Places
from tidegate_gateway.view.projection import View

DRAIN_SECONDS_MAX = 2
CLOSE_SECONDS_MAX = 0.5
BACKLOG = 512
CONNECTIONS_MAX = 1000
KEEP_ALIVE_SECONDS = 30
DATABASE_COMMAND_SECONDS_MAX = 5.0
"""Longer than any read that a person waits for."""

log = structlog.get_logger()


class _Server(uvicorn.Server):
    """A server that leaves signals to the shell, which has more to stop than this."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Take no signal."""
        yield


def build(
    settings: Settings, journal: Journal, asker: Asker, clock: Clock, kept: tuple[Database, View] | None = None
) -> Gateway:
    """Put the parts together; `kept` is the database and the view that was loaded from it.

    Raises TenantsFileError and OSError for what cannot be used.
    """
    fold = Fold(journal, kept[1] if kept is not None else View())
    limits = settings.limits
    blobs = BlobStore(
        settings.data_dir / "blobs", bytes_max=limits.blob_bytes_max, uploads_max=limits.blobs_at_once_max
    )
    blobs.prepare()
    return Gateway(
        settings=settings,
        journal=journal,
        fold=fold,
        desk=Desk(journal, fold, clock, instance=settings.instance, waiting_max=limits.appends_waiting_max),
        blobs=blobs,
        asker=asker,
        tenants=tenants.load(settings.tenants_file),
        places=Places(
            input_roots=settings.input_roots,
            output_roots=settings.output_roots,
            blobs_dir=blobs.directory,
            secrets_dir=settings.secrets_dir,
        ),
        clock=clock,
        database=kept[0] if kept is not None else None,
    )


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises what cannot be mended, so that a supervisor sees it."""
    listener = _listen(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    client = await _connect(settings, stop)
    if client is None:
        listener.close()
        return
    kept: tuple[Database, View] | None = None
    try:
        journal = NatsJournal(client, journal_archive())
        if settings.journal_bytes_max:
            await journal.ensure_stream(max_bytes=settings.journal_bytes_max)
        kept = await _open_database(settings, journal)
        gateway = build(settings, journal, NatsAsker(client), SystemClock(), kept)
        await hear(client, gateway.live)
        await _serve(gateway, listener, stop)
    finally:
        listener.close()
        if kept is not None:
            await kept[0].close()
        await _close(client)
    log.info("stopped")


async def _open_database(settings: Settings, journal: Journal) -> tuple[Database, View] | None:
    """Return the database and the view to start with; None where there is none, or where it tells another history."""
    if settings.database_url is None:
        return None
    database = Database(
        settings.database_url,
        name=f"tidegate-gateway-{settings.instance}",
        command_seconds_max=DATABASE_COMMAND_SECONDS_MAX,
    )
    await database.open()
    try:
        return database, await starting_view(database, journal)
    except OtherJournalError as error:
        log.error("database_of_another_journal", why=str(error), remedy="tidegate-projector rebuild")
        await database.close()
        return None


async def _connect(settings: Settings, stop: asyncio.Event) -> Client | None:
    """Return a connection, None when the signal to stop came first."""
    async with asyncio.TaskGroup() as tasks:
        connecting = tasks.create_task(bus.connect(settings.bus))
        stopping = tasks.create_task(stop.wait())
        await asyncio.wait((connecting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            connecting.cancel()
        stopping.cancel()
    return None if connecting.cancelled() else connecting.result()


async def _serve(gateway: Gateway, listener: socket.socket, stop: asyncio.Event) -> None:
    config = uvicorn.Config(
        application(gateway),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        backlog=BACKLOG,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS_MAX,
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as tasks:
        folding = tasks.create_task(gateway.fold.run())
        serving = tasks.create_task(server.serve(sockets=[listener]))
        announcing = tasks.create_task(_announce(gateway, listener))
        await stop.wait()
        log.info("stopping")
        server.should_exit = True
        await serving
        announcing.cancel()
        folding.cancel()


async def _announce(gateway: Gateway, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    log.info("listening", host=host, port=port)
    await gateway.fold.until_caught_up()
    say_ready()
    log.info("ready", host=host, port=port, folded=gateway.fold.view.seq)


def _listen(settings: Settings) -> socket.socket:
    """Take the port before anything else, so that a second gateway fails at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


async def _close(client: Client) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS_MAX):
            await bus.close(client)
    except TimeoutError:
        log.warning("bus_close_timed_out", seconds=CLOSE_SECONDS_MAX)
