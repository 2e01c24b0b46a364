"""The images of this node: those of the settings, those fetched from the store, and OCI images, within their room.

A start and a hint get an image in the same way, and whoever comes second waits for the first. A start that cannot have
its image is refused, so that the job goes elsewhere; a hint that cannot be followed is counted and told, no more.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Set
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
import structlog

from tidegate_executor import fetched_images, image_store, images, watermarks
from tidegate_executor.image_news import Images
from tidegate_executor.image_store import TEMPORARY, Stored, StoreError
from tidegate_executor.images import Image, find
from tidegate_executor.oci.images import Record
from tidegate_executor.oci.shelf import OciShelf, OciUnavailableError, is_oci
from tidegate_executor.sandbox.state import remove_tree
from tidegate_executor.settings import Settings
from tidegate_executor.starts import Starts
from tidegate_executor.store_threads import StoreThreads
from tidegate_executor.turns import Turns, to_its_end

UNAVAILABLE_KEPT = 8
UNUSED_SECONDS_MAX = 600.0
"""How long no other hint takes away what a hint brought and nobody used yet: the job for it may be on its way."""

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
    """See the module.

    `in_use` says which images, by name or digest, members here may need: they stay. `leaving` is called with the digest
    of one before it leaves. `hinted` are those that are awaited
    here: they leave for a start only.
    """

    def __init__(self, settings: Settings, starts: Starts) -> None:
        self._settings = settings
        self._directory = settings.paths.fetched
        self._starts = starts
        self._known: dict[str, Image] = {}
        self._measured = asyncio.Event()
        self._turns = Turns()
        self._making_room = asyncio.Lock()
        self._reading = StoreThreads()
        self._oci = OciShelf(settings)
        self._staged = itertools.count()
        self._under_way: dict[str, int] = {}
        self._unused_since: dict[str, float] = {}
        self._size_bytes: dict[str, int] = {}
        self.in_use: Callable[[], Set[str]] = frozenset
        self.leaving: Callable[[str], Awaitable[None]] = _nobody_minds
        self.hinted: Set[str] = frozenset()
        self.changed = asyncio.Event()
        self.unavailable: dict[str, str] = {}
        self.fetches = 0
        self.failures = 0
        self.fetched_bytes = 0

    async def measure(self) -> None:
        """Find out what is here. Raises ImageError for an image of the settings that cannot be used.

        Of what earlier starts fetched, that which is no longer what its record says is removed, if nobody runs on it.
        """
        known = await images.catalogue(self._settings)
        whole, damaged = await to_its_end(
            fetched_images.measure, self._directory, images.cache_directory(self._settings)
        )
        for stored in whole:
            name = stored.name if stored.name not in known else stored.digest
            self._size_bytes[stored.digest] = stored.size_bytes
            known[name] = stored.at(self._place(stored), name)
        oci = await self._oci.open()
        self._size_bytes |= {record.digest: record.size_bytes for record in await self._oci.held()}
        for image in oci:
            known[image.name if image.name not in known else image.digest] = image
        self._known.update(known)
        for stored in damaged:
            if not self._is_needed(stored):
                try:
                    await self._remove(stored)
                except OSError as error:
                    log.warning("fetched_image_not_removed", digest=stored.digest, why=str(error))
        self._measured.set()

    async def here(self) -> Mapping[str, Image]:
        """Return the images by name, when they are measured; what changes later is seen in it."""
        await self._measured.wait()
        return self._known

    @property
    def fetches_others(self) -> bool:
        """Say whether an image that is not here may be had."""
        return bool(self._settings.image_store_dir)

    def news(self) -> Images:
        """Return which images are here, for whoever tells of what came and left."""
        digests = {name: image.digest for name, image in self._known.items()}
        return Images(digests=digests, size_bytes=dict(self._size_bytes), unavailable=tuple(self.unavailable))

    def counters(self) -> dict[str, float]:
        """Return what was fetched since the agent began, by the names of NODE_COUNTERS."""
        return {
            "images_fetched": float(self.fetches),
            "image_fetch_failures": float(self.failures),
            "image_fetched_bytes": float(self.fetched_bytes),
        }

    async def get(self, named: str) -> Image:
        """Return the image of that name or digest, fetched if need be. Raises ImageUnavailableError."""
        image = await self._get(named, hinted=False)
        self._unused_since.pop(image.digest, None)
        if is_oci(image.digest):
            await self._oci.note_use(image.digest)
        else:
            await asyncio.to_thread(fetched_images.note_use, self._directory, image.digest)
        return image

    async def convert_own(self) -> None:
        """Have the OCI images of the settings here, one after the other, when no start waits."""
        known = await self.here()
        for name in self._oci.named:
            if name not in known:
                await self._starts.over()
                await self._have(name, hinted=False)

    async def trim(self) -> None:
        """Where the disk is fuller than it may be, remove what was not used for longest, if nobody needs it."""
        wanted_bytes = await asyncio.to_thread(watermarks.excess_bytes, self._settings, self._directory)
        if wanted_bytes <= 0:
            return
        async with self._making_room:
            fetched = await asyncio.to_thread(fetched_images.held, self._directory)
            leaving: list[Stored | Record] = [*self._may_leave(fetched, hinted=True), *await self._oci.held()]
            for record in leaving:
                if wanted_bytes <= 0:
                    return
                if self._is_needed(record) or self._is_awaited(record):
                    continue
                wanted_bytes -= record.size_bytes
                await self._remove(record)

    async def prefetch(self, named: str) -> None:
        """Have the image here if that is possible; pauses while starts wait for something else."""
        await self._have(named, hinted=True)

    async def _have(self, named: str, *, hinted: bool) -> None:
        try:
            await self._get(named, hinted=hinted)
        except ImageUnavailableError as error:
            log.warning("image_not_prefetched", image=named, why=str(error))
            self.unavailable = dict([*self.unavailable.items(), (named, str(error))][-UNAVAILABLE_KEPT:])
            self.changed.set()

    async def check(self, digest: str) -> str:
        """Return what is wrong with a converted image's files; nothing where all is as it was made. Raises OSError."""
        return await self._oci.check(digest) if is_oci(digest) else ""

    async def close(self) -> None:
        """Undo the mounts of this process, which its end does too; sandboxes keep theirs."""
        await self._oci.close()

    # ---- fetching ----

    async def _get(self, named: str, *, hinted: bool) -> Image:
        known = await self.here()
        if (image := find(known, named)) is not None:
            return image
        try:
            source = await self._reading.run(partial(self._oci.source, named), threading.Event())
            if source is not None:
                return await self._convert(named, source, hinted=hinted)
            place, stored = await self._reading.run(partial(self._in_store, named), threading.Event())
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

    async def _convert(self, named: str, source: str, *, hinted: bool) -> Image:
        """Have an OCI image, converted once however many want it."""
        if hinted:  # before its turn: a start that comes meanwhile does not wait for it
            await watermarks.idle()
        async with self._turns.take(source):
            if (image := find(self._known, named)) is not None:
                return image
            log.info("oci_image_converting", image=named, source=source, hinted=hinted)
            try:
                image, size_bytes = await self._oci.convert(named, source)
            except OciUnavailableError as error:
                raise ImageUnavailableError(f"image {named} cannot be had from {source}: {error}") from error
            self._took(image, size_bytes)
            return image

    def _took(self, image: Image, size_bytes: int) -> None:
        """An image came: it counts, and is told of."""
        self._known[image.name] = image
        self._unused_since[image.digest] = time.monotonic()
        self._size_bytes[image.digest] = size_bytes
        self.unavailable = {name: why for name, why in self.unavailable.items() if find(self._known, name) is None}
        self.fetches += 1
        self.fetched_bytes += size_bytes
        self.changed.set()

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
        target = self._place(stored)
        if stored.digest in self.in_use() and await asyncio.to_thread(target.exists):
            raise ImageUnavailableError(
                f"image {stored.name}: members may run on what {target} holds, which is not whole"
            )
        staging = (
            self._directory / f"{TEMPORARY}{target.name}-{next(self._staged)}"
        )  # a copy that hung may still write to its own
        async with self._room(stored, hinted=hinted):
            try:
                await to_its_end(fetched_images.empty, staging)
                await self._copy(place, stored, staging, hinted=hinted)
                await to_its_end(image_store.complete, staging, stored, images.cache_directory(self._settings))
                await to_its_end(fetched_images.into_place, staging, target)
            finally:
                await to_its_end(remove_tree, staging)
        image = stored.at(target, stored.name if stored.name not in self._known else stored.digest)
        self._took(image, stored.size_bytes)
        log.info("image_fetched", image=image.name, digest=image.digest)
        return image

    async def _copy(self, place: Path, stored: Stored, staging: Path, *, hinted: bool) -> None:
        left = stored.size_bytes
        given_up = threading.Event()
        steps = image_store.copy([layer.source for layer in stored.at(place, stored.name).layers], staging, given_up)
        while (size := await self._reading.run(partial(_step, steps), given_up)) is not None:
            left -= size
            if left < 0:
                raise StoreError(f"there are more than the {stored.size_bytes} bytes that its record says")
            # Who waits for this very image is not helped by a pause.
            while hinted and self._starts.waiting and self._turns.users(stored.digest) < 2:
                with suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE_SECONDS):
                        await self._starts.over()

    # ---- what is on disk ----

    @asynccontextmanager
    async def _room(self, stored: Stored, *, hinted: bool) -> AsyncIterator[None]:
        """Keep room for one more until the end of the block. Raises ImageUnavailableError where there is none.

        Images that were fetched, that nobody here needs and that were not used for longest leave for it, if that helps.
        """
        async with self._making_room:
            used = await asyncio.to_thread(fetched_images.held, self._directory)
            free = (await asyncio.to_thread(shutil.disk_usage, self._directory)).free - DISK_FREE_BYTES_MIN
            most = self._settings.fetched_images_mib * MIB - sum(record.size_bytes for record in used)
            left = min(most, free) - sum(self._under_way.values())
            leaving: list[Stored] = []
            for record in self._may_leave(used, hinted=hinted):
                if stored.size_bytes <= left:
                    break
                leaving.append(record)
                left += record.size_bytes
            if stored.size_bytes > left:
                raise ImageUnavailableError(
                    f"image {stored.name} has {stored.size_bytes} bytes and {max(0, left)} are free for it here, or "
                    f"could be; the disk's room and fetched_images_mib, {self._settings.fetched_images_mib}, bound that"
                )
            for record in leaving:
                if self._is_needed(record):  # since a moment: a start came while another image was removed
                    raise ImageUnavailableError(f"image {stored.name}: {record.name}, to leave for it, is needed again")
                await self._remove(record)
            self._under_way[stored.digest] = stored.size_bytes
        try:
            yield
        finally:
            del self._under_way[stored.digest]

    def _may_leave(self, used: list[Stored], *, hinted: bool) -> list[Stored]:
        """Return what may leave for another image, in this order; for a start, what is awaited here comes last."""
        unneeded = [record for record in used if not self._is_needed(record)]
        left_alone = [record for record in unneeded if not self._is_awaited(record)]
        return left_alone if hinted else left_alone + [record for record in unneeded if record not in left_alone]

    def _is_needed(self, record: Stored | Record) -> bool:
        needed = self.in_use() | set(self._settings.pinned_images)
        return not needed.isdisjoint(self._names(record))

    def _is_awaited(self, record: Stored | Record) -> bool:
        since = self._unused_since.get(record.digest)
        unused = since is not None and time.monotonic() - since < UNUSED_SECONDS_MAX
        return unused or not self.hinted.isdisjoint(self._names(record))

    async def _remove(self, record: Stored | Record) -> None:
        for name in self._names(record) & set(self._known):
            del self._known[name]
        self._unused_since.pop(record.digest, None)
        self._size_bytes.pop(record.digest, None)
        self.changed.set()
        await self.leaving(record.digest)
        if isinstance(record, Record):
            await self._oci.remove(record.digest)
        else:
            await to_its_end(fetched_images.take_away, self._place(record))
        log.info("fetched_image_removed", image=record.name, digest=record.digest, bytes=record.size_bytes)

    def _place(self, stored: Stored) -> Path:
        return fetched_images.place_of(self._directory, stored.digest)

    def _names(self, record: Stored | Record) -> set[str]:
        """Return how members may name the image that was fetched, its digest included."""
        if isinstance(record, Record):
            return {name for name, image in self._known.items() if image.digest == record.digest} | {record.digest}
        place = self._place(record)
        own = {name: [Path(layer.source) for layer in image.layers] for name, image in self._known.items()}
        names = {name for name, sources in own.items() if any(source.is_relative_to(place) for source in sources)}
        return names | {record.digest} | ({record.name} - set(own))


async def _nobody_minds(digest: str) -> None:
    """Nothing else has anything of an image."""


def _step(steps: Iterator[int]) -> int | None:
    return next(steps, None)
