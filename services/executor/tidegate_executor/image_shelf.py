"""The images of this node: those of the settings, and those fetched from the store, within their room on disk.

A start and a hint get an image in the same way, and whoever comes second waits for the first. A start that cannot have
its image is refused, so that the job goes elsewhere; a hint that cannot be followed is counted and told, no more.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Set
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import structlog

from tidegate_executor import image_store, images
from tidegate_executor.image_store import TEMPORARY, Stored, StoreError
from tidegate_executor.images import Image, find
from tidegate_executor.sandbox.state import remove_tree
from tidegate_executor.settings import Settings
from tidegate_executor.spool.segments import sync_directory
from tidegate_executor.starts import Starts
from tidegate_executor.turns import Turns, to_its_end

UNAVAILABLE_KEPT = 8
DISK_FREE_BYTES_MIN = 1024**3
PAUSE_SECONDS = 0.1
MIB = 1024**2

log = structlog.get_logger()


class ImageUnavailableError(Exception):
    """The image is not here and cannot be fetched. `missing`: neither this node nor its store knows it."""

    def __init__(self, text: str, *, missing: bool = False) -> None:
        super().__init__(text)
        self.missing = missing


class ImageShelf:
    """See the module. `in_use` says which images, by name or digest, members here may need: they stay."""

    def __init__(self, settings: Settings, starts: Starts) -> None:
        self._settings = settings
        self._directory = settings.paths.fetched
        self._starts = starts
        self._known: dict[str, Image] = {}
        self._measured = asyncio.Event()
        self._turns = Turns()
        self._making_room = asyncio.Lock()
        self._under_way: dict[str, int] = {}
        self.in_use: Callable[[], Set[str]] = frozenset
        self.changed = asyncio.Event()
        self.unavailable: dict[str, str] = {}
        self.fetches = 0
        self.failures = 0
        self.fetched_bytes = 0

    async def measure(self) -> None:
        """Find out what is here. Raises ImageError for an image of the settings that cannot be used."""
        known = await images.catalogue(self._settings)
        known |= await asyncio.to_thread(self._fetched_before, set(known))
        self._known.update(known)
        self._measured.set()

    async def here(self) -> Mapping[str, Image]:
        """Return the images by name, when they are measured; what changes later is seen in it."""
        await self._measured.wait()
        return self._known

    @property
    def fetches_others(self) -> bool:
        """Say whether an image that is not here may be had."""
        return bool(self._settings.image_store_dir)

    def counters(self) -> dict[str, float]:
        """Return what was fetched since the agent began, by the names of NODE_COUNTERS."""
        return {
            "images_fetched": float(self.fetches),
            "image_fetch_failures": float(self.failures),
            "image_fetched_bytes": float(self.fetched_bytes),
        }

    async def get(self, named: str) -> Image:
        """Return the image of that name or digest, fetched if need be. Raises ImageUnavailableError."""
        return await self._get(named, hinted=False)

    async def prefetch(self, named: str) -> None:
        """Have the image here if that is possible; pauses while starts wait for something else."""
        try:
            await self._get(named, hinted=True)
        except ImageUnavailableError as error:
            log.warning("image_not_prefetched", image=named, why=str(error))
            self.unavailable = dict([*self.unavailable.items(), (named, str(error))][-UNAVAILABLE_KEPT:])
            self.changed.set()

    # ---- fetching ----

    async def _get(self, named: str, *, hinted: bool) -> Image:
        known = await self.here()
        if (image := find(known, named)) is not None:
            await asyncio.to_thread(self._note_use, image)
            return image
        try:
            place, stored = await asyncio.to_thread(self._in_store, named)
            async with self._turns.take(stored.digest):
                if (image := find(known, stored.digest)) is not None:
                    return self._also_named(image, stored)
                return await self._fetch(place, stored, hinted=hinted)
        except ImageUnavailableError:
            self.failures += 1
            raise
        except (StoreError, OSError) as error:
            self.failures += 1
            raise ImageUnavailableError(f"image {named} cannot be fetched: {error}") from error

    def _in_store(self, named: str) -> tuple[Path, Stored]:
        store = self._settings.image_store_dir
        if not store:
            raise ImageUnavailableError(f"image {named} is not on this node, which has no image store", missing=True)
        if (found := image_store.find(Path(store), named)) is None:
            raise ImageUnavailableError(f"image {named} is neither on this node nor in {store}", missing=True)
        return found

    def _also_named(self, image: Image, stored: Stored) -> Image:
        """Return what is here already, by the name that the store has for it."""
        if stored.name in self._known:
            return image
        again = self._known[stored.name] = msgspec.structs.replace(image, name=stored.name, path=stored.path)
        self.changed.set()
        return again

    async def _fetch(self, place: Path, stored: Stored, *, hinted: bool) -> Image:
        log.info("image_fetching", image=stored.name, digest=stored.digest, bytes=stored.size_bytes, hinted=hinted)
        target = self._directory / _hexadecimal(stored.digest)
        staging = self._directory / f"{TEMPORARY}{target.name}"
        async with self._room(stored):
            try:
                await to_its_end(_empty, staging)
                await self._copy(place, stored, staging, hinted=hinted)
                await to_its_end(image_store.complete, staging, stored, images.cache_directory(self._settings))
                await to_its_end(_into_place, staging, target)
            finally:
                await to_its_end(remove_tree, staging)
        image = stored.at(target, stored.name if stored.name not in self._known else stored.digest)
        self._known[image.name] = image
        self.unavailable = {name: why for name, why in self.unavailable.items() if find(self._known, name) is None}
        self.fetches += 1
        self.fetched_bytes += stored.size_bytes
        self.changed.set()
        log.info("image_fetched", image=image.name, digest=image.digest)
        return image

    async def _copy(self, place: Path, stored: Stored, staging: Path, *, hinted: bool) -> None:
        left = stored.size_bytes
        steps = image_store.copy([layer.source for layer in stored.at(place, stored.name).layers], staging)
        while (size := await to_its_end(_step, steps)) is not None:
            left -= size
            if left < 0:
                raise StoreError(f"there are more than the {stored.size_bytes} bytes that its record says")
            # Who waits for this very image is not helped by a pause.
            while hinted and self._starts.waiting and self._turns.users(stored.digest) < 2:
                with suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE_SECONDS):
                        await self._starts.over()

    # ---- what is on disk ----

    def _fetched_before(self, taken: Set[str]) -> dict[str, Image]:
        """Return what earlier starts fetched and is whole; the rest is removed."""
        found: dict[str, Image] = {}
        for directory in sorted(self._directory.iterdir()):
            try:
                stored = image_store.read(directory) if not directory.name.startswith(TEMPORARY) else None
                if stored is not None:
                    image_store.complete(directory, stored, images.cache_directory(self._settings))
                    name = stored.name if stored.name not in taken | set(found) else stored.digest
                    found[name] = stored.at(directory, name)
                    continue
            except (StoreError, OSError) as error:
                log.warning("fetched_image_dropped", directory=directory.name, why=str(error))
            remove_tree(directory)
        return found

    @asynccontextmanager
    async def _room(self, stored: Stored) -> AsyncIterator[None]:
        """Keep room for one more until the end of the block. Raises ImageUnavailableError where there is none.

        Images that were fetched, that nobody here needs and that were not used for longest leave for it.
        """
        async with self._making_room:
            used = await asyncio.to_thread(lambda: list(_held(self._directory)))
            free = (await asyncio.to_thread(shutil.disk_usage, self._directory)).free - DISK_FREE_BYTES_MIN
            most = self._settings.fetched_images_mib * MIB - sum(record.size_bytes for record in used)
            left = min(most, free) - sum(self._under_way.values())
            for record in used:
                if stored.size_bytes <= left:
                    break
                if not self.in_use().isdisjoint({record.digest, *self._names(record.digest)}):
                    continue
                await self._remove(record)
                left += record.size_bytes
            if stored.size_bytes > left:
                raise ImageUnavailableError(
                    f"image {stored.name} has {stored.size_bytes} bytes and {max(0, left)} are free for it here; the "
                    f"disk's room and fetched_images_mib, {self._settings.fetched_images_mib}, bound that"
                )
            self._under_way[stored.digest] = stored.size_bytes
        try:
            yield
        finally:
            del self._under_way[stored.digest]

    async def _remove(self, record: Stored) -> None:
        for name in self._names(record.digest):
            del self._known[name]
        self.changed.set()
        await to_its_end(remove_tree, self._directory / _hexadecimal(record.digest))
        log.info("fetched_image_removed", image=record.name, digest=record.digest, bytes=record.size_bytes)

    def _names(self, digest: str) -> list[str]:
        """Return how members may name the image that was fetched."""
        place = self._directory / _hexadecimal(digest)
        own = {name: [Path(layer.source) for layer in image.layers] for name, image in self._known.items()}
        return [name for name, sources in own.items() if any(source.is_relative_to(place) for source in sources)]

    def _note_use(self, image: Image) -> None:
        record = self._directory / _hexadecimal(image.digest) / image_store.RECORD
        if record.exists():
            now_ns = time.time_ns()  # the file system's own time is coarser than two uses can be apart
            os.utime(record, ns=(now_ns, now_ns))


def _step(steps: Iterator[int]) -> int | None:
    return next(steps, None)


def _held(directory: Path) -> Iterator[Stored]:
    """Yield the images that were fetched, the one that was not used for longest first."""
    records = (path / image_store.RECORD for path in directory.iterdir() if not path.name.startswith(TEMPORARY))
    for record in sorted(records, key=lambda record: record.stat().st_mtime_ns):
        if (stored := image_store.read(record.parent)) is not None:
            yield stored


def _hexadecimal(digest: str) -> str:
    return digest.removeprefix("b3:")


def _empty(directory: Path) -> None:
    remove_tree(directory)
    directory.mkdir(mode=0o755)


def _into_place(staging: Path, target: Path) -> None:
    staging.rename(target)
    sync_directory(target.parent)
