"""What a process knows of the packs of its store, kept between operations and brought up to date before each."""

from __future__ import annotations

import logging
import os
import threading
from typing import Iterable, Optional, Set

from tidegate.checkpoint.pack import NAME, SUFFIX, Index, Located, read_index
from tidegate.checkpoint.places import Places
from tidegate.errors import CorruptCheckpointError

_log = logging.getLogger("tidegate.checkpoint")


class Shelf:
    """The index over the packs of one store. Used under the store's lock: see places.in_use."""

    def __init__(self) -> None:
        self._index = Index()
        self._refused: Set[str] = set()
        self._lock = threading.Lock()

    def refresh(self, places: Places) -> Index:
        """Return the index over all packs that are there now; one that is not whole is left out, and said once."""
        with self._lock:
            there = {name for name in os.listdir(places.packs) if NAME.match(name)}
            gone = [pack for pack in self._index.packs if pack + SUFFIX not in there]
            if gone:
                kept = [self._index.packs[pack] for pack in self._index.packs if pack + SUFFIX in there]
                self._index = Index()
                for pack in kept:
                    self._index.add(pack)
            self._read(places, sorted(there - {pack + SUFFIX for pack in self._index.packs}))
            return self._index

    def with_packs(self, places: Places, packs: Iterable[str]) -> Index:
        """Return an index that has at least the named packs, where they are there and whole."""
        with self._lock:
            self._read(places, [pack + SUFFIX for pack in packs if pack not in self._index.packs])
            return self._index

    def _read(self, places: Places, names: Iterable[str]) -> None:
        for name in names:
            try:
                self._index.add(read_index(places.packs, name))
            except (CorruptCheckpointError, OSError) as error:
                if name not in self._refused:
                    self._refused.add(name)
                    _log.warning("a pack is not used: %s", error)

    def distrust(self, located: Optional[Located]) -> None:
        """Forget a chunk that was found damaged: the next save writes it again instead of pointing to it."""
        if located is not None:
            with self._lock:
                self._index.drop(located)
