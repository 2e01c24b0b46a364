"""Where an image comes from, in the words of skopeo: a layout, an archive, an engine's own images, or a registry.

`oci:DIRECTORY[:NAME]`, `oci-archive:FILE[:NAME]` and `docker-archive:FILE[:NAME]` are read where they lie;
`docker-daemon:NAME` is asked of the engine and `docker://NAME` of a registry by skopeo, into a file that goes again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tidegate_executor.oci.blobs import ImageRefusedError

LOCAL = ("oci:", "oci-archive:", "docker-archive:")
ENGINE, REGISTRY = "docker-daemon:", "docker://"
ENGINE_SOCKET = "/var/run/docker.sock"
ENGINE_SECONDS_MAX = 60.0  # between two parts of what it sends
REGISTRY_SECONDS_MAX = 1800.0
FETCHED_BYTES_MAX = 64 * 1024**3


class SourceError(Exception):
    """The image cannot be had from there now; trying again may help."""


def check(source: str) -> None:
    """Raise ImageRefusedError for what names no source."""
    if not source.startswith((*LOCAL, ENGINE, REGISTRY)):
        accepted = ", ".join((*LOCAL, ENGINE, REGISTRY))
        raise ImageRefusedError(
            f"image source {source!r} is of no known kind; one that begins with {accepted} is accepted"
        )


@contextmanager
def fetched(source: str, directory: Path) -> Iterator[tuple[Path, str]]:
    """Return where the image can be read, and its name there, until the end of the block. Blocks.

    What has to be fetched first lies in `directory` meanwhile. Raises ImageRefusedError or SourceError.
    """
    check(source)
    if source.startswith(LOCAL):
        yield _local(source.split(":", 1)[1])
        return
    with tempfile.TemporaryDirectory(prefix=".tmp-fetch-", dir=directory) as temporary:
        place = Path(temporary, "image")
        if source.startswith(ENGINE):
            _from_engine(source.removeprefix(ENGINE), place)
        else:
            _from_registry(source, place)
        yield place, ""


def _local(text: str) -> tuple[Path, str]:
    if not os.path.exists(text) and ":" in text:
        path, name = text.split(":", 1)
        return Path(path), name
    return Path(text), ""


def _from_engine(name: str, place: Path) -> None:
    host = os.environ.get("DOCKER_HOST", f"unix://{ENGINE_SOCKET}")
    if not host.startswith("unix://"):
        raise SourceError(f"the engine at {host} is not on this node; one behind a unix socket is accepted")
    transport = httpx.HTTPTransport(uds=host.removeprefix("unix://"))
    try:
        with (
            httpx.Client(transport=transport, timeout=ENGINE_SECONDS_MAX) as client,
            client.stream("GET", f"http://engine/images/{name}/get") as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                raise SourceError(f"the engine answered {answer.status_code} for image {name}")
            size = 0
            with place.open("wb") as writing:
                for part in answer.iter_bytes():
                    size += len(part)
                    if size > FETCHED_BYTES_MAX:
                        raise SourceError(f"image {name} has more than {FETCHED_BYTES_MAX} bytes")
                    writing.write(part)
    except httpx.HTTPError as error:
        raise SourceError(f"the engine at {host} cannot be asked: {error!r}") from error


def _from_registry(source: str, place: Path) -> None:
    if shutil.which("skopeo") is None:
        raise SourceError(f"{source} needs skopeo, which is not on this node (Debian: skopeo)")
    try:
        arguments = ["nice", "-n", "19", "skopeo", "copy", "--quiet", source, f"oci:{place}"]
        done = subprocess.run(arguments, capture_output=True, timeout=REGISTRY_SECONDS_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{source} cannot be fetched: {error}") from error
    if done.returncode:
        raise SourceError(f"{source} cannot be fetched: {done.stderr.decode(errors='replace').strip()[-500:]}")
