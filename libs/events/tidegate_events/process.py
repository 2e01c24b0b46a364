"""What every service process does alike: read its settings, write JSON logs, say that it is ready, end on a signal."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
import uvloop

from tidegate_events.bus import BusSettings

READY_FILE_VARIABLE = "TIDEGATE_READY_FILE"


def bus_settings(name: str) -> BusSettings:
    """Return where the bus is, from TIDEGATE_BUS_URL, TIDEGATE_BUS_USER and TIDEGATE_BUS_PASSWORD."""
    return BusSettings(
        url=os.environ.get("TIDEGATE_BUS_URL", "nats://127.0.0.1:4222"),
        user=os.environ.get("TIDEGATE_BUS_USER", ""),
        password=os.environ.get("TIDEGATE_BUS_PASSWORD", ""),
        name=name,
    )


def log_as(service: str, instance: str) -> None:
    """Write one JSON object per log line to standard error, each naming the service and its instance."""
    level = logging.getLevelNamesMapping().get(os.environ.get("TIDEGATE_LOG_LEVEL", "INFO").upper(), logging.INFO)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service, instance=instance)


def say_ready() -> None:
    """Create the file that the supervisor waits for, where it named one."""
    named = os.environ.get(READY_FILE_VARIABLE)
    if named:
        Path(named).touch()


def run_until_signalled(serve: Callable[[], Awaitable[None]]) -> None:
    """Run `serve()` on uvloop until it returns, or SIGTERM or SIGINT cancels it (which is a good end)."""

    async def guarded() -> None:
        task = asyncio.ensure_future(serve())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            structlog.get_logger().info("stopped_by_signal")

    uvloop.run(guarded())
