"""A node of a cluster, and checkpoints that move between its tiers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.checkpoint import places
from tidegate.checkpoint.store import CheckpointStore, Committed
from tidegate.tiers import moving
from tidegate.tiers.holding import Holding, HotHolding
from tidegate.tiers.job import JobTier
from tidegate.tiers.moving import Moved
from tidegate.tiers.tiers import Tiers

from tests.support import stores

TENANT, JOB = "lab", "j-1"


def layers(seed: int, size_bytes: int = 40_000) -> dict[str, Any]:
    """Return layers of bytes that do not compress away."""
    return {"model": {"w": os.urandom(size_bytes)}, "state": {"step": seed, "raw": os.urandom(9000)}}


@dataclass
class Node:
    """One node: its hot tier and the shared ones."""

    tiers: Tiers

    @property
    def store(self) -> Path:
        return self.tiers.hot / TENANT / JOB

    @property
    def warm(self) -> JobTier:
        return self.tiers.of_job(TENANT, JOB)[0]

    @property
    def cold(self) -> JobTier:
        return self.tiers.of_job(TENANT, JOB)[1]

    def save(self, step: int, **given: Any) -> Committed:
        self.store.mkdir(parents=True, exist_ok=True)
        return stores.save(self.store, step, **(given or layers(step)))

    def promote(self, committed: Committed, target: Holding | None = None) -> Moved:
        """Move a checkpoint from the hot tier (or wherever it is) to `target`, the warm one by default."""
        with self.tiers.holdings(TENANT, JOB) as held, self.tiers.staging() as staging:
            wanted = target or self.warm
            sources = [each for each in held if each.name != wanted.name]
            return moving.move(committed.name, sources, wanted, staging)

    def fetch(self, name: str) -> Moved:
        """Bring a checkpoint to this node, from the nearest tier that has it."""
        sources: list[Holding] = [*self.tiers.of_job(TENANT, JOB)]
        with self.tiers.hot_store(TENANT, JOB) as held:
            return moving.move(name, sources, HotHolding(held), held.staging)

    def find(self) -> Any:
        """Return the newest checkpoint here that verifies, as a job that resumes would."""
        return CheckpointStore(self.store, stores.STAMP).find(None)

    def pack_files(self, tier: str) -> list[Path]:
        base = self.store if tier == "hot" else Path(dict(self.tiers.shared)[tier].address) / TENANT / JOB
        return sorted((base / "packs").glob("*.pack"))

    def damage(self, path: Path, at: int = 100) -> None:
        """Flip a bit of a file."""
        path.chmod(0o644)
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))


def opened(path: Path) -> Any:
    """Return the store in a directory, held open."""
    return places.opened(path)
