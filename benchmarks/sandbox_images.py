"""For `benchmarks/sandbox.py`: what an image takes that is cached, against copying its files."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import tarfile
import time
from pathlib import Path

from tidegate_executor.oci.images import OciImages

FILES, FILE_BYTES = 4000, 100 * 1024  # 400 MB
READY_CYCLES = 20
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


def image_ms(directory: Path) -> dict[str, float]:
    """Return the time from knowing an image to its layers being mounted, and that of copying a tree of its size."""
    tree = _tree(directory / "rootfs")
    layout = _layout(directory / "layout", tree)
    images = OciImages(directory / "node", None, {})
    images.open()
    images.convert("bench", f"oci:{layout}", bool)
    record = images.held()[0]
    ready = []
    for _ in range(READY_CYCLES):
        images.layers.close()
        began = time.perf_counter()
        images.image(record)
        ready.append(time.perf_counter() - began)
    images.layers.close()
    began = time.perf_counter()
    shutil.copytree(tree, directory / "copy", symlinks=True)
    copied = time.perf_counter() - began
    return {
        "image_ready_ms": round(sorted(ready)[READY_CYCLES // 2] * 1000, 3),
        "copy_ms": round(copied * 1000, 1),
    }


def _tree(place: Path) -> Path:
    content = random.Random(1).randbytes(FILE_BYTES)
    for number in range(FILES):
        file = place / str(number % 100) / str(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return place


def _layout(place: Path, tree: Path) -> Path:
    parts = place / "blobs" / "sha256"
    parts.mkdir(parents=True)
    layer = place / "layer.tar"
    with tarfile.open(layer, mode="w") as tar:
        tar.add(tree, arcname="data")
    with layer.open("rb") as reading:
        digest = hashlib.file_digest(reading, "sha256").hexdigest()
    layer.rename(parts / digest)

    def put(described: object) -> dict[str, str]:
        data = json.dumps(described).encode()
        named = hashlib.sha256(data).hexdigest()
        (parts / named).write_bytes(data)
        return {"digest": f"sha256:{named}"}

    config = put({"config": {}, "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}})
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config}
    described = put({**manifest, "layers": [{"digest": f"sha256:{digest}"}]})
    (place / "index.json").write_text(json.dumps({"manifests": [{**described, "mediaType": MANIFEST_TYPE}]}))
    (place / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return place
