"""The order of what is mounted: what the sandbox has of its own must not hide what the job was given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tidegate_executor.sandbox.shim.late import open_place
from tidegate_executor.sandbox.shim.layout import Layout
from tidegate_executor.sandbox.shim.staging import overlay_options

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("prefix", ["/tmp/checkout/.venv", "/home/someone/.venv"])
def test_a_layer_below_a_private_directory_is_mounted_over_it(prefix: str) -> None:
    described = {"plan": [["layer", prefix, prefix]], "bwrap": {"binary": "/bwrap"}, "hostname": "h"}
    layout = Layout({"state_dir": "/state", "uid": None, **described})
    arguments = layout.arguments(3, {"seccomp": 4, "hosts": 5, "hold": 6})
    layer = arguments.index("--tmp-overlay")
    assert arguments[layer + 1] == prefix
    assert arguments.index("--tmpfs") < arguments.index("--dir") < layer
    assert arguments[arguments.index("--tmpfs") + 1] == "/tmp"


def test_what_is_mounted_below_a_private_directory_is_not_hidden_by_it() -> None:
    plan = [["layer", "/l", "/usr"], ["take", "/c", "/home/job/kept"], ["write", "/w", "/workspace"]]
    layout = Layout({"state_dir": "/state", "uid": None, "plan": plan, "bwrap": {"binary": "/b"}, "hostname": "h"})
    arguments = layout.arguments(3, {"seccomp": 4, "hosts": 5, "hold": 6})
    assert arguments.index("/w") < arguments.index("/state/files/home") < arguments.index("/c")


def test_options_of_an_overlay_are_escaped_and_are_never_cut_off() -> None:
    assert overlay_options(["/a,b", "/c:d"], "/u\\u", "/w") == "lowerdir=/a\\,b:/c\\:d,upperdir=/u\\\\u,workdir=/w"
    with pytest.raises(OSError, match="the kernel takes"):
        overlay_options([f"/some/where/{number}" for number in range(PAGE_BYTES // 10)], "/u", "/w")


def test_bubblewrap_is_told_of_no_more_layers_than_it_can_mount() -> None:
    layers = [f"/var/lib/node/layers/{number:064}" for number in range(PAGE_BYTES // 70)]
    plan = [["lower", layer, "/opt"] for layer in layers[1:]] + [["layer", layers[0], "/opt"]]
    layout = Layout({"state_dir": "/state", "uid": None, "plan": plan, "bwrap": {"binary": "/b"}, "hostname": "h"})
    with pytest.raises(OSError, match="the kernel takes"):
        layout.arguments(3, {"seccomp": 4, "hosts": 5, "hold": 6})


def test_a_place_to_mount_on_is_made_and_no_link_to_it_is_followed(tmp_path: Path) -> None:
    for is_directory, name in ((True, "directory"), (False, "file")):
        os.close(open_place(str(tmp_path), f"/new/{name}", is_directory=is_directory))
        assert (tmp_path / "new" / name).is_dir() == is_directory
    os.mkfifo(tmp_path / "pipe")
    os.close(open_place(str(tmp_path), "/pipe", is_directory=False))
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "out").symlink_to("..")
    for target in ("/out", "/out/stray", "/out/new/stray"):
        with pytest.raises(OSError, match="a link at out"):
            open_place(str(tmp_path / "base"), target, is_directory=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "new", "pipe"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["directory", "file"]
