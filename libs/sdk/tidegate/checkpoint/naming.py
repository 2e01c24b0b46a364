"""Gives written files their names: the bytes of all made durable side by side, then the names, then those durable.

Files that are made durable one after the other wait for the disk each, and for the file system's journal. Asked for at
once they wait together. What counts is that no name is given before the bytes below it are durable.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Sequence

from tidegate.checkpoint import files
from tidegate.checkpoint.crew import Crew
from tidegate.checkpoint.places import Places


class Unnamed(NamedTuple):
    """A file with all of its bytes, and the name that it is to have in an open directory."""

    temporary: files.Temporary
    directory: int
    name: str


def name_all(
    places: Places, crew: Crew, unnamed: Sequence[Unnamed], directories: Sequence[int], beside: Sequence[int] = ()
) -> None:
    """Make files durable under their names. `beside` are descriptors of others whose bytes become durable with theirs.

    The `directories` are made durable also where nothing was named in them: another process may have named what this
    one found there, and not have come that far.
    """
    crew.map(files.seal, [*(each.temporary.descriptor for each in unnamed), *beside])
    for each in unnamed:
        each.temporary.name_as(each.directory, each.name)
    staging = [places.staging] if places.staging != places.base else []
    crew.map(_sync, [*directories, *staging])


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)
