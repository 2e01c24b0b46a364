"""A container engine's images, by aiodocker: the empty one that sandboxes are mounted on, and pulling with progress."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import tarfile
from collections.abc import AsyncIterator

import aiodocker
import msgspec

from tidegate_executor.sandbox.base import InfrastructureError, JobError

PULL_SECONDS_MAX = 3600.0
BASE_REPOSITORY = "tidegate-base"
MISSING = 404
DIRECTORIES = ("etc", "home", "proc", "dev", "sys", "run", "tmp", "var", "workspace")


class ImageRefusedError(JobError):
    """The engine cannot have this image: it is named wrongly, absent, or not for us."""


class PullProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a pull, as the engine tells it; bytes are of one layer, 0 where it does not say."""

    status: str
    layer: str = ""
    done_bytes: int = 0
    total_bytes: int = 0


async def pull(docker: aiodocker.Docker, reference: str) -> AsyncIterator[PullProgress]:
    """Have the engine fetch an image; yields its progress and ends when the image is there."""
    try:
        async with asyncio.timeout(PULL_SECONDS_MAX):
            async for step in docker.images.pull(reference, stream=True, timeout=PULL_SECONDS_MAX):
                if "error" in step:
                    raise ImageRefusedError(f"image {reference}: {step['error']}")
                yield progress_of(step)
    except TimeoutError:
        raise InfrastructureError(f"image {reference}: not pulled within {PULL_SECONDS_MAX} s") from None
    except aiodocker.DockerError as error:
        raise ImageRefusedError(f"image {reference}: {error.message}") from error


def progress_of(step: dict[str, object]) -> PullProgress:
    """One line of the engine's answer (`POST /images/create`)."""
    detail = step.get("progressDetail")
    numbers = detail if isinstance(detail, dict) else {}
    return PullProgress(
        status=str(step.get("status", "")),
        layer=str(step.get("id", "")),
        done_bytes=int(numbers.get("current", 0)),
        total_bytes=int(numbers.get("total", 0)),
    )


async def base_image(docker: aiodocker.Docker, links: list[tuple[str, str]]) -> str:
    """Return an image that holds nothing but these symbolic links (text, place); it is made where it is missing."""
    archive, name = base_archive(links)
    try:
        await docker.images.inspect(name)
    except aiodocker.DockerError as error:
        if error.status != MISSING:
            raise InfrastructureError(f"the engine does not say whether it has {name}: {error.message}") from error
        try:
            await docker.images.import_image(archive)
        except aiodocker.DockerError as refusal:
            raise InfrastructureError(f"the engine did not take {name}: {refusal.message}") from refusal
    return name


def base_archive(links: list[tuple[str, str]]) -> tuple[bytes, str]:
    """That image as `docker load` takes it, and its name, which follows from what it holds."""
    layer = _layer(links)
    digest = hashlib.sha256(layer).hexdigest()
    name = f"{BASE_REPOSITORY}:{digest[:16]}"
    config = json.dumps(
        {
            "architecture": "",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path, content in (("config.json", config), ("layer.tar", layer), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue(), name


def _layer(links: list[tuple[str, str]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in DIRECTORIES:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for text, place in sorted(links):
            entry = tarfile.TarInfo(place.strip("/"))
            entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, text, 0o777
            archive.addfile(entry)
    return out.getvalue()
