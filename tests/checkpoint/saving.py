"""Checkpoints as a job's SDK writes them, and the facts that its agent reports about them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.checkpoint import commit, layer
from tidegate.checkpoint import root as roots
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

LAYERS = {
    "model": {"w": list(range(50))},
    "optimizer": {"m": [0.5] * 50},
    "experience": {"seen": b"x" * 3000},
    "state": {"step": 7},
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
        """Save layers of our own format; return the agent's report."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with commit.Temporary(self.directory, step) as temporary:
            snapshots = [layer.snapshot(name, value) for name, value in (layers or LAYERS).items()]
            root, path = temporary.commit(self._stamp(), tuple(temporary.write_layer(each) for each in snapshots))
        return self.report(root, path)

    def save_tree(self, step: int, files: dict[str, bytes]) -> CheckpointSaved:
        """Save layers that are trees of files."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with commit.Temporary(self.directory, step) as temporary:
            for name, data in files.items():
                path = temporary.path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            root, path = temporary.commit(self._stamp(), temporary.take_directories())
        return self.report(root, path)

    def report(self, root: roots.Root, path: Path) -> CheckpointSaved:
        """Return what the agent says about a committed checkpoint."""
        layers = tuple(LayerRef(name=each.name, digest=each.sha256, size_bytes=each.bytes) for each in root.layers)
        ref = CheckpointRef(id=root.id, step=root.step, attempt=root.stamp.attempt, directory=path.name, layers=layers)
        return self.saved(ref)

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

    def path(self, saved: CheckpointSaved) -> Path:
        return self.directory / saved.checkpoint.directory

    def remove(self, saved: CheckpointSaved) -> None:
        """Remove it as the SDK's retention does."""
        commit.remove_committed(self.path(saved))

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
