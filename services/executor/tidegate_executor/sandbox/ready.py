"""Sandboxes that stand ready, each for one image or any, and one uid, before it is known which job gets it.

Each is a shim like any other, which has built all that depends on its image alone and waits for the rest. It ends with
this process, its processes and groups with it; its directory, below `.ready`, is removed by whoever finds it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog

from tidegate_executor.sandbox import plan
from tidegate_executor.sandbox.base import DiskLimits, Layer, SandboxSpec
from tidegate_executor.sandbox.launch import READY_PREFIX, Waiting, await_end, is_quiet
from tidegate_executor.sandbox.plan import PlanEntry, comes_late
from tidegate_executor.sandbox.remains import clear_remains
from tidegate_executor.sandbox.state import StateDirectory

DIRECTORY = ".ready"  # beside the sandboxes; no sandbox id starts with a dot

log = structlog.get_logger()


LATE = ("id", "hostname", "log_dir", "workdir", "mounts", "pids_max", "log_bytes_max", "redact", "network", "devices")
"""What of a specification a sandbox that stands can be given. All else, its disk too, it was built with."""


class Describe(Protocol):
    """In a thread: what of a shim's configuration is a backend's own, for a sandbox with these mounts."""

    def __call__(self, spec: SandboxSpec, state: StateDirectory, plan: list[PlanEntry]) -> dict[str, Any]: ...


class Outfit(msgspec.Struct, frozen=True, kw_only=True):
    """What one that stands ready has beside its image, after members like the one that shall have it.

    `plugged`: a cable. `devices`: it is for members with devices, and others get none of these. `points`: see
    `plan.points`.
    """

    plugged: bool = False
    devices: bool = False
    disk: DiskLimits | None = None
    points: frozenset[tuple[str, bool]] = frozenset()


def outfit_of(spec: SandboxSpec) -> Outfit:
    """What another one like it needs."""
    return Outfit(
        plugged=spec.network is not None, devices=bool(spec.devices), disk=spec.disk, points=plan.points(spec)
    )


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """One that stands, built by `spec`. `mounts` are what it has mounted; `describe` goes on for its backend.

    `pointed`: that backend cannot make places inside layers later. One without layers is for any image, which comes
    late then, with the places in it.
    """

    spec: SandboxSpec
    shim: Waiting
    state: StateDirectory
    mounts: list[PlanEntry]
    outfit: Outfit
    describe: Describe
    pointed: bool

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self.spec.layers

    def suits(self, layers: tuple[Layer, ...]) -> bool:
        """Whether a sandbox of this image can be made of it."""
        return self.layers == layers or (not self.layers and comes_late(layers, self.mounts))

    def becomes(self, spec: SandboxSpec) -> bool:
        """Whether a sandbox of that specification can be made of it."""
        if self.layers and self.pointed and plan.points(spec) != self.outfit.points:
            return False
        late = {name: getattr(spec, name) for name in LATE} | {"layers": spec.layers}
        return self.suits(spec.layers) and msgspec.structs.replace(self.spec, **late) == spec

    @property
    def lives(self) -> bool:
        return is_quiet(self.shim.connection)


class ReadySandboxes:
    """Those of one backend.

    `hits` counts the sandboxes that were one of their image since this process began, `hits_without_image` those that
    were one to which their image came late.
    """

    def __init__(self, sandboxes_dir: str) -> None:
        self.directory = Path(sandboxes_dir, DIRECTORY)
        self._standing: list[Ready] = []
        self._promised: dict[str, Ready] = {}
        self.hits = self.hits_without_image = 0

    @property
    def standing(self) -> tuple[Ready, ...]:
        return tuple(self._standing)

    def add(self, ready: Ready) -> None:
        self._standing.append(ready)

    def layers(self) -> list[tuple[Layer, ...]]:
        """Return the layers of each that stands."""
        return [ready.layers for ready in self._standing]

    def count(self, layers: tuple[Layer, ...], *, devices: bool) -> int:
        """Return how many of this image stand for members with devices, or for those without."""
        return sum(ready.layers == layers and ready.outfit.devices == devices for ready in self._standing)

    def uid_slots(self) -> set[int]:
        return {ready.spec.uid_slot for ready in self._standing}

    def groups(self) -> set[str]:
        """Return their control groups, with those of sandboxes that are just being made ready. Blocks."""
        records = [state.record() for state in self._states()]
        return {record.group_name for record in records if record is not None}

    def _states(self) -> list[StateDirectory]:
        names = sorted(path.name for path in self.directory.iterdir()) if self.directory.is_dir() else []
        return [StateDirectory(str(self.directory), name) for name in names if name.startswith(READY_PREFIX)]

    def promise(self, layers: tuple[Layer, ...], sandbox: str, *, devices: bool = False) -> int | None:
        """Return the uid slot of one that is kept for this sandbox; None where none stands ready for its like."""
        promised = set(map(id, self._promised.values()))
        free = [ready for ready in self._standing if id(ready) not in promised and ready.lives]
        fits = [ready for ready in free if ready.layers == layers and ready.outfit.devices == devices]
        fits += [ready for ready in free if not ready.layers and layers and ready.suits(layers)]
        if not fits:
            return None
        self._promised[sandbox] = fits[0]
        return fits[0].spec.uid_slot

    def withdraw(self, sandbox: str) -> None:
        """Keep none for it any more."""
        self._promised.pop(sandbox, None)

    def take(self, sandbox: str) -> Ready | None:
        """Return the one that is kept for this sandbox, which is the caller's then; None where none is."""
        ready = self._promised.pop(sandbox, None)
        if ready is None or ready not in self._standing:
            return None
        self._standing.remove(ready)
        return ready

    async def discard(self, layers: tuple[Layer, ...] | None = None) -> None:
        """End those of an image, or of all."""
        await self._discard([ready for ready in self._standing if layers is None or ready.layers == layers])

    async def trim(self, wanted: Mapping[tuple[tuple[Layer, ...], bool], int]) -> None:
        """Keep so many of each image, for members with devices or for those without, those that were made first."""
        left = dict(wanted)
        leaving = []
        for ready in self._standing:
            kind = ready.layers, ready.outfit.devices
            left[kind] = left.get(kind, 0) - 1
            if left[kind] < 0:
                leaving.append(ready)
        await self._discard(leaving)

    async def discard_ended(self) -> None:
        """Remove those that ended by themselves: nobody can have one."""
        await self._discard([ready for ready in self._standing if not ready.lives])

    async def _discard(self, leaving: list[Ready]) -> None:
        for ready in leaving:
            self._standing.remove(ready)
        for ready in leaving:
            await self.end(ready)

    async def end(self, ready: Ready) -> None:
        """End one that does not stand for anybody any more."""
        await await_end(ready.shim)
        await asyncio.to_thread(clear_remains, ready.state)

    def let_go(self) -> None:
        """Have all of them end by themselves: this process ends."""
        for ready in self._standing:
            ready.shim.connection.close()
        self._standing.clear()

    def clear_strays(self) -> None:
        """Remove what another process, which has ended, left ready. Blocks."""
        own = {ready.state.id for ready in self._standing}
        for state in self._states():
            if state.id not in own:
                clear_remains(state)
