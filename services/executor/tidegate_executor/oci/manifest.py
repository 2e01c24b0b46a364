"""What an image is: its manifest's digest, its layers in order, and what its configuration says of programs.

Descriptions are checked against the digests that name them; layers are checked when they are converted. What `docker
save` of older engines writes has no manifest, so one is made, always the same for the same configuration and layers.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any

import msgspec

from tidegate_executor.oci.blobs import Blobs, ImageRefusedError, read_all

LAYERS_MAX = 500  # the kernel's bound for the lower directories of one overlay
INDEX_DEPTH_MAX = 3
DEFAULT_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
NAME_ANNOTATION = "org.opencontainers.image.ref.name"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")


class LayerPart(msgspec.Struct, frozen=True, kw_only=True):
    """One layer: its content's digest, and where the part lies that holds it, compressed perhaps."""

    diff_id: str
    part: str
    part_digest: str


class OciImage(msgspec.Struct, frozen=True, kw_only=True):
    """One image of one architecture. `layers` begin with the lowest."""

    digest: str
    layers: tuple[LayerPart, ...]
    env: dict[str, str]

    @property
    def path(self) -> tuple[str, ...]:
        """Return where commands are looked for."""
        return tuple(filter(None, self.env.get("PATH", "").split(":"))) or DEFAULT_PATH


def read(blobs: Blobs, named: str = "") -> OciImage:
    """Return the image of that name there, or the only one. Raises ImageRefusedError."""
    try:
        if blobs.has("index.json"):
            return _of_layout(blobs, named)
        if blobs.has("manifest.json"):
            return _of_docker_save(blobs, named)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ImageRefusedError(f"the image's description is malformed: {error!r}") from error
    raise ImageRefusedError(
        "there is neither index.json nor manifest.json: an OCI layout, or `docker save`, is accepted"
    )


def _of_layout(blobs: Blobs, named: str) -> OciImage:
    listed = _decoded(read_all(blobs, "index.json"))["manifests"]
    if named:
        listed = [each for each in listed if (each.get("annotations") or {}).get(NAME_ANNOTATION) == named]
    digest, text = _manifest(blobs, listed, INDEX_DEPTH_MAX)
    manifest = _decoded(text)
    config = _decoded(_verified(blobs, manifest["config"]["digest"]))
    layers = [
        LayerPart(diff_id=diff_id, part=_part(layer["digest"]), part_digest=layer["digest"])
        for layer, diff_id in _paired(manifest["layers"], config)
    ]
    return OciImage(digest=digest, layers=tuple(layers), env=_env(config))


def _manifest(blobs: Blobs, listed: list[dict[str, Any]], depth: int) -> tuple[str, bytes]:
    """Return the digest and text of the manifest for this machine."""
    wanted = ARCHITECTURES.get(os.uname().machine, os.uname().machine)
    fitting = [each for each in listed if (each.get("platform") or {}).get("architecture", wanted) == wanted]
    if len(fitting) != 1:
        raise ImageRefusedError(f"{len(fitting)} images for {wanted} are there; one, or the name of one, is accepted")
    digest = fitting[0]["digest"]
    text = _verified(blobs, digest)
    content = _decoded(text)
    if content.get("mediaType", fitting[0].get("mediaType")) not in INDEX_TYPES:
        return digest, text
    if depth == 0:
        raise ImageRefusedError(f"lists of images lie in each other more than {INDEX_DEPTH_MAX} deep")
    return _manifest(blobs, content["manifests"], depth - 1)


def _of_docker_save(blobs: Blobs, named: str) -> OciImage:
    listed = msgspec.json.decode(read_all(blobs, "manifest.json"), type=list[dict[str, Any]])
    if named:
        listed = [each for each in listed if named in (each.get("RepoTags") or ())]
    if len(listed) != 1:
        raise ImageRefusedError(f"{len(listed)} images are there; one, or the name of one, is accepted")
    text = read_all(blobs, listed[0]["Config"])
    config = _decoded(text)
    layers = [
        LayerPart(diff_id=diff_id, part=part, part_digest=diff_id)
        for part, diff_id in _paired(listed[0]["Layers"], config)
    ]
    return OciImage(digest=_made_digest(text, layers), layers=tuple(layers), env=_env(config))


def _made_digest(config: bytes, layers: list[LayerPart]) -> str:
    media = "application/vnd.oci.image"
    described = {
        "schemaVersion": 2,
        "mediaType": f"{media}.manifest.v1+json",
        "config": {"mediaType": f"{media}.config.v1+json", "digest": _sha256(config), "size": len(config)},
        "layers": [{"mediaType": f"{media}.layer.v1.tar", "digest": layer.diff_id} for layer in layers],
    }
    return _sha256(msgspec.json.encode(described, order="deterministic"))


def _paired(layers: list[Any], config: dict[str, Any]) -> list[tuple[Any, str]]:
    diff_ids = config["rootfs"]["diff_ids"]
    for diff_id in diff_ids:
        _check_digest(diff_id)
    if len(diff_ids) != len(layers) or not 1 <= len(layers) <= LAYERS_MAX:
        raise ImageRefusedError(
            f"the manifest has {len(layers)} layers, the configuration {len(diff_ids)}; as many in both, and 1 to "
            f"{LAYERS_MAX}, are accepted"
        )
    return list(zip(layers, diff_ids, strict=True))


def _env(config: dict[str, Any]) -> dict[str, str]:
    listed = (config.get("config") or {}).get("Env") or []
    return dict(text.split("=", 1) for text in listed if "=" in text and "\0" not in text)


def _part(digest: str) -> str:
    _check_digest(digest)
    return f"blobs/{digest.replace(':', '/')}"


def _verified(blobs: Blobs, digest: str) -> bytes:
    text = read_all(blobs, _part(digest))
    if _sha256(text) != digest:
        raise ImageRefusedError(f"what is named {digest} has the digest {_sha256(text)}")
    return text


def _check_digest(digest: object) -> None:
    if not isinstance(digest, str) or not _DIGEST.match(digest):
        raise ImageRefusedError(f"{str(digest)[:100]!r} is no digest of the form {_DIGEST.pattern}")


def _decoded(text: bytes) -> dict[str, Any]:
    return msgspec.json.decode(text, type=dict[str, Any])


def _sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
