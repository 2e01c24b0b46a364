"""One checkpoint of several ranks: each stores its part, the first one makes the root, and any failure vetoes it.

The ranks meet in the directory `parts` of the store that they share. Each puts a file there that says what it stored,
or that it failed, and holds a lock on it: a file that nobody holds was left by a process that is gone. Rank 0 waits for
all of them, makes the root or does not, and says which in a file that names whom it is for.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional

from tidegate.checkpoint import files
from tidegate.checkpoint.places import Places, below
from tidegate.errors import SaveFailedError

PARTS = "parts"
OUTCOME = ".outcome.json"
GATHER_SECONDS_MAX = 600.0
GATHER_RETRY_SECONDS = 0.02
PART_BYTES_MAX = 1 << 20
REASON_CHARS_MAX = 500


class VetoedError(SaveFailedError):
    """A rank said that it failed; `rank` is the first that did."""

    def __init__(self, text: str, rank: int) -> None:
        super().__init__(text)
        self.rank = rank


@dataclass(frozen=True)
class Meeting:
    """Which ranks meet: `key` names the occasion, the same on each of them and another for each save.

    Where they are those of one node of several, they are counted from 0 on that node. The others give the first one
    `then_seconds` more: it joins what they hold with what other nodes hold.
    """

    key: str
    rank: int
    world_size: int
    seconds_max: float = GATHER_SECONDS_MAX
    then_seconds: float = 0.0


@contextmanager
def announced(places: Places, meeting: Meeting, part: Dict[str, Any]) -> Iterator["Gathering"]:
    """Say what this rank stored, or that it failed, for as long as the block runs."""
    parts = below(places.base, PARTS, True)
    held, name, nonce = -1, f"{meeting.key}.{meeting.rank}.json", os.urandom(16).hex()
    try:
        with files.Temporary(places.base) as temporary:
            data = json.dumps({**part, "nonce": nonce}).encode()
            files.write_all(temporary.descriptor, memoryview(data))
            held = os.dup(temporary.descriptor)  # its lock is the same one, and outlives the temporary name
            temporary.name_as(parts, name)
        yield Gathering(places, parts, meeting, nonce)
    finally:
        files.unlink_quietly(parts, name)
        if held >= 0:
            os.close(held)
        os.close(parts)


class Gathering:
    """The meeting as one rank sees it."""

    def __init__(self, places: Places, parts: int, meeting: Meeting, nonce: str) -> None:
        self._places = places
        self._parts = parts
        self._meeting = meeting
        self._nonce = nonce
        then_seconds = 0.0 if meeting.rank == 0 else meeting.then_seconds
        self._give_up = time.monotonic() + meeting.seconds_max + then_seconds

    def lead(
        self,
        make_root: Callable[[List[Dict[str, Any]]], str],
        on_failed: Callable[[Exception], None] = lambda error: None,
    ) -> str:
        """Wait for every rank, make the root out of their parts, and tell them; return the root's name.

        Raises SaveFailedError, which the others raise too, where one failed or did not come; `on_failed` hears it
        first.
        """
        found: List[Dict[str, Any]] = []
        try:
            found = self._collected()
            self._forget_outcomes()
            failed = [
                (int(part.get("rank", rank)), str(part["failed"]))
                for rank, part in enumerate(found)
                if part.get("failed")
            ]
            if failed:
                said = "; ".join(f"rank {rank}: {why}" for rank, why in failed)
                raise VetoedError(f"a checkpoint of {len(found)} ranks was vetoed: {said}", failed[0][0])
            root = make_root(found)
        except Exception as error:
            self._tell(found, {"failed": str(error)[:REASON_CHARS_MAX]})
            on_failed(error)
            raise
        self._tell(found, {"root": root})
        return root

    def _forget_outcomes(self) -> None:
        """Remove what was said about earlier saves of these ranks: each of them is at this one now."""
        own, group = f"{self._meeting.key}{OUTCOME}", self._meeting.key.split("-")[2]
        for name in os.listdir(self._parts):
            if name.endswith(OUTCOME) and name != own and name.split("-")[2:3] == [group]:
                files.unlink_quietly(self._parts, name)

    def _collected(self) -> List[Dict[str, Any]]:
        found: Dict[int, Dict[str, Any]] = {}
        while len(found) < self._meeting.world_size:
            for rank in range(self._meeting.world_size):
                part = None if rank in found else self._part(rank)
                if part is not None:
                    found[rank] = part
            if len(found) < self._meeting.world_size and not self._wait():
                missing = sorted(set(range(self._meeting.world_size)) - set(found))
                raise SaveFailedError(
                    f"ranks {missing} stored nothing within {self._meeting.seconds_max:.0f} s; the ranks have to save "
                    "into one directory, as those of one node do"
                )
        return [found[rank] for rank in range(self._meeting.world_size)]

    def _part(self, rank: int) -> Optional[Dict[str, Any]]:
        """Return what a living rank said; None where it has not come yet."""
        try:
            with files.open_inside(self._parts, f"{self._meeting.key}.{rank}.json") as file:
                try:
                    fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return None  # nobody holds it
                except BlockingIOError:
                    return _decoded(b"".join(files.blocks(file, PART_BYTES_MAX)))
        except FileNotFoundError:
            return None

    def _tell(self, found: List[Dict[str, Any]], outcome: Dict[str, Any]) -> None:
        document = {**outcome, "nonces": [part["nonce"] for part in found], "from": self._nonce}
        with files.Temporary(self._places.base) as temporary:
            files.write_all(temporary.descriptor, memoryview(json.dumps(document).encode()))
            temporary.name_as(self._parts, f"{self._meeting.key}{OUTCOME}")

    def follow(self) -> str:
        """Wait until rank 0 made the root; return its name. Raises SaveFailedError where it did not."""
        while True:
            try:
                data = files.read_bounded(self._parts, f"{self._meeting.key}{OUTCOME}", PART_BYTES_MAX)
                outcome = _decoded(data)
            except FileNotFoundError:
                outcome = {}
            if self._nonce in outcome.get("nonces", ()):
                if outcome.get("failed"):
                    raise SaveFailedError(str(outcome["failed"]))
                return str(outcome["root"])
            if not self._wait():
                raise SaveFailedError(
                    f"rank 0 did not say within {self._meeting.seconds_max:.0f} s what became of it; the ranks have to "
                    "save into one directory, as those of one node do"
                )

    def _wait(self) -> bool:
        if time.monotonic() >= self._give_up:
            return False
        time.sleep(GATHER_RETRY_SECONDS)
        return True


def _decoded(data: bytes) -> Dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise SaveFailedError(f"what a rank said about its part is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise SaveFailedError("what a rank said about its part is no JSON object")
    return document
