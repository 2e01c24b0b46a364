"""Checks beside a start: what an image asks of the driver, layers that were changed, a slow disk; each named."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tidegate_executor import prechecks
from tidegate_executor.oci import blobs, manifest
from tidegate_executor.oci.layers import LayerCache
from tidegate_executor.prechecks import PrecheckFailedError, Subject
from tidegate_executor.requirements_of_images import DISABLED, VARIABLE, unmet

from tests.executor.oci.made import FILE, layer, layout

HERE = {"cuda": "12.4", "driver": "550.54.14"}


@pytest.mark.parametrize(
    ("wanted", "holds"),
    [
        ("cuda>=12.4", True),
        ("cuda>=12", True),
        ("cuda>=12.5", False),
        ("cuda<12.10", True),
        ("cuda>=12.6 driver>=550,driver<551", True),
        ("cuda>=12.6 brand=tesla,driver>=550", False),
        ("cuda>=12.6 driver>=535,driver<536", False),
        ("driver!=550.54.14", False),
        ("nonsense", False),
        ("", True),
    ],
)
def test_an_image_says_what_it_needs(wanted: str, holds: bool) -> None:
    assert (unmet({VARIABLE: wanted}, HERE) == "") is holds


def test_what_is_unmet_names_both_sides() -> None:
    said = unmet({VARIABLE: "cuda>=13.0"}, HERE)
    assert said == "the image needs cuda>=13.0; here is cuda 12.4, driver 550.54.14"
    assert unmet({VARIABLE: "cuda>=13.0"}, {}) == "the image needs cuda>=13.0; here is no driver"
    assert unmet({VARIABLE: "cuda>=13.0", DISABLED: "true"}, HERE) == ""


def test_only_who_has_a_device_needs_a_driver() -> None:
    env = {VARIABLE: "cuda>=13.0"}
    assert prechecks.driver(Subject(digest="", env=env, gpus=False), dict) == ""
    assert prechecks.driver(Subject(digest="", env=env, gpus=True), lambda: HERE) != ""


def test_a_disk_has_a_least_speed(tmp_path: Path) -> None:
    assert prechecks.disk(tmp_path, 0) == ""
    assert "hot_mib_per_second_min is 1000000" in prechecks.disk(tmp_path, 1_000_000)
    assert (prechecks.too_slow(1.0, 8), prechecks.too_slow(1.0, 9) == "") == ("", False)
    assert list(tmp_path.iterdir()) == []


def made(tmp_path: Path, problem: str | Exception) -> Any:
    async def check(digest: str) -> str:
        if isinstance(problem, Exception):
            raise problem
        return problem

    settings = SimpleNamespace(hot_dir=str(tmp_path), hot_mib_per_second_min=0)
    return SimpleNamespace(settings=settings, images=SimpleNamespace(check=check))


async def test_a_failed_check_is_named(tmp_path: Path) -> None:
    subject = Subject(digest="sha256:x", env={}, gpus=False)
    await prechecks.run(made(tmp_path, ""), subject)
    with pytest.raises(PrecheckFailedError, match="pre-check layers failed: it was changed"):
        await prechecks.run(made(tmp_path, "it was changed"), subject)
    with pytest.raises(PrecheckFailedError, match="pre-check layers failed: it could not be carried out: gone"):
        await prechecks.run(made(tmp_path, OSError("gone")), subject)


@pytest.mark.skipif(os.geteuid() != 0, reason="layers are mounted by root only")
@pytest.mark.parametrize("form", ["file", "tree"])
def test_a_layer_that_was_changed_is_found(tmp_path: Path, form: Any) -> None:
    cache = LayerCache(tmp_path / "node")
    cache.open()
    cache.form = form if cache.form == "file" else "tree"
    with blobs.opened(layout(tmp_path / "layout", [layer(("a", FILE, b"a" * 8192))])) as parts:
        part = manifest.read(parts).layers[0]
        cache.convert(parts, part, 1024**3, bool)
    assert cache.check(part.diff_id) == ""
    place = next((tmp_path / "node" / "layers").iterdir())
    file = place / "a" if place.is_dir() else place
    with file.open("r+b") as writing:
        writing.seek(-1, os.SEEK_END)
        writing.write(b"!")
    assert "was changed" in cache.check(part.diff_id)
