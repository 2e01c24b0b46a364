"""The OCI images of this node: known by their manifest's digest, each a record and layers that images share.

All block, and are called one at a time by the shelf.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from tidegate_executor.images import Image
from tidegate_executor.oci import blobs, layers, manifest, sources
from tidegate_executor.oci.mounting import ConversionError
from tidegate_executor.sandbox.base import Layer
from tidegate_executor.sandbox.state import remove_tree
from tidegate_executor.spool.segments import write_durably

ROOT = "/"
DISK_FREE_BYTES_MIN = 1024**3
LAYOUT = "oci-layout"
ARCHIVES = (".oci.tar", ".docker.tar")

log = structlog.get_logger()


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One image whose layers are converted. `layers` begin with the lowest; `size_bytes` is what they take."""

    name: str
    digest: str
    layers: tuple[str, ...]
    path: tuple[str, ...]
    env: dict[str, str]
    size_bytes: int


class OciImages:
    """See the module."""

    def __init__(self, directory: Path, store: Path | None, named: dict[str, str]) -> None:
        """`named` are the sources of the settings' images by name; in `store` lie layouts and archives by name."""
        self._directory = directory
        self._records = directory / "images"
        self._store = store
        self._named = named
        self.layers = layers.LayerCache(directory)

    def open(self) -> list[Image]:
        """Return what is here, mounted. Raises OSError."""
        self._directory.mkdir(exist_ok=True, mode=0o711)
        self._records.mkdir(exist_ok=True, mode=0o700)
        for left in self._directory.glob(".tmp-fetch-*"):
            remove_tree(left)
        self.layers.open()
        found = []
        for record in self.held():
            try:
                found.append(self.image(record))
            except ConversionError as error:
                log.warning("oci_image_left_out", image=record.name, digest=record.digest, why=str(error))
        return found

    def source(self, name: str) -> str | None:
        """Return where the image of that name can be had from, None where nobody says."""
        if name in self._named:
            return self._named[name]
        if self._store is None or not name or "/" in name or name.startswith("."):
            return None
        if (self._store / name / LAYOUT).is_file():
            return f"oci:{self._store / name}"
        archives = (self._store / f"{name}{end}" for end in ARCHIVES)
        archive = next((path for path in archives if path.is_file()), None)
        return f"docker-archive:{archive}" if archive is not None else None

    def convert(self, name: str, source: str, given_up: Callable[[], bool]) -> Image:
        """Have the image here. Raises ImageRefusedError, SourceError, ConversionError or OSError."""
        began = time.monotonic()
        with sources.fetched(source, self._directory) as (place, named), blobs.opened(place) as parts:
            described = manifest.read(parts, named)
            size_bytes = 0
            for layer in described.layers:
                room_bytes = layers.free_bytes(self._directory) - DISK_FREE_BYTES_MIN
                size_bytes += self.layers.convert(parts, layer, max(0, room_bytes), given_up)
        record = Record(
            name=name,
            digest=described.digest,
            layers=tuple(layer.diff_id for layer in described.layers),
            path=described.path,
            env=described.env,
            size_bytes=size_bytes,
        )
        write_durably(self._file(record.digest), msgspec.json.encode(record))
        seconds = round(time.monotonic() - began, 2)
        log.info("oci_image_converted", image=name, digest=record.digest, layers=len(record.layers), seconds=seconds)
        return self.image(record)

    def image(self, record: Record) -> Image:
        """Return the image, its layers mounted. Raises ConversionError."""
        places = [self.layers.use(layer) for layer in record.layers]
        return Image(
            name=record.name,
            digest=record.digest,
            layers=tuple(Layer(source=str(place), target=ROOT) for place in places),
            path=record.path,
            env={name: value for name, value in record.env.items() if name != "PATH"},
        )

    def held(self) -> list[Record]:
        """Return the images whose layers are all here, the one that was not used for longest first."""
        found: list[tuple[int, Record]] = []
        for file in self._records.glob("*.json"):
            try:
                record = msgspec.json.decode(file.read_bytes(), type=Record)
                used_ns = file.stat().st_mtime_ns
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("oci_image_left_out", file=file.name, why=str(error))
                continue
            if all(self.layers.has(layer) for layer in record.layers):
                found.append((used_ns, record))
        return [record for _, record in sorted(found, key=lambda each: (each[0], each[1].digest))]

    def note_use(self, digest: str) -> None:
        """Make it the image that was used last."""
        now_ns = time.time_ns()
        try:
            os.utime(self._file(digest), ns=(now_ns, now_ns))
        except OSError as error:
            log.warning("image_use_not_noted", digest=digest, why=str(error))

    def check(self, digest: str) -> str:
        """Return what is wrong with the image's layers; nothing where they are what was converted. Raises OSError."""
        record = next((each for each in self.held() if each.digest == digest), None)
        if record is None:
            return f"image {digest} is no longer here"
        return next(filter(None, (self.layers.check(layer) for layer in record.layers)), "")

    def remove(self, digest: str) -> int:
        """Forget the image, and remove the layers that no other has; return the bytes freed. Raises OSError."""
        self._file(digest).unlink(missing_ok=True)
        return self.layers.keep_only({layer for record in self.held() for layer in record.layers})

    def _file(self, digest: str) -> Path:
        return self._records / f"{digest.removeprefix('sha256:')}.json"
