"""Working directories of jobs: fetched from the gateway by digest, unpacked once, shared read-only."""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
from collections.abc import Set
from pathlib import Path

import httpx
import structlog

from tidegate_executor import archives
from tidegate_executor.spool.segments import sync_directory
from tidegate_executor.turns import Turns, to_its_end

ARCHIVE_BYTES_MAX = 1024**3
FETCH_SECONDS_MAX = 300.0
READ_SECONDS_MAX = 30.0
CACHED_MAX = 64
_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})\Z")
_TEMPORARY = ".tmp-"
_BOOT = ".boot"

log = structlog.get_logger()


class WorkdirError(Exception):
    """The working directory is not to be had: `refused` is the archive's own fault, otherwise trying again may help."""

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.refused = refused


class Workdirs:
    """The cache in one directory; what is named by a digest there is complete."""

    def __init__(self, directory: Path, gateway_url: str) -> None:
        self._directory = directory
        self._gateway_url = gateway_url.rstrip("/")
        self._fetching = Turns()

    def open(self) -> None:
        """Remove what an interrupted fetch left, and all of an earlier boot: a power cut may have emptied its files."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        record = self._directory / _BOOT
        if not record.exists() or record.read_text() != boot:
            _remove(*self._directory.iterdir())
            record.write_text(boot)
        _remove(*self._directory.glob(f"{_TEMPORARY}*"))

    async def get(self, reference: str) -> Path:
        """Return the unpacked directory for `sha256:<hex>` or the bare digits. Raises WorkdirError.

        Cancelling it ends the fetch, and leaves nothing of it.
        """
        match = _DIGEST.match(reference)
        if match is None:
            raise WorkdirError(f"workdir {reference!r} is not a SHA-256 digest", refused=True)
        digest = match.group(1)
        path = self._directory / digest
        async with self._fetching.take(digest):
            if not await asyncio.to_thread(path.is_dir):
                await self._fetch_and_unpack(digest, path)
            else:
                await asyncio.to_thread(path.touch)
        return path

    def trim(self, in_use: Set[str]) -> None:
        """Remove the least recently used directories beyond CACHED_MAX, but none of `in_use` (names)."""
        # What has a temporary name belongs to a fetch under way, and may be gone before it is looked at.
        found = (path for path in self._directory.iterdir() if _DIGEST.match(path.name))
        kept = sorted(found, key=lambda path: path.stat().st_mtime_ns)
        for path in kept[: max(0, len(kept) - CACHED_MAX)]:
            if path.name not in in_use and path.name not in self._fetching:
                shutil.rmtree(path)

    async def _fetch_and_unpack(self, digest: str, path: Path) -> None:
        archive = self._directory / f"{_TEMPORARY}{digest}.tar"
        staging = self._directory / f"{_TEMPORARY}{digest}"
        try:
            async with asyncio.timeout(FETCH_SECONDS_MAX):
                await self._fetch(digest, archive)
            await to_its_end(_unpack_into_place, archive, staging, path)
        except TimeoutError as error:
            raise WorkdirError(f"blob {digest} did not come within {FETCH_SECONDS_MAX} s", refused=False) from error
        except archives.ArchiveRefusedError as error:
            raise WorkdirError(f"workdir {digest[:12]} refused: {error}", refused=True) from error
        except OSError as error:
            raise WorkdirError(f"workdir {digest[:12]} cannot be stored here: {error}", refused=False) from error
        finally:
            await asyncio.to_thread(_remove, archive, staging)
        log.info("workdir_unpacked", digest=digest)

    async def _fetch(self, digest: str, archive: Path) -> None:
        if not self._gateway_url:
            raise WorkdirError(
                f"blob {digest[:12]} is not here and this agent knows no gateway (gateway_url)", refused=False
            )
        url = f"{self._gateway_url}/v1/blobs/{digest}"
        hashing = hashlib.sha256()
        size = 0
        try:
            async with httpx.AsyncClient(timeout=READ_SECONDS_MAX) as client, client.stream("GET", url) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise WorkdirError(f"{url} answered {answer.status_code}", refused=False)
                with await asyncio.to_thread(archive.open, "wb") as file:
                    async for chunk in answer.aiter_bytes():
                        size += len(chunk)
                        if size > ARCHIVE_BYTES_MAX:
                            raise WorkdirError(f"blob {digest} is larger than {ARCHIVE_BYTES_MAX} bytes", refused=True)
                        hashing.update(chunk)
                        await asyncio.to_thread(file.write, chunk)
        except httpx.HTTPError as error:
            raise WorkdirError(f"{url} cannot be fetched: {error!r}", refused=False) from error
        if hashing.hexdigest() != digest:
            raise WorkdirError(f"{url} gave bytes of another digest, {hashing.hexdigest()}", refused=False)


def _unpack_into_place(archive: Path, staging: Path, path: Path) -> None:
    _remove(staging)
    staging.mkdir(mode=0o755)
    archives.unpack(archive, staging)
    staging.rename(path)
    sync_directory(path.parent)


def _remove(*paths: Path) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
