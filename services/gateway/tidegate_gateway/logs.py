"""Logs as one JSON object a line on standard error, with the job's id and its trace id where there is a job."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure(instance: str) -> None:
    """Send structlog and the standard library's loggers the same way; library chatter below WARNING is left out."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _naming(instance),
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def _naming(instance: str) -> Any:
    def name(_logger: Any, _method: str, entry: Any) -> Any:
        entry["service"], entry["instance"] = "gateway", instance
        return entry

    return name
