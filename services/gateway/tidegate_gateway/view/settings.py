"""Folds what operators set for the whole: queues of tenants, maintenance windows."""

from __future__ import annotations

import msgspec
from tidegate_events import events as e

from tidegate_gateway.view.model import WINDOWS_AHEAD_MAX, WINDOWS_MAX, Maintenance, Queue

Setting = e.QueueChanged | e.MaintenancePlanned | e.MaintenanceCancelled


def on_setting(queues: dict[str, Queue], windows: dict[str, Maintenance], event: Setting) -> bool:
    """Fold a setting; say whether it counted."""
    if isinstance(event, e.QueueChanged):
        return _on_queue_changed(queues, event)
    return _on_maintenance(windows, event)


def _on_queue_changed(queues: dict[str, Queue], event: e.QueueChanged) -> bool:
    if event.weight < 1:
        return False
    queues[event.tenant] = Queue(
        tenant=event.tenant,
        weight=event.weight,
        guaranteed=event.guaranteed,
        ceiling=event.ceiling,
        stopped=event.stopped,
        actor=event.actor,
        note=event.note,
        changed_ns=event.at_ns,
    )
    return True


def _on_maintenance(windows: dict[str, Maintenance], event: e.MaintenancePlanned | e.MaintenanceCancelled) -> bool:
    """Plan a window, or take one back; of very many the one that is over for longest goes."""
    if isinstance(event, e.MaintenanceCancelled):
        known = windows.get(event.name)
        if known is None or known.cancelled:
            return False
        windows[event.name] = msgspec.structs.replace(known, cancelled=True, cancelled_by=event.actor)
        return True
    others = [window for window in windows.values() if window.name != event.name]
    ahead = sum(not window.is_over(event.at_ns) for window in others)
    if event.end_ns <= event.start_ns or not event.nodes or ahead >= WINDOWS_AHEAD_MAX:
        return False
    windows[event.name] = Maintenance(
        name=event.name,
        nodes=event.nodes,
        start_ns=event.start_ns,
        end_ns=event.end_ns,
        actor=event.actor,
        note=event.note,
        planned_ns=event.at_ns,
    )
    if len(windows) > WINDOWS_MAX:
        del windows[min(others, key=lambda window: (not window.cancelled, window.end_ns, window.name)).name]
    return True
