"""What every service process does alike: read its settings, write JSON logs, say that it is ready, end on a signal."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType

import structlog
import uvloop
from structlog.typing import EventDict, WrappedLogger

from tidegate_events import trace
from tidegate_events.bus import BusSettings
from tidegate_events.journal.archive import ArchiveDirectory

READY_FILE_VARIABLE = "TIDEGATE_READY_FILE"
ARCHIVE_VARIABLE = "TIDEGATE_JOURNAL_ARCHIVE_DIR"
POLITE_SECONDS = 1.0
CANCEL_AGAIN_SECONDS = 0.1
CANCELLATIONS_MAX = 20
TASKS_NAMED_MAX = 20
EXIT_DID_NOT_STOP = 70
SANDBOX_ID_DOTS = 2
"""A sandbox is `<job>.<attempt>.<rank>`."""


def bus_settings(name: str) -> BusSettings:
    """Return where the bus is, from TIDEGATE_BUS_URL, TIDEGATE_BUS_USER and TIDEGATE_BUS_PASSWORD."""
    return BusSettings(
        url=os.environ.get("TIDEGATE_BUS_URL", "nats://127.0.0.1:4222"),
        user=os.environ.get("TIDEGATE_BUS_USER", ""),
        password=os.environ.get("TIDEGATE_BUS_PASSWORD", ""),
        name=name,
    )


def journal_archive() -> ArchiveDirectory | None:
    """Return where sealed generations of the journal are, from TIDEGATE_JOURNAL_ARCHIVE_DIR; None where it is not set.

    Whoever starts behind what the bus still holds reads them there.
    """
    directory = os.environ.get(ARCHIVE_VARIABLE)
    return ArchiveDirectory(Path(directory)) if directory else None


def log_as(service: str, instance: str) -> None:
    """Write one JSON object per log line to standard error, each naming the service and its instance.

    A line that names a job or a sandbox names the job's trace too. What libraries warn of, and what ends the process,
    comes in the same form.
    """
    level = logging.getLevelNamesMapping().get(os.environ.get("TIDEGATE_LOG_LEVEL", "INFO").upper(), logging.INFO)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            name_job,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(_StandardError()),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service, instance=instance)
    logging.basicConfig(handlers=[_FromLibraries()], level=logging.WARNING, force=True)
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_crash


def name_job(_logger: WrappedLogger, _method: str, fields: EventDict) -> EventDict:
    """Add job and trace id to a line that names a sandbox or a job, so that one search finds all of a job's lines."""
    sandbox = fields.get("sandbox")
    if "job" not in fields and isinstance(sandbox, str) and sandbox.count(".") == SANDBOX_ID_DOTS:
        fields["job"] = sandbox.partition(".")[0]
    job = fields.get("job")
    if isinstance(job, str) and job:
        fields.setdefault("trace_id", trace.trace_id(job))
    return fields


class _StandardError:
    """Standard error as it is when a line is written: loggers outlive a stream that somebody put in its place."""

    @staticmethod
    def write(text: str) -> int:
        return sys.stderr.write(text)

    @staticmethod
    def flush() -> None:
        sys.stderr.flush()


class _FromLibraries(logging.Handler):
    """Passes on what libraries log by `logging`: warnings and worse."""

    def emit(self, record: logging.LogRecord) -> None:
        exc_info = record.exc_info if record.exc_info and record.exc_info[0] else None
        level = max(logging.WARNING, record.levelno // 10 * 10)
        structlog.get_logger().log(level, "library", logger=record.name, text=record.getMessage(), exc_info=exc_info)


def _log_crash(kind: type[BaseException], error: BaseException, trace_back: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace_back)
        return
    structlog.get_logger().critical("crashed", exc_info=(kind, error, trace_back))


def say_ready() -> None:
    """Create the file that the supervisor waits for, where it named one."""
    named = os.environ.get(READY_FILE_VARIABLE)
    if named:
        Path(named).touch()


def run_until_signalled(serve: Callable[[], Awaitable[None]]) -> None:
    """Run `serve()` on uvloop until it returns, or SIGTERM or SIGINT ends it (which is a good end).

    A cancellation can be lost on its way (see `cancellation`). So what still runs after POLITE_SECONDS is cancelled
    again and again, and what does not end even then ends with the process: a service has to survive `kill -9` anyway.
    """

    async def guarded() -> None:
        task = asyncio.ensure_future(serve())
        signalled = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signalled.set)
        waiting = asyncio.ensure_future(signalled.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not task.done():
            await _end(task)
        if not task.cancelled():
            task.result()  # raises what ended the service
        elif not signalled.is_set():
            raise RuntimeError("the service was cancelled from within, and nobody asked it to end")

    uvloop.run(guarded())


async def _end(task: asyncio.Future[None]) -> None:
    log = structlog.get_logger()
    task.cancel()
    await asyncio.wait([task], timeout=POLITE_SECONDS)
    for _ in range(CANCELLATIONS_MAX):
        if task.done():
            log.info("stopped_by_signal")
            return
        for other in asyncio.all_tasks() - {asyncio.current_task()}:
            other.cancel()
        await asyncio.wait([task], timeout=CANCEL_AGAIN_SECONDS)
    log.error("does_not_stop", tasks=sorted(str(each) for each in asyncio.all_tasks())[:TASKS_NAMED_MAX])
    os._exit(EXIT_DID_NOT_STOP)
