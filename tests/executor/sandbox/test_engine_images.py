"""An engine's images: pulled from a registry with progress, a sandbox's root, and refused by name where absent."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tidegate_executor.sandbox.docker import DockerBackend

from tests.executor.sandbox.conftest import World, open_world

NAME = "tidegate/image"
FILL_BYTES = 3 << 20


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    opened = await open_world("docker", tmp_path)
    yield opened
    await opened.backend.sweep(set())
    await opened.backend.release()


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def image() -> dict[str, tuple[str, bytes]]:
    """What a registry has of one image: content type and bytes by path. Its files are the host's."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", dereference=True) as archive:
        for path in sorted(needed("/bin/sh") | needed("/bin/cat")):
            archive.add(path)
        filling = tarfile.TarInfo("filling")
        filling.size = FILL_BYTES
        archive.addfile(filling, io.BytesIO(os.urandom(FILL_BYTES)))
    layer = gzip.compress(out.getvalue(), mtime=0)
    diff = digest_of(out.getvalue())
    config = json.dumps({"os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [diff]}}).encode()
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": kind,
            "config": described("application/vnd.docker.container.image.v1+json", config),
            "layers": [described("application/vnd.docker.image.rootfs.diff.tar.gzip", layer)],
        }
    ).encode()
    found = {f"/v2/{NAME}/blobs/{digest_of(each)}": ("application/octet-stream", each) for each in (config, layer)}
    manifests = {f"/v2/{NAME}/manifests/{tag}": (kind, manifest) for tag in ("1", digest_of(manifest))}
    return {"/v2/": ("application/json", b"{}"), **found, **manifests}


def described(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "size": len(data), "digest": digest_of(data)}


def needed(program: str) -> set[str]:
    """A program and the libraries that the loader would map."""
    with os.popen(f"ldd {program}") as reading:
        words = [word for line in reading for word in line.split()]
    return {program, *(word for word in words if word.startswith("/"))}


@pytest.fixture
def registry() -> Iterator[str]:
    """A registry with that image; its address."""
    content = image()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, data = content.get(self.path, ("application/json", b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}'))
            self.send_response(200 if self.path in content else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Docker-Content-Digest", digest_of(data))
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        do_HEAD = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_an_image_is_pulled_with_progress_and_is_a_sandboxs_root(world: World, registry: str) -> None:
    from tidegate_executor.sandbox.engine_images import PullProgress, pull  # noqa: PLC0415 - where an engine is

    assert isinstance(world.backend, DockerBackend)
    reference = f"{registry}/{NAME}:1"
    async with world.backend.engine() as docker:
        steps: list[PullProgress] = [step async for step in pull(docker, reference)]
        try:
            assert any("Downloading" in step.status and 0 < step.done_bytes <= step.total_bytes for step in steps)
            assert any(step.status.startswith("Status: Downloaded newer image") for step in steps)
            sandbox = await world.create(layers=(), engine_image=reference)
            exited, output = await world.run(
                sandbox, world.process("/bin/sh", "-c", "cat /etc/hosts; echo here; exit 4")
            )
            assert exited.exit_code == 4
            assert "rank0" in output
            assert output.endswith("here\n")
            await sandbox.destroy()
        finally:
            await docker.images.delete(reference, force=True)


async def test_an_image_that_is_not_there_is_the_jobs_own_failure(world: World, registry: str) -> None:
    from tidegate_executor.sandbox.engine_images import ImageRefusedError, pull  # noqa: PLC0415 - where an engine is

    assert isinstance(world.backend, DockerBackend)
    async with world.backend.engine() as docker:
        with pytest.raises(ImageRefusedError, match=r"not found|unknown"):
            async for _ in pull(docker, f"{registry}/{NAME}:2"):
                pass
