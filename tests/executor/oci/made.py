"""Images made for tests: layers as lists of entries, a layout or a `docker save` archive around them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

FILE, LINK, HARD, DIRECTORY = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"

Entry = tuple[str, bytes, bytes | str]


def layer(*entries: Entry, mode: int = 0o755, tree: Path | None = None) -> bytes:
    """Return a tar of entries (name, type, content or link), `tree` as /usr first."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        if tree is not None:
            tar.add(tree, arcname="usr")
        for name, kind, content in entries:
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.mtime = kind, mode, 1_700_000_000
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content
                tar.addfile(info)
    return buffer.getvalue()


def sha256(data: bytes) -> str:
    """Return a digest as images name it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def config(layers: list[bytes], env: tuple[str, ...] = ("PATH=/usr/bin:/bin", "COLOUR=blue")) -> bytes:
    """Return an image's configuration."""
    described = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": list(env)},
        "rootfs": {"type": "layers", "diff_ids": [sha256(each) for each in layers]},
    }
    return json.dumps(described).encode()


def layout(place: Path, layers: list[bytes], changes: dict[str, Any] | None = None) -> Path:
    """Write an OCI layout; its layers are compressed. `changes` replace parts of its manifest."""
    parts = place / "blobs" / "sha256"
    parts.mkdir(parents=True)

    def put(data: bytes) -> dict[str, Any]:
        (parts / sha256(data).removeprefix("sha256:")).write_bytes(data)
        return {"digest": sha256(data), "size": len(data)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": put(config(layers)),
        "layers": [put(gzip.compress(each, mtime=0)) for each in layers],
        **(changes or {}),
    }
    described = put(json.dumps(manifest).encode())
    index = {"schemaVersion": 2, "manifests": [{**described, "mediaType": MANIFEST_TYPE}]}
    (place / "index.json").write_text(json.dumps(index))
    (place / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return place


def docker_save(place: Path, layers: list[bytes]) -> Path:
    """Write an archive as older engines save images, the second layer named by a link where it is the first again."""
    described = config(layers)
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": ["made:1"], "Layers": names}]
    with tarfile.open(place, mode="w") as tar:
        for number, (name, data) in enumerate(zip(names, layers, strict=True)):
            info = tarfile.TarInfo(name)
            if number and data == layers[0]:
                info.type, info.linkname = tarfile.SYMTYPE, "../0/layer.tar"
                tar.addfile(info)
                continue
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, data in (("config.json", described), ("manifest.json", json.dumps(manifest).encode())):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return place
