"""When a job was last read back in a tier, and what was found: kept in the tier, so a restart does not begin anew.

In a shared tier it is `<tenant>/<job>/scrub.json`, and holds for whoever scrubs there: one of several services does it.
On a node it lies in the directory that jobs cannot write.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from tidegate.checkpoint import files
from tidegate.checkpoint.manifest import canonical
from tidegate.errors import CorruptCheckpointError
from tidegate.tiers.scrubbing import Scrubbed
from tidegate.tiers.tiers import HOT, STAGING, Tiers

RECORD = "scrub.json"
RECORD_BYTES_MAX = 4096
HOT_RECORDS = "scrubbed"
AHEAD_SECONDS_MAX = 3600
"""A record from further in the future was written by a clock that was wrong, and says nothing."""


class Record(NamedTuple):
    """One pass that ended at `ended_seconds` (Unix time)."""

    ended_seconds: int
    roots: int
    packs: int
    damages: int
    unrepaired: int

    def age_seconds(self, now_seconds: int) -> Optional[int]:
        """Return how long ago it ended; None where that cannot be."""
        age = now_seconds - self.ended_seconds
        return max(0, age) if age >= -AHEAD_SECONDS_MAX else None


def record_of(done: Scrubbed, now_seconds: int) -> Record:
    """Return what is kept of a pass."""
    unrepaired = sum(1 for damage in done.damages if damage.repaired_from is None)
    return Record(now_seconds, done.roots, done.packs, len(done.damages), unrepaired)


def last(tiers: Tiers, name: str, tenant: str, job: str) -> Optional[Record]:
    """Return the last pass over a job in a tier; None where there was none, or its record is not whole."""
    try:
        if name == HOT:
            data = _hot_path(tiers, tenant, job).read_bytes()[: RECORD_BYTES_MAX + 1]
        else:
            tier = next(each for each in tiers.of_job(tenant, job) if each.name == name)
            data = tier.objects.read(tier.path(RECORD), RECORD_BYTES_MAX)
        return _decoded(data)
    except (FileNotFoundError, CorruptCheckpointError, ValueError):
        return None  # it is read back once more than it had to be


def note(tiers: Tiers, name: str, tenant: str, job: str, record: Record) -> None:
    """Keep what a pass found; durable on return."""
    data = canonical(record._asdict())
    if name != HOT:
        tier = next(each for each in tiers.of_job(tenant, job) if each.name == name)
        tier.objects.put(tier.path(RECORD), data)
        return
    path = _hot_path(tiers, tenant, job)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = files.open_directory(path.parent)
    try:
        with files.Temporary(directory) as temporary:
            files.write_all(temporary.descriptor, memoryview(data))
            files.seal(temporary.descriptor)
            temporary.name_as(directory, path.name)
    finally:
        os.close(directory)
    files.sync_directory(path.parent)


def forget_gone(tiers: Tiers) -> List[str]:
    """Remove the records of jobs whose store is no longer on this node; return their names."""
    removed = []
    for path in sorted((tiers.hot / STAGING / HOT_RECORDS).glob("*/*.json")):
        if not (tiers.hot / path.parent.name / path.stem).is_dir():
            path.unlink(missing_ok=True)
            removed.append(path.stem)
    return removed


def _hot_path(tiers: Tiers, tenant: str, job: str) -> Path:
    return tiers.hot / STAGING / HOT_RECORDS / tenant / f"{job}.json"


def _decoded(data: bytes) -> Record:
    """Return a record. Raises ValueError for what is none."""
    document: Dict[str, Any] = json.loads(data)
    if not isinstance(document, dict) or set(document) != set(Record._fields):
        raise ValueError("no record of a scrub")
    if not all(type(value) is int and value >= 0 for value in document.values()):
        raise ValueError("no record of a scrub")
    return Record(**document)
