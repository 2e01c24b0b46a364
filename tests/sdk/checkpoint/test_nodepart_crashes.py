"""A crash while one node stores its part of a checkpoint of several nodes: none that was told of is lost or wrong."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from tidegate.checkpoint import gathering, nodepart, places, sharding
from tidegate.checkpoint import snapshot as snapshots
from tidegate.checkpoint.commit import Occasion
from tidegate.checkpoint.crew import Crew
from tidegate.checkpoint.direct import Arenas
from tidegate.checkpoint.gathering import Meeting
from tidegate.checkpoint.nodepart import Spread
from tidegate.checkpoint.root import Root
from tidegate.checkpoint.shelf import Shelf
from tidegate.checkpoint.store import CheckpointStore, verify
from tidegate.checkpoint.writing import Kept

from tests.sdk.checkpoint.crash_states import Create, Operation, Recording, State, check_all
from tests.support.stores import STAMP


class Telling:
    """Implements nodepart.Gang: whoever joins copies the part as if it were the root of all."""

    def __init__(self, recording: Recording, top: Path) -> None:
        self._recording = recording
        self._top = top

    def stored(self, save: str, part: Root, ranks: tuple[int, ...]) -> None:
        self._recording.mark("durable", part.name)

    def failed(self, save: str, step: int, rank: int, why: str) -> None:
        raise AssertionError(why)

    def outcome(self, save: str, part: Root) -> str:
        with places.opened(self._top) as held:
            nodepart.put(held, nodepart.JOINED, part)
        return part.name


def check(top: Path, state: State) -> None:
    """Raise where a part that was told of is lost, or one that is there is not whole."""
    with places.opened(top, create=True) as held:
        found = {part.name: part for part in nodepart.parts(held)}
        assert state.durable <= found.keys(), f"lost: {state.durable - found.keys()}"
        index = Shelf().refresh(held)
        for name, part in found.items():
            if name not in state.doubtful or name in state.durable:
                verify(held, index, part, Crew(1))


def without_the_meeting(recording: Recording) -> None:
    """Leave out what ranks tell each other: nobody reads it after a crash, and so nobody makes it durable."""
    met = {
        each.inode for each in recording.operations if isinstance(each, Create) and each.directory == gathering.PARTS
    }

    def is_of_it(each: Operation) -> bool:
        return getattr(each, "directory", None) == gathering.PARTS or getattr(each, "inode", None) in met

    recording.operations[:] = [each for each in recording.operations if not is_of_it(each)]


def test_no_crash_loses_a_part_that_was_told_of(tmp_path: Path) -> None:
    top = tmp_path / "store"
    store = CheckpointStore(top, STAMP, keep=2, crew=Crew(1))
    store.open()
    for name in (gathering.PARTS, nodepart.NODE_PARTS, nodepart.JOINED):
        (top / name).mkdir()
    recording, arenas = Recording(top), Arenas(2)
    kept: Kept | None = None
    told: list[str] = []
    with places.opened(top, create=True), recording.listening():
        for step in range(1, 5):
            layers = {"model": {"w": random.Random(step // 2).randbytes(9000)}, "state": {"step": step}}
            number = sharding.key_on_node(step, STAMP, step, 0)
            spread = Spread(sharding.key(step, STAMP, step), Telling(recording, top), 60.0)
            copied = snapshots.take(layers, arenas)
            committed, kept = store.save_part(
                Occasion(step, STAMP), copied, Meeting(number, 0, 1), kept=kept, spread=spread
            )
            told.append(committed.name)
            for old in told[:-2]:
                recording.mark("removed", old)
            store.retain()
    with places.opened(top) as held:
        assert [part.name for part in nodepart.parts(held)] == told[-2:]
    without_the_meeting(recording)
    scratch = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path
    scratch = scratch / f"tidegate-crash-parts-{os.getpid()}"
    try:
        tally = check_all(recording, scratch, check, samples=10)
    finally:
        shutil.rmtree(scratch)
    assert min(tally.checked.values()) > 100, "both orderings"
