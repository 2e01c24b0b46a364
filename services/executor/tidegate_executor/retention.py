"""How much of the past is kept on a node: which attempts stay known, and how many bytes of logs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence, Set
from pathlib import Path

from tidegate_executor.attempts.state import AttemptState

# An ended attempt must stay known until the scheduler has heard of its end, which 4096 later ones outlast by far.
ENDED_KEPT_MAX = 4096
LOGS_KEPT_MAX = 1000
LOG_BYTES_MAX = 4 * 1024**3


def beyond_bound(ended: Sequence[AttemptState]) -> list[str]:
    """Return the ids of the attempts that ended longest ago, beyond ENDED_KEPT_MAX."""
    by_age = sorted(ended, key=lambda state: state.ended_ns, reverse=True)
    return [state.id for state in by_age[ENDED_KEPT_MAX:]]


def trim_logs(directory: Path, keep: Set[str]) -> list[str]:
    """Remove the oldest logs beyond the bounds, but none of `keep`; return whose they were. Blocks."""
    # Shims write and drop files here meanwhile: what is gone when it is looked at has no size and no age.
    found = [(_modified_ns(path), path) for path in directory.iterdir() if path.is_dir()]
    removed: list[str] = []
    room = LOG_BYTES_MAX
    for place, (_, path) in enumerate(sorted(found, key=lambda item: (-item[0], item[1].name))):
        room -= _size_bytes(path)
        if (place >= LOGS_KEPT_MAX or room < 0) and path.name not in keep:
            shutil.rmtree(path)
            removed.append(path.name)
    return removed


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _size_bytes(directory: Path) -> int:
    total = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                total += entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
    return total
