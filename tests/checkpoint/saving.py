"""Checkpoints as a job's SDK writes them, and the facts that its agent reports about them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.checkpoint import commit, places
from tidegate.checkpoint import manifest as manifests
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.shelf import Shelf
from tidegate.checkpoint.store import Committed
from tidegate_checkpoint.catalogue import Catalogue
from tidegate_events.events import (
    CheckpointFailed,
    CheckpointRef,
    CheckpointSaved,
    CheckpointVerified,
    Event,
    JobCompleted,
    LayerRef,
    Reason,
)
from tidegate_events.frame import Frame, Service, Writer
from tidegate_events.journal.base import Recorded
from tidegate_events.subjects import DECISION, fact

from tests.support import stores

LAYERS = {
    "model": {"w": list(range(50)), "raw": random.Random(1).randbytes(6000)},
    "optimizer": {"m": [0.5] * 50, "raw": random.Random(2).randbytes(5000)},
    "experience": {"seen": random.Random(3).randbytes(3000)},
    "state": {"step": 7, "environments": random.Random(4).randbytes(9000)},
}


@dataclass
class Job:
    """A job that saves below a hot directory."""

    hot_dir: Path
    id: str = "j-1"
    tenant: str = "lab"
    attempt: int = 1
    rank: int = 0

    @property
    def directory(self) -> Path:
        return self.hot_dir / self.tenant / self.id

    def _stamp(self) -> roots.Stamp:
        return roots.Stamp(self.id, self.attempt, self.rank, "learner", 0, 1, 42)

    def save(self, step: int, **layers: Any) -> CheckpointSaved:
        """Save layers of values; return the agent's report."""
        return self.report(stores.save(self.directory, step, self._stamp(), **(layers or LAYERS)))

    def save_tree(self, step: int, files: dict[str, bytes]) -> CheckpointSaved:
        """Save layers that are trees of files."""
        return self.report(stores.save_tree(self.directory, step, files, self._stamp()))

    def report(self, committed: Committed) -> CheckpointSaved:
        """Return what the agent says about a committed checkpoint."""
        root = committed.root
        layers = tuple(LayerRef(name=each.name, digest=each.manifest, size_bytes=each.bytes) for each in root.layers)
        ref = CheckpointRef(id=root.id, step=root.step, attempt=root.stamp.attempt, directory=root.name, layers=layers)
        return self.saved(ref)

    def committed(self, saved: CheckpointSaved) -> Committed:
        """Return what was reported, as it lies in the store."""
        with places.opened(self.directory) as held:
            return Committed(roots.read(held.roots, saved.checkpoint.directory), self.directory)

    def saved(self, ref: CheckpointRef) -> CheckpointSaved:
        return CheckpointSaved(
            id=f"node-n1-1-{ref.step}-0",
            at_ns=1000 + ref.step,
            tenant=self.tenant,
            job=self.id,
            traceparent="00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
            attempt=self.attempt,
            rank=self.rank,
            node="n1",
            checkpoint=ref,
        )

    def imagined(self, step: int) -> CheckpointSaved:
        """Return the report of a checkpoint that has no files: for what only folds."""
        ref = CheckpointRef(
            id=f"{self.id}-{self.attempt}-{step}-{self.rank}",
            step=step,
            attempt=self.attempt,
            directory=f"{step:012d}-{self.attempt}-abcdefgh",
            layers=(LayerRef(name="model", digest="d", size_bytes=10),),
        )
        return self.saved(ref)

    def record(self, saved: CheckpointSaved, layer: str) -> tuple[Path, int]:
        """Return the pack that holds the first chunk of a layer, and its offset there."""
        with places.opened(self.directory) as held:
            entry = self.committed(saved).root.layer(layer)
            assert entry is not None
            manifest = manifests.read(held.manifests, entry.manifest)
            chunk = next(blob.chunks[0] for blob in manifest.blobs if blob.chunks)
            located = Shelf().refresh(held).chain(manifest.hash_name, chunk)[0]
        return self.directory / "packs" / located.pack.name, located.entry.offset

    def path(self, saved: CheckpointSaved) -> Path:
        """Return the file of its root."""
        return self.directory / "roots" / f"{saved.checkpoint.directory}.json"

    def remove(self, saved: CheckpointSaved) -> None:
        """Remove it as the SDK's retention does."""
        with places.opened(self.directory) as held:
            commit.remove_root(held, saved.checkpoint.directory)

    def wipe(self) -> None:
        shutil.rmtree(self.directory)

    def completed(self) -> JobCompleted:
        return JobCompleted(id="d-1", at_ns=5, tenant=self.tenant, job=self.id, revision=3, attempt=self.attempt)


def verified(saved: CheckpointSaved) -> CheckpointVerified:
    return CheckpointVerified(
        id="v",
        at_ns=2,
        tenant=saved.tenant,
        job=saved.job,
        attempt=saved.attempt,
        checkpoint_id=saved.checkpoint.id,
        size_bytes=10,
    )


def failed(saved: CheckpointSaved, code: str = "WrongHash") -> CheckpointFailed:
    return CheckpointFailed(
        id="f",
        at_ns=2,
        tenant=saved.tenant,
        job=saved.job,
        attempt=saved.attempt,
        stage="verify",
        reason=Reason(code=code, detail="the bytes changed"),
        checkpoint_id=saved.checkpoint.id,
        step=saved.checkpoint.step,
    )


def frames() -> Iterator[Writer]:
    """Yield writers of an agent's frames, one after the other."""
    number = 0
    while True:
        number += 1
        yield Writer("node", "n1", 1, number)


@dataclass
class History:
    """A catalogue that is told one event a frame."""

    catalogue: Catalogue = field(default_factory=Catalogue)
    seq: int = 0

    def tell(self, *events: Event) -> Catalogue:
        for event in events:
            self.seq += 1
            service: Service = "node"
            subject = fact("node", "n1")
            if isinstance(event, CheckpointVerified | CheckpointFailed):
                service, subject = "checkpoint", fact("checkpoint", "c1")
            elif isinstance(event, JobCompleted):
                service, subject = "scheduler", DECISION
            writer = Writer(service, "x", 1, self.seq)
            self.catalogue.apply(Recorded(self.seq, subject, Frame(writer, (event,))))  # type: ignore[arg-type]
        return self.catalogue
