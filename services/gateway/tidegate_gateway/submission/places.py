"""Judges what lies on this machine: allowed roots, uploaded blobs, names of secrets. It reads no content."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
from tidegate_events.spec import PathBinding

from tidegate_gateway.submission.bounds import SECRET_FORM
from tidegate_gateway.submission.problems import Problems, child, item, listed_names


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where jobs may read and write, and where blobs and secrets lie. `secrets_dir` None: names are not checked."""

    input_roots: tuple[Path, ...]
    output_roots: tuple[Path, ...]
    blobs_dir: Path
    secrets_dir: Path | None = None


def judge(values: dict[str, Any], places: Places, problems: Problems) -> dict[str, tuple[PathBinding, ...]]:
    """Note paths outside their roots, blobs that were not uploaded and secrets that are not there.

    Return the bindings with links resolved. The node's agent resolves again when it binds: a link may change between.
    """
    _judge_stored(values, places, problems)
    bindings = {}
    for field, roots in (("inputs", places.input_roots), ("outputs", places.output_roots)):
        real = []
        for index, binding in enumerate(values.get(field, ())):
            path = child(item(field, index), "source")
            source = _inside(binding.source, roots, path, problems)
            if source is not None and field == "inputs" and not os.path.lexists(source):
                problems.add(path, "there is no such file or directory", "a path that is there")
            real.append(PathBinding(name=binding.name, source=source or binding.source))
        bindings[field] = tuple(real)
    return bindings


def _judge_stored(values: dict[str, Any], places: Places, problems: Problems) -> None:
    if (workdir := values.get("workdir")) and not (places.blobs_dir / workdir).is_file():
        problems.add("workdir", "no blob with this digest was uploaded", "PUT /v1/blobs/<sha256> first")
    if places.secrets_dir is None or "tenant" not in values:
        return
    for variable, name in values.get("secrets", {}).items():
        if not os.path.lexists(places.secrets_dir / values["tenant"] / name):
            problems.add(child("secrets", variable), "the tenant has no secret of this name", SECRET_FORM)


def _inside(source: str, roots: tuple[Path, ...], path: str, problems: Problems) -> str | None:
    """Return `source` with links resolved; None, with the problem noted, when it is not below a root."""
    if not roots:
        problems.add(path, "paths of the host are not offered here", "no paths; upload data with the workdir")
        return None
    accepted = "an absolute path below " + listed_names(map(str, roots))
    if not source.startswith("/"):
        problems.add(path, "is not an absolute path", accepted)
        return None
    try:
        real = os.path.realpath(source)
        allowed = any(Path(real).is_relative_to(os.path.realpath(root)) for root in roots)
    except (OSError, ValueError):
        problems.add(path, "cannot be resolved", accepted)
        return None
    if not allowed:
        problems.add(path, "leads outside the allowed roots", accepted)
        return None
    return real
