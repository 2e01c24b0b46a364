"""What an image has where something is mounted, as stacked layers show it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tidegate_executor.sandbox.base import RequestRefusedError
from tidegate_executor.sandbox.places import check_places

MOUNTED = {"/run/tidegate/hold": False, "/workspace": True, "/inputs/x": True}


def image(*layers: Path) -> list[tuple[str, str, str]]:
    *lowers, top = [str(layer) for layer in layers]
    return [*(("lower", lower, "/") for lower in lowers), ("layer", top, "/")]


@pytest.fixture
def layers(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("lower", "upper"):
        (tmp_path / name).mkdir()
    return tmp_path / "lower", tmp_path / "upper"


@pytest.mark.parametrize(("place", "wanted"), [("run", "a directory"), ("workspace", "a directory")])
def test_a_file_where_a_directory_is_needed_is_refused(layers: tuple[Path, Path], place: str, wanted: str) -> None:
    lower, upper = layers
    (lower / place).touch()
    with pytest.raises(RequestRefusedError, match=f"has a file at /{place}, .*; {wanted} or nothing is accepted"):
        check_places(image(lower, upper), MOUNTED)
    (upper / place).mkdir()
    check_places(image(lower, upper), MOUNTED)
    (upper / place).rmdir()
    if os.geteuid() == 0:
        os.mknod(upper / place, stat.S_IFCHR, 0)
        check_places(image(lower, upper), MOUNTED)


def test_a_directory_where_a_file_is_mounted_is_refused_unless_it_is_hidden(layers: tuple[Path, Path]) -> None:
    lower, upper = layers
    (lower / "run" / "tidegate" / "hold").mkdir(parents=True)
    (upper / "run" / "tidegate").mkdir(parents=True)
    with pytest.raises(RequestRefusedError, match=r"has a directory at /run/tidegate/hold, .*; a file or nothing"):
        check_places(image(lower, upper), MOUNTED)
    check_places(image(lower, upper), {**MOUNTED, "/run/tidegate": True})
    os.setxattr(upper / "run", "user.overlay.opaque", b"y")
    check_places(image(lower, upper), MOUNTED)


def test_what_another_layer_mounts_is_not_the_roots(layers: tuple[Path, Path]) -> None:
    lower, upper = layers
    (lower / "opt").mkdir()
    (lower / "opt" / "tool").touch()
    entries = [*image(lower), ("layer", str(upper), "/opt/tool")]
    with pytest.raises(RequestRefusedError, match="has a file at /opt/tool"):
        check_places(entries, {"/opt/tool": True})
    (lower / "opt" / "tool").unlink()
    check_places(entries, {"/opt/tool": True, "/opt/tool/x": False})


def test_a_link_is_refused_in_whichever_layer(layers: tuple[Path, Path]) -> None:
    lower, upper = layers
    (lower / "run").symlink_to("tmp")
    (upper / "run").mkdir()
    with pytest.raises(RequestRefusedError, match="has a link at /run, where the sandbox mounts /run/tidegate/hold"):
        check_places(image(lower, upper), MOUNTED)


@pytest.mark.parametrize(("kind", "base", "what"), [
    ("workspace", "/workspace", "working directory"),
    ("take", "/outputs/y", "mount at /outputs/y"),
])  # fmt: skip
def test_what_is_mounted_before_has_no_link_nor_file_in_the_way(
    tmp_path: Path, kind: str, base: str, what: str
) -> None:
    plan = [(kind, str(tmp_path), base), ("take", "/anything", f"{base}/a/kept")]
    mounted = {base: True, f"{base}/a/kept": True}
    check_places(plan, mounted)
    (tmp_path / "a").symlink_to("/")
    with pytest.raises(RequestRefusedError, match=f"the {what} has a link at {base}/a, where the sandbox mounts"):
        check_places(plan, mounted)
    (tmp_path / "a").unlink()
    (tmp_path / "a").touch()
    with pytest.raises(RequestRefusedError, match=f"the {what} has a file at {base}/a, .*; a directory or nothing"):
        check_places(plan, mounted)
