"""Keeps sandboxes ready for the images and levels that members here asked for last, and fills up what they take.

Which of them is whose is settled when a member is taken: its user on the host is that of the sandbox it will get. What
stands ready leaves with its image, when others are asked for, and when the agent ends. It must never hold up a start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

import structlog
from tidegate_events.cancellation import honour_cancellation

from tidegate_executor.images import Image
from tidegate_executor.sandbox.base import Layer, SandboxBackend, SandboxError, SandboxSpec
from tidegate_executor.sandbox.ready import Outfit, outfit_of
from tidegate_executor.sandbox.shimmed import ShimmedBackend
from tidegate_executor.settings import Settings
from tidegate_executor.starts import Starts

KINDS_MAX = 8
UID_SLOTS_MAX = 512  # from the other end than members take theirs from, the last one left to probes

log = structlog.get_logger()


class Kind(NamedTuple):
    """A level, the digest of an image, and whether members with devices ask for it: they may need more of it."""

    level: str
    digest: str
    devices: bool


class Asked(NamedTuple):
    """What members of a kind asked for: an image's layers, and what the last of them needed beside."""

    layers: tuple[Layer, ...]
    outfit: Outfit


class WarmPool:
    """See the module. `claimed` are the uid slots of the members here."""

    def __init__(self, backends: Mapping[str, SandboxBackend], settings: Settings, starts: Starts) -> None:
        self._backends = {
            level: backend
            for level, backend in backends.items()
            if isinstance(backend, ShimmedBackend) and backend.keeps_ready and settings.warm_sandboxes
        }
        self._each = settings.warm_sandboxes
        self._memory_mib = settings.warm_memory_mib
        self._starts = starts
        self._asked: dict[Kind, Asked] = {}
        self._told = asyncio.Event()
        self._asked_times = 0
        self.claimed: Callable[[], Set[int]] = frozenset

    def counters(self) -> dict[str, float]:
        """Return how many members got a sandbox that stood ready and how many did not, by names of NODE_COUNTERS."""
        hits = sum(backend.ready.hits for backend in self._backends.values())
        return {"starts_warm": float(hits), "starts_cold": float(max(self._asked_times - hits, 0))}

    def promise(self, level: str, image: Image, sandbox: str, *, devices: bool) -> int | None:
        """Return the uid slot of a sandbox that is kept for this member, None where none stands ready for it."""
        backend = self._backends.get(level)
        return backend.ready.promise(image.layers, sandbox, devices=devices) if backend is not None else None

    def withdraw(self, level: str, sandbox: str) -> None:
        """Keep none for the member any more."""
        if level in self._backends:
            self._backends[level].ready.withdraw(sandbox)

    def asked(self, level: str, digest: str, spec: SandboxSpec) -> None:
        """Note that a member has its sandbox: the next one like it will be asked for, and may be missing now."""
        if level not in self._backends:
            return
        self._asked_times += 1
        kind = Kind(level, digest, bool(spec.devices))
        self._asked.pop(kind, None)
        self._asked[kind] = Asked(spec.layers, outfit_of(spec))
        while len(self._asked) > KINDS_MAX:
            del self._asked[next(iter(self._asked))]
        self._told.set()

    async def leave(self, digest: str) -> None:
        """Have none of this image any more: it leaves the node."""
        leaving = [kind for kind in self._asked if kind.digest == digest]
        for kind in leaving:
            asked = self._asked.pop(kind, None)
            if asked is not None:
                await self._backends[kind.level].ready.discard(asked.layers)

    async def run(self) -> None:
        """Fill up what was taken, until cancelled; then let go of all."""
        try:
            while True:
                await self._told.wait()
                self._told.clear()
                await self._trim()
                while (missing := self._missing()) is not None:
                    honour_cancellation()
                    await self._starts.over()
                    await self._fill(missing)
        finally:
            for backend in self._backends.values():
                backend.ready.let_go()

    async def _fill(self, kind: Kind) -> None:
        slot = self._free_slot()
        asked = self._asked.get(kind)
        if slot is None or asked is None:
            self._asked.pop(kind, None)
            return
        try:
            await self._backends[kind.level].make_ready(asked.layers, slot, asked.outfit)
        except SandboxError as error:
            log.warning("sandbox_not_kept_ready", isolation=kind.level, digest=kind.digest, why=str(error))
            self._asked.pop(kind, None)  # until one like it is asked for again
            return
        if not any(left.digest == kind.digest for left in self._asked):  # it left meanwhile
            await self._backends[kind.level].ready.discard(asked.layers)

    async def _trim(self) -> None:
        wanted = self._wanted()
        for level, backend in self._backends.items():
            await backend.ready.discard_ended()
            counts = {
                (self._asked[kind].layers, kind.devices): count for kind, count in wanted.items() if kind.level == level
            }
            await backend.ready.trim(counts)

    def _missing(self) -> Kind | None:
        """Return of what there are too few, what was asked for last first."""
        for kind, count in self._wanted().items():
            standing = self._backends[kind.level].ready.count(self._asked[kind].layers, devices=kind.devices)
            if standing < count:
                return kind
        return None

    def _wanted(self) -> dict[Kind, int]:
        """Return how many of each there shall be: as many as there is room for, what was asked for last first."""
        left_mib = self._memory_mib
        wanted: dict[Kind, int] = {}
        for kind in reversed(self._asked):
            each_mib = self._backends[kind.level].ready_mib
            wanted[kind] = min(self._each, left_mib // each_mib)
            left_mib -= wanted[kind] * each_mib
        return wanted

    def _free_slot(self) -> int | None:
        slots = next(iter(self._backends.values())).settings.uid_slots
        taken = set(self.claimed()).union(*(backend.ready.uid_slots() for backend in self._backends.values()))
        last = max(slots - 1 - UID_SLOTS_MAX, 0)
        return next((slot for slot in range(slots - 2, last - 1, -1) if slot not in taken), None)
