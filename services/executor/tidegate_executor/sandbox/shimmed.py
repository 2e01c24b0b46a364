"""What every backend with a shim is: creation, reconciliation, sweeping; a backend adds what is its own level's."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from tidegate_executor.cgroups.base import CgroupError, Driver
from tidegate_executor.cgroups.detect import Detected, detect
from tidegate_executor.sandbox import disk, networks
from tidegate_executor.sandbox.base import (
    LOG_BYTES_MIN,
    BackendUnavailableError,
    FoundSandbox,
    InfrastructureError,
    Layer,
    Level,
    RequestRefusedError,
    Sandbox,
    SandboxSpec,
)
from tidegate_executor.sandbox.handle import ShimSandboxHandle
from tidegate_executor.sandbox.launch import (
    READY_PREFIX,
    Waiting,
    ground_of,
    refill,
    take_shim,
    tell_shim,
    zygotes,
)
from tidegate_executor.sandbox.making import make, undo
from tidegate_executor.sandbox.plan import PlanEntry, build_etc, is_deep, late_plan, mount_plan
from tidegate_executor.sandbox.ready import Describe, Outfit, Ready, ReadySandboxes, outfit_of
from tidegate_executor.sandbox.settings import SandboxSettings
from tidegate_executor.sandbox.shim.layout import FILES_NAME
from tidegate_executor.sandbox.state import ID_PATTERN, SandboxRecord, StateDirectory
from tidegate_executor.turns import to_its_end

PIDS_MAX_LEAST = 4
READY_MIB = {("bwrap", "trusted"): 4, ("gvisor", "guarded"): 64, ("docker", "trusted"): 16, ("docker", "guarded"): 16}
"""Backends of which sandboxes can stand ready, and what memory one is reckoned to take."""
LATE_IMAGE = ("bwrap",)
ENTERED_BY_USERS = ("bwrap",)
POINTED = ("bwrap",)  # a sandbox may make no place in layers, whatever it is given later
BASE_NAME = ".base"  # beside the sandboxes: what they share; no sandbox id starts with a dot


log = structlog.get_logger()


class ShimmedBackend(ABC):
    """The sandboxes of one level below `sandboxes_dir`. A backend adds `probe` and `_describe`.

    See `SandboxBackend`.
    """

    def __init__(
        self, settings: SandboxSettings, kind: tuple[str, Level], *, limits_required: bool, engine: str = ""
    ) -> None:
        """`kind` is the backend's name and its level; `engine` the socket of the container engine it uses."""
        self.settings = settings
        self._backend = kind[0]
        self._level: Level = kind[1]
        self._engine = engine
        self._limits_required = limits_required
        self._detected: Detected | None = None
        self._etc: Path | None = None
        self.ready = ReadySandboxes(settings.sandboxes_dir)

    @property
    def keeps_ready(self) -> bool:
        """Whether sandboxes of this backend can stand ready here: without root, those that a user can enter."""
        return self.makes_ahead and (os.geteuid() == 0 or self._backend in ENTERED_BY_USERS)

    @property
    def images_come_late(self) -> bool:
        """Whether one that stands ready without an image can be given one: its overlays are root's to make."""
        return self.keeps_ready and self._backend in LATE_IMAGE and os.geteuid() == 0

    @property
    def makes_ahead(self) -> bool:
        """Whether groups of this backend may be there before it is known for which sandbox."""
        return (self._backend, self._level) in READY_MIB

    @property
    def ready_mib(self) -> int:
        """What memory a sandbox that stands ready is reckoned to take."""
        return READY_MIB[self._backend, self._level]

    def use_limits(self, detected: Detected) -> None:
        """Take this instead of finding out (control groups that someone else handed over)."""
        self._detected = detected

    async def limits(self) -> Detected:
        """The control groups that work here; found out once."""
        if self._detected is None:
            self._detected = await self._detect()
        return self._detected

    async def _detect(self) -> Detected:
        return await asyncio.to_thread(detect, self.settings.cgroup_name, self.settings.cgroup_parent)

    def etc(self) -> Path:
        """The /etc that sandboxes here share. Blocks."""
        if self._etc is None or not self._etc.is_dir():
            self._etc = build_etc(Path(self.settings.sandboxes_dir, BASE_NAME))
        return self._etc

    @property
    def level(self) -> Level:
        return self._level

    async def create(self, spec: SandboxSpec) -> Sandbox:
        ready = self.ready.take(spec.id)
        if ready is None:
            return await self._create(spec)
        if not ready.becomes(spec):
            return await self._create_beside(spec, ready)
        try:
            adopted = await self._adopt(spec, ready)
        except InfrastructureError as error:
            log.warning("ready_sandbox_not_used", sandbox=spec.id, why=str(error))
            return await self._create(spec)
        if ready.layers == spec.layers:
            self.ready.hits += 1
        else:
            self.ready.hits_without_image += 1
        return adopted

    async def _create_beside(self, spec: SandboxSpec, ready: Ready) -> Sandbox:
        """Create it afresh, although one was kept for it, which stays only if it has another user: each has its own."""
        if ready.spec.uid_slot != spec.uid_slot:
            self.ready.add(ready)
            return await self._create(spec)
        try:
            return await self._create(spec)
        finally:
            await self.ready.end(ready)

    def _plan(self, spec: SandboxSpec, state: StateDirectory) -> list[PlanEntry]:
        """What is mounted, in a thread. Raises RequestRefusedError."""
        return mount_plan(spec, state.path, self.etc())

    def _laid(self, spec: SandboxSpec, state: StateDirectory) -> list[PlanEntry]:
        """Have its disk, if it has one of its own, and return what is mounted."""
        if spec.disk is not None:
            disk.attach(state.path / FILES_NAME, Path(self.settings.sandboxes_dir, BASE_NAME), spec.disk)
        return self._plan(spec, state)

    @abstractmethod
    def _describe(self, spec: SandboxSpec, state: StateDirectory, plan: list[PlanEntry]) -> dict[str, Any]:
        """See `Describe`."""

    async def _describing(self, spec: SandboxSpec, group: str) -> Describe:
        """Return who describes such sandboxes in the control group of this name, once all is asked for that needs."""
        return self._describe

    async def _create(self, spec: SandboxSpec) -> ShimSandboxHandle:
        driver = await self._admit(spec)
        if self.images_come_late and is_deep(spec.layers):
            return await self._adopt(spec, await self._stand((), spec.uid_slot, outfit_of(spec)))
        describe = await self._describing(spec, spec.id)

        def prepare(state: StateDirectory) -> dict[str, Any]:
            return describe(spec, state, self._laid(spec, state))

        state = StateDirectory(self.settings.sandboxes_dir, spec.id)
        ground = ground_of(self._backend, driver.describe() if driver is not None else None)
        shim = await take_shim(self.settings.shim_python, ground)
        with shim.connection:
            made: list[StateDirectory] = []
            try:
                record = self._record(spec, driver, shim.group)
                extra = await to_its_end(make, (state, record, driver), prepare, made)
                await tell_shim(shim, self._config(spec, state, record) | extra)
            except BaseException:
                await asyncio.shield(undo(shim, *made))
                raise
        refill(self.settings.shim_python, ground)
        return ShimSandboxHandle(state, spec.log_dir)

    async def _admit(self, spec: SandboxSpec) -> Driver | None:
        self._check(spec)
        if spec.network is not None:
            networks.plan(self.settings.sandboxes_dir, spec.network)  # refuses before anything is made
        detected = await self.limits()
        if detected.driver is None and self._limits_required:
            raise BackendUnavailableError(f"no control groups: {'; '.join(detected.tried)}")
        return detected.driver

    def _record(self, spec: SandboxSpec, driver: Driver | None, group: str) -> SandboxRecord:
        return SandboxRecord(
            id=spec.id,
            level=self._level,
            log_dir=spec.log_dir,
            cgroup=driver.describe() if driver is not None else None,
            group=group,
            backend=self._backend,
            engine=self._engine,
            network=spec.network.name if spec.network is not None else "",
        )

    # --- sandboxes that stand ready ---------------------------------------------------------------------------

    async def make_ready(self, layers: tuple[Layer, ...], uid_slot: int, outfit: Outfit | None = None) -> None:
        """Have one more sandbox of this image stand ready, for members that need this outfit.

        Without layers it is one for any image. Raises InfrastructureError.
        """
        if not layers and not self.images_come_late:
            raise InfrastructureError(f"sandboxes of backend {self._backend} need their image from the start")
        if self.images_come_late and is_deep(layers):
            raise InfrastructureError("an image of so many layers always comes late: one without an image is for it")
        self.ready.add(await self._stand(layers, uid_slot, outfit or Outfit()))

    async def _stand(self, layers: tuple[Layer, ...], uid_slot: int, outfit: Outfit) -> Ready:
        name = f"{READY_PREFIX}{secrets.token_hex(6)}"
        spec = SandboxSpec(id=name, hostname="ready", log_dir="", uid_slot=uid_slot, layers=layers, disk=outfit.disk)
        driver = await self._admit(spec)
        describe = await self._describing(spec, name)
        plan: list[PlanEntry] = []

        def prepare(state: StateDirectory) -> dict[str, Any]:
            plan.extend(entry for entry in self._laid(spec, state) if entry[2] != "/workspace")
            return describe(spec, state, plan)

        assert driver is not None, "limits are required where sandboxes are kept ready"
        state = StateDirectory(str(self.ready.directory), name)
        ground = ground_of(self._backend, driver.describe())
        shim = await take_shim(self.settings.shim_python, ground)
        made: list[StateDirectory] = []
        try:
            record = self._record(spec, driver, shim.group or name)
            extra = await to_its_end(make, (state, record, driver), prepare, made)
            waiting_for = {"ready": True, "plugged": outfit.plugged, "devices": outfit.devices}
            extra |= {**waiting_for, "points": sorted(outfit.points)}
            await tell_shim(shim, self._config(spec, state, record) | extra)
        except BaseException:
            await asyncio.shield(undo(shim, *made))
            raise
        refill(self.settings.shim_python, ground)
        waiting = Waiting(shim.connection, record.group)
        pointed = self._backend in POINTED
        return Ready(
            spec=spec, shim=waiting, state=state, mounts=plan, outfit=outfit, describe=describe, pointed=pointed
        )

    async def _adopt(self, spec: SandboxSpec, ready: Ready) -> ShimSandboxHandle:
        """Make the sandbox of one that stands ready. Raises InfrastructureError; then nothing of either is left."""
        state = StateDirectory(self.settings.sandboxes_dir, spec.id)
        made = [ready.state]
        with ready.shim.connection:
            try:
                driver = await self._admit(spec)
                record = self._record(spec, driver, ready.shim.group)
                extra = await to_its_end(self._take_over, spec, (ready, state), record, made)
                await tell_shim(ready.shim, self._config(spec, state, record) | extra)
            except BaseException:
                await asyncio.shield(undo(ready.shim, *made))
                raise
        return ShimSandboxHandle(state, spec.log_dir)

    def _take_over(
        self, spec: SandboxSpec, places: tuple[Ready, StateDirectory], record: SandboxRecord, made: list[StateDirectory]
    ) -> dict[str, Any]:
        ready, state = places
        if ready.layers == spec.layers:
            plan = ready.mounts + late_plan(spec, state.path, ready.mounts)
        else:
            plan = mount_plan(spec, state.path, self.etc())
        extra = ready.describe(spec, state, plan)
        try:
            state.adopt(ready.state, record)
            made.append(state)
            Path(spec.log_dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InfrastructureError(f"sandbox {state.id}: {error}") from error
        return extra

    def _config(self, spec: SandboxSpec, state: StateDirectory, record: SandboxRecord) -> dict[str, Any]:
        return {
            "id": spec.id,
            "hostname": spec.hostname,
            "level": self._level,
            "backend": self._backend,
            "state_dir": str(state.path),
            "log_dir": spec.log_dir,
            "log_bytes_max": spec.log_bytes_max,
            "pids_max": spec.pids_max,
            "redact": list(spec.redact),
            "cgroup": record.cgroup,
            "group": record.group_name,
            "uid": self.host_uid(spec.uid_slot),
            "network": networks.plan(self.settings.sandboxes_dir, spec.network) if spec.network is not None else None,
        }

    def _check(self, spec: SandboxSpec) -> None:
        slots = self.settings.uid_slots
        if not 0 <= spec.uid_slot < slots:
            raise RequestRefusedError(f"uid_slot={spec.uid_slot} refused; accepted: 0..{slots - 1}")
        if spec.log_bytes_max < LOG_BYTES_MIN:
            raise RequestRefusedError(f"log_bytes_max={spec.log_bytes_max} refused; at least {LOG_BYTES_MIN}")
        if spec.pids_max < PIDS_MAX_LEAST:
            raise RequestRefusedError(f"pids_max={spec.pids_max} refused; at least {PIDS_MAX_LEAST}")
        if spec.disk is not None and not self.limits_disk:
            raise RequestRefusedError(f"backend {self._backend} bounds no disk here; accepted: a sandbox without")
        if spec.disk is not None and (spec.disk.mib < disk.MIB_LEAST or spec.disk.inodes < 1):
            raise RequestRefusedError(f"{spec.disk} refused; accepted: at least {disk.MIB_LEAST} MiB and an inode")

    @property
    def limits_disk(self) -> bool:
        """Whether a sandbox can have a disk of its own: an engine would not see it, in another mount namespace."""
        return self._level != "unisolated" and not self._engine and os.geteuid() == 0

    def path_inside(self, spec: SandboxSpec, target: str) -> str:
        return target

    def host_uid(self, uid_slot: int) -> int | None:
        if os.geteuid() != 0 or self._level == "unisolated":
            return None
        return self.settings.uid_base + uid_slot

    @contextmanager
    def probe_logs(self) -> Iterator[str]:
        """A directory for a probe's output, inside the data directory: an agent killed meanwhile litters no other."""
        parent = Path(self.settings.sandboxes_dir, BASE_NAME)
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="probe-", dir=parent) as directory:
            yield directory

    async def list(self) -> tuple[FoundSandbox, ...]:
        return await asyncio.to_thread(self._find)

    def _find(self) -> tuple[FoundSandbox, ...]:
        found = []
        for state in self._states():
            record = state.record()
            if record is not None and (record.backend or self._backend, record.level) != (self._backend, self._level):
                continue
            # Without a record its making was cut short before anything ran: nobody's, so every level removes it.
            handle = ShimSandboxHandle(state, record.log_dir if record is not None else "")
            found.append(FoundSandbox(condition=state.condition(), sandbox=handle))
        return tuple(found)

    def _states(self) -> Sequence[StateDirectory]:
        directory = Path(self.settings.sandboxes_dir)
        if not directory.is_dir():
            return []
        names = sorted(entry.name for entry in directory.iterdir() if ID_PATTERN.fullmatch(entry.name))
        return [StateDirectory(self.settings.sandboxes_dir, name) for name in names]

    async def sweep(self, keep: Set[str]) -> tuple[str, ...]:
        swept = []
        for found in await self.list():
            if found.sandbox.id not in keep:
                await found.sandbox.destroy()
                swept.append(found.sandbox.id)
        return tuple(sorted({*swept, *await self.clear_strays(keep)}))

    async def clear_strays(self, keep: Set[str] = frozenset()) -> tuple[str, ...]:
        """Remove what an earlier process left ready, networks of no sandbox, and groups of none but those in `keep`.

        Return these groups.

        Nothing may be starting meanwhile.
        """
        await asyncio.to_thread(self.ready.clear_strays)
        records = [record for state in self._states() if (record := state.record()) is not None]
        used = {record.network for record in records}
        await asyncio.to_thread(networks.clear_strays, Path(self.settings.sandboxes_dir), used)
        detected = await self.limits()
        if detected.driver is None:
            return ()
        known = keep | {record.group_name for record in records}
        known |= zygotes.groups() | await asyncio.to_thread(self.ready.groups)
        return tuple(await asyncio.to_thread(self._remove_strays, detected.driver, known))

    def _remove_strays(self, driver: Driver, known: Set[str]) -> Sequence[str]:
        """Remove groups whose state directory is gone, and return their names. Blocks."""
        strays = [name for name in driver.names() if name not in known]
        for name in strays:
            try:
                driver.group(name).remove()
            except CgroupError as error:
                raise InfrastructureError(f"stray control group {name}: {error}") from error
        return strays

    async def release(self) -> None:
        await self.ready.discard()
        if self._detected is not None and self._detected.driver is not None:
            driver = self._detected.driver
            await zygotes.dismiss(ground_of(self._backend, driver.describe()))
            await asyncio.to_thread(driver.release)
