"""The agent's log of what happened in a sandbox, and above all of the system calls that its filter denied."""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from tidegate_executor.sandbox.base import CallRefused, SandboxEvent


def tell(log: FilteringBoundLogger, event: SandboxEvent, isolation: str) -> None:
    """Log one event of a sandbox of this level; `log` says whose it is."""
    if not isinstance(event, CallRefused):
        log.debug("sandbox_event", sandbox_event=type(event).__name__)
        return
    log.warning(
        "sandbox.refused",
        isolation=isolation,
        component=event.component,
        replica=event.replica,
        call=event.call,
        times=event.times,
        pid=event.pid,
        command=event.command,
    )
