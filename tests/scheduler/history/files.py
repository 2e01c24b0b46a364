"""Runs of a cluster, and files that hold them, for tests of what is read from history."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tidegate_events.frame import encode
from tidegate_events.journal.archive import ArchiveWriter
from tidegate_events.journal.base import Raw, Recorded
from tidegate_scheduler.history.source import FileSource, open_file

from tests.support.cluster import Cluster, spec


def a_history() -> Cluster:
    """A job of low priority makes room for one of high priority, and comes back; a second later each."""
    cluster = Cluster()
    cluster.node("n1", 2000)
    cluster.node("n2", 1000, levels=("guarded",))
    cluster.advance(1)
    low = cluster.submit(spec(1500, priority=1), "low")
    cluster.settle()
    cluster.start(low)
    cluster.advance(1)
    cluster.submit(spec(1500, priority=5), "high")
    cluster.settle()
    cluster.submit(spec(1600, priority=0), "last")
    cluster.settle()
    cluster.advance(1)
    cluster.save(low, 10)
    cluster.exit(low, "suspended", acknowledged=True)
    cluster.start("high")
    cluster.advance(1)
    cluster.exit("high", "completed")
    cluster.start(low)
    cluster.advance(1)
    cluster.exit(low, "completed")
    return cluster


def write(path: Path, frames: Iterable[Recorded], **more: object) -> Path:
    """Write frames as an archive file."""
    frames = list(frames)
    first_seq = frames[0].seq if frames else 1
    with ArchiveWriter(path, first_seq=first_seq, **more) as writer:  # type: ignore[arg-type]
        for recorded in frames:
            writer.add(Raw(recorded.seq, recorded.subject, encode(recorded.frame)))
    return path


def history_in(path: Path, cluster: Cluster) -> FileSource:
    """Return the history of a cluster, from a file."""
    return open_file(write(path / "history.tgj", cluster.frames))


def told(_text: str, _done: int = 0, _total: int = 0) -> None:
    """Nobody watches."""
