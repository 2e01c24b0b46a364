"""Passes what libraries log (uvicorn's errors above all) on as the same JSON lines as our own."""

from __future__ import annotations

import logging

import structlog

log = structlog.get_logger()


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        exc_info = record.exc_info if record.exc_info and record.exc_info[0] else None
        log.log(
            max(logging.WARNING, record.levelno // 10 * 10),
            "library",
            logger=record.name,
            text=record.getMessage(),
            exc_info=exc_info,
        )


def forward() -> None:
    """Forward warnings and worse; chatter below is left out."""
    logging.basicConfig(handlers=[_Forward()], level=logging.WARNING, force=True)
