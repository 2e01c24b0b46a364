"""The images that jobs can run on here: host directories as read-only layers, each named and known by its digest.

`host` is built in: this machine's /usr, and the Python that runs the agent with its environment, so that a job sees
the packages that were installed beside the agent.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from tidegate_executor import trees
from tidegate_executor.sandbox.base import Layer
from tidegate_executor.settings import ImageSettings, Settings

HOST = "host"
SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")

log = structlog.get_logger()


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """One image. `path` are the directories, as seen inside, where commands are looked for, in order.

    Layers with the same target are stacked there, the first one lowest. `env` are variables that its programs expect.
    """

    name: str
    digest: str
    layers: tuple[Layer, ...]
    path: tuple[str, ...]
    env: dict[str, str] = {}


class ImageError(Exception):
    """An image of the settings cannot be used."""


def find(images: Mapping[str, Image], named: str) -> Image | None:
    """Return the image of that name or that digest."""
    return images.get(named) or next((image for image in images.values() if image.digest == named), None)


async def catalogue(settings: Settings) -> dict[str, Image]:
    """Return every image with its digest; reading them is done in threads. Raises ImageError."""
    wanted = {name: image for name, image in settings.images.items() if not image.oci}
    if settings.offer_host_image:
        wanted[HOST] = host_image()
    return await asyncio.to_thread(_measure, wanted, cache_directory(settings))


def cache_directory(settings: Settings) -> Path:
    """Return where the hashes of image files are kept."""
    return Path(settings.image_cache_dir) if settings.image_cache_dir else settings.paths.images


def host_image() -> ImageSettings:
    """Return the layers of the built-in image, and where `python` is in it."""
    layers = {"/usr": "/usr"}
    prefixes = [os.path.realpath(sys.base_prefix), os.path.realpath(sys.prefix)]
    for prefix in prefixes:
        if not any(Path(prefix).is_relative_to(known) for known in layers):
            layers[prefix] = prefix
    path = dict.fromkeys([f"{prefix}/bin" for prefix in reversed(prefixes)])
    return msgspec.convert(
        {
            "layers": [{"source": source, "target": target} for source, target in layers.items()],
            "path": [*path, *(directory for directory in SYSTEM_PATH if directory not in path)],
        },
        ImageSettings,
    )


def _measure(wanted: Mapping[str, ImageSettings], directory: Path) -> dict[str, Image]:
    return {name: _image(name, image, directory) for name, image in sorted(wanted.items())}


def _image(name: str, image: ImageSettings, directory: Path) -> Image:
    began = time.monotonic()
    log.info("image_measuring", image=name, layers=[layer.source for layer in image.layers])
    try:
        digest = measured_digest([(layer.source, layer.target) for layer in image.layers], directory)
    except OSError as error:
        raise ImageError(f"image {name}: {error}; each layer needs a readable directory as its source") from error
    log.info("image_measured", image=name, digest=digest, seconds=round(time.monotonic() - began, 2))
    found = tuple(Layer(source=layer.source, target=layer.target) for layer in image.layers)
    return Image(name=name, digest=digest, layers=found, path=image.path)


def measured_digest(layers: list[tuple[str, str]], directory: Path) -> str:
    """Return the digest of layers, of which the caches in the directory may know a part. Blocks. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    digests = trees.DigestCache(directory / "digests.json")
    digests.load()
    seen = trees.fingerprint(layers)
    digest = digests.get(layers, seen)
    if digest is None:
        digest = _digest(layers, directory / "hashes.msgpack")
        if trees.fingerprint(layers) == seen:  # else it was changed while it was read
            digests.put(layers, seen, digest)
    return digest


def _digest(layers: list[tuple[str, str]], cache_file: Path) -> str:
    cache = trees.HashCache(cache_file)
    cache.load()
    used: dict[trees.Key, str] = {}
    digest = trees.digest(layers, cache, used)
    cache.store(layers, used)
    return digest
