"""The OCI images as the shelf of images sees them: asynchronous, one at a time, and with one kind of failure."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from tidegate_executor.images import Image
from tidegate_executor.oci.blobs import ImageRefusedError
from tidegate_executor.oci.images import OciImages, Record
from tidegate_executor.oci.mounting import ConversionError
from tidegate_executor.oci.sources import SourceError
from tidegate_executor.settings import Settings
from tidegate_executor.turns import to_its_end


class OciUnavailableError(Exception):
    """The image cannot be had: refused, not reachable, or not to be converted here; the text says which."""


class OciShelf:
    """See the module. `named` are the OCI images of the settings, each with its source."""

    def __init__(self, settings: Settings) -> None:
        self.named = {name: image.oci for name, image in settings.images.items() if image.oci}
        self._store = Path(settings.image_store_dir) if settings.image_store_dir else None
        self._images = OciImages(settings.paths.oci, self._store, self.named)
        self._alone = asyncio.Lock()

    async def open(self) -> list[Image]:
        """Return the images that are here, ready to be used."""
        return await to_its_end(self._images.open)

    def source(self, named: str) -> str | None:
        """Return where the image of that name can be had from, None where nobody says. Blocks, on the store perhaps."""
        return self._images.source(named)

    async def convert(self, name: str, source: str) -> tuple[Image, int]:
        """Have the image here; return it with the bytes that it takes. Raises OciUnavailableError.

        Cancelling it ends the conversion at its next entry, and leaves nothing of the layer it was at.
        """
        given_up = threading.Event()
        async with self._alone:
            try:
                image = await to_its_end(self._images.convert, name, source, given_up.is_set, given_up=given_up)
            except (ImageRefusedError, SourceError, ConversionError, OSError) as error:
                raise OciUnavailableError(str(error)) from error
            held = await asyncio.to_thread(self._images.held)
        return image, sum(record.size_bytes for record in held if record.digest == image.digest)

    async def note_use(self, digest: str) -> None:
        """Make it the image that was used last."""
        await asyncio.to_thread(self._images.note_use, digest)

    async def held(self) -> list[Record]:
        """Return what is here, the image that was not used for longest first."""
        return await asyncio.to_thread(self._images.held)

    async def remove(self, digest: str) -> None:
        """Forget an image, with the layers that no other has. Raises OSError."""
        async with self._alone:
            await to_its_end(self._images.remove, digest)

    async def check(self, digest: str) -> str:
        """Return what is wrong with an image's layers here; nothing where they are what was converted."""
        return await asyncio.to_thread(self._images.check, digest)

    async def close(self) -> None:
        """Undo the mounts of this process."""
        await to_its_end(self._images.layers.close)


def is_oci(digest: str) -> bool:
    """Say whether it is a manifest's digest, and no tree's."""
    return digest.startswith("sha256:")
