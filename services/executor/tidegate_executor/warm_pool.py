"""Keeps sandboxes ready for the images and levels that members here asked for last, and fills up what they take.

At levels whose sandboxes can be given their image late some more stand without one, for the first of an image and for
those that come faster than such are made. Which of them is whose is settled when a member is taken: its user on the
host is that of the sandbox it will get. What stands ready leaves with its image, when others are asked for, and when
the agent ends. It must never hold up a start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

import structlog
from tidegate_events.cancellation import honour_cancellation

from tidegate_executor.images import Image
from tidegate_executor.sandbox.base import DiskLimits, Layer, SandboxBackend, SandboxError, SandboxSpec
from tidegate_executor.sandbox.ready import Outfit, outfit_of
from tidegate_executor.sandbox.shimmed import ShimmedBackend
from tidegate_executor.settings import Settings
from tidegate_executor.starts import Starts

KINDS_MAX = 8
UID_SLOTS_MAX = 512  # from the other end than members take theirs from, the last one left to probes

NO_IMAGE = ""

log = structlog.get_logger()


class Kind(NamedTuple):
    """A level, the digest of an image or `NO_IMAGE`, and whether members with devices ask for it, who may need more."""

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
        self._without_image = {
            _without_image(level): Asked((), Outfit(disk=_disk_of(settings)))
            for level, backend in self._backends.items()
            if backend.images_come_late and settings.warm_without_image
        }
        self._without_image_each = settings.warm_without_image
        self._memory_mib = settings.warm_memory_mib
        self._starts = starts
        self._asked: dict[Kind, Asked] = {}
        self._barred: set[Kind] = set()  # could not be made; tried again when the next member comes
        self._told = asyncio.Event()
        self._told.set()
        self._asked_times = 0
        self.claimed: Callable[[], Set[int]] = frozenset

    def counters(self) -> dict[str, float]:
        """Return how many members got a sandbox that stood ready and how many did not, by names of NODE_COUNTERS."""
        warm = sum(backend.ready.hits for backend in self._backends.values())
        late = sum(backend.ready.hits_without_image for backend in self._backends.values())
        cold = max(self._asked_times - warm - late, 0)
        return {"starts_warm": float(warm), "starts_image_late": float(late), "starts_cold": float(cold)}

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
        outfit = outfit_of(spec)
        self._asked.pop(kind, None)
        self._asked[kind] = Asked(spec.layers, outfit)
        if (without := _without_image(level)) in self._without_image:
            self._without_image[without] = Asked((), Outfit(plugged=outfit.plugged, disk=outfit.disk))
        self._barred.discard(without)
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
        asked = self._known().get(kind)
        if slot is None or asked is None:
            self._bar(kind)
            return
        try:
            await self._backends[kind.level].make_ready(asked.layers, slot, asked.outfit)
        except SandboxError as error:
            log.warning("sandbox_not_kept_ready", isolation=kind.level, digest=kind.digest, why=str(error))
            self._bar(kind)
            return
        if not any(left.digest == kind.digest for left in self._known()):  # it left meanwhile
            await self._backends[kind.level].ready.discard(asked.layers)

    def _known(self) -> dict[Kind, Asked]:
        """What may stand ready, what comes first last."""
        without = {kind: asked for kind, asked in self._without_image.items() if kind not in self._barred}
        return {**self._asked, **without}

    def _bar(self, kind: Kind) -> None:
        """Make none of it until one like it is asked for again."""
        self._asked.pop(kind, None)
        if kind in self._without_image:
            self._barred.add(kind)

    async def _trim(self) -> None:
        wanted, known = self._wanted(), self._known()
        for level, backend in self._backends.items():
            await backend.ready.discard_ended()
            counts = {
                (known[kind].layers, kind.devices): count for kind, count in wanted.items() if kind.level == level
            }
            await backend.ready.trim(counts)

    def _missing(self) -> Kind | None:
        """Return of what there are too few, what was asked for last first."""
        known = self._known()
        for kind, count in self._wanted().items():
            if self._backends[kind.level].ready.count(known[kind].layers, devices=kind.devices) < count:
                return kind
        return None

    def _wanted(self) -> dict[Kind, int]:
        """Return how many of each there shall be: as many as there is room for, what comes first first."""
        left_mib = self._memory_mib
        wanted: dict[Kind, int] = {}
        for kind in reversed(self._known()):
            each = self._without_image_each if kind in self._without_image else self._each
            each_mib = self._backends[kind.level].ready_mib
            wanted[kind] = min(each, left_mib // each_mib)
            left_mib -= wanted[kind] * each_mib
        return wanted

    def _free_slot(self) -> int | None:
        slots = next(iter(self._backends.values())).settings.uid_slots
        taken = set(self.claimed()).union(*(backend.ready.uid_slots() for backend in self._backends.values()))
        last = max(slots - 1 - UID_SLOTS_MAX, 0)
        return next((slot for slot in range(slots - 2, last - 1, -1) if slot not in taken), None)


def _without_image(level: str) -> Kind:
    return Kind(level, NO_IMAGE, devices=False)


def _disk_of(settings: Settings) -> DiskLimits | None:
    """What each member's sandbox will have, where the operator bounds disks."""
    mib = settings.sandbox_disk_mib
    return DiskLimits(mib=mib, inodes=settings.sandbox_inodes) if mib else None
