"""Mount plans: order, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tidegate_executor.sandbox.base import Layer, Mount, RequestRefusedError, SandboxSpec
from tidegate_executor.sandbox.plan import ETC_FILES, build_etc, mount_plan
from tidegate_executor.sandbox.shim.staging import copy_owned, open_without_links, take_ownership


def spec(**changes: object) -> SandboxSpec:
    fields: dict[str, object] = {"id": "a.1.0", "hostname": "h", "log_dir": "/logs"}
    return SandboxSpec(**{**fields, **changes})  # type: ignore[arg-type]


def test_outer_layers_come_first_and_usr_is_merged(tmp_path: Path) -> None:
    layers = (Layer(source="/usr/lib", target="/usr/lib/x"), Layer(source="/usr", target="/usr"))
    plan = mount_plan(spec(layers=layers), tmp_path, build_etc(tmp_path))
    targets = [target for _, _, target in plan]
    assert targets.index("/usr") < targets.index("/usr/lib/x") < targets.index("/etc") < targets.index("/workspace")
    assert ("link", "usr/bin", "/bin") in plan


def test_etc_knows_the_job_and_no_secret_of_the_host(tmp_path: Path) -> None:
    etc = build_etc(tmp_path)
    assert build_etc(tmp_path) == etc
    assert "job:x:1000:1000" in (etc / "passwd").read_text()
    assert {path.name for path in etc.iterdir()} >= set(ETC_FILES)
    assert not (etc / "shadow").exists()
    (etc / "passwd").write_text("")
    assert "job:x:1000:1000" in (build_etc(tmp_path) / "passwd").read_text()


@pytest.mark.parametrize("target", ["relative", "/", "/a/../b", "/proc/x", "/dev", "/run/tidegate/hold", "/a//b"])
def test_targets_that_would_hide_or_escape_are_refused(target: str, tmp_path: Path) -> None:
    with pytest.raises(RequestRefusedError, match="target"):
        mount_plan(spec(mounts=(Mount(source="/usr", target=target),)), tmp_path, build_etc(tmp_path))


@pytest.mark.parametrize("target", ["/run", "/run/tidegate", "/home", "/var", "/var/cache", "/etc"])
def test_targets_that_would_hide_what_the_sandbox_has_of_its_own_are_refused(target: str, tmp_path: Path) -> None:
    with pytest.raises(RequestRefusedError, match=f"'{target}' refused; it would hide the sandbox's /"):
        mount_plan(spec(mounts=(Mount(source="/usr", target=target),)), tmp_path, build_etc(tmp_path))


def test_a_layer_that_an_image_has_twice_is_stacked_where_it_is_topmost(tmp_path: Path) -> None:
    once = [Layer(source=f"/usr/{name}", target="/opt/x") for name in ("bin", "lib", "bin", "share", "lib")]
    plan = mount_plan(spec(layers=tuple(once)), tmp_path, build_etc(tmp_path))
    stacked = [(kind, source) for kind, source, target in plan if target == "/opt/x"]
    assert stacked == [("lower", "/usr/bin"), ("lower", "/usr/share"), ("layer", "/usr/lib")]


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestRefusedError, match="/no/such"):
        mount_plan(spec(layers=(Layer(source="/no/such", target="/opt/x"),)), tmp_path, build_etc(tmp_path))


def test_a_mount_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real" / "below").mkdir(parents=True)
    (tmp_path / "file").touch()
    for name in ("real/below", "file"):
        os.close(open_without_links(str(tmp_path / name)))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for name in ("link", "link/below"):
        with pytest.raises(OSError, match=r"link|Not a directory"):
            open_without_links(str(tmp_path / name))
        with pytest.raises(OSError, match=r"link|Not a directory"):
            take_ownership(str(tmp_path / name), os.getuid())
    take_ownership(str(tmp_path), os.getuid())


def test_kinds_follow_the_mounts_flags(tmp_path: Path) -> None:
    mounts = (
        Mount(source="/usr", target="/m/1"),
        Mount(source="/usr", target="/m/2", writable=True),
        Mount(source="/usr", target="/m/3", writable=True, take_ownership=True),
    )
    plan = mount_plan(spec(mounts=mounts, workdir="/usr"), tmp_path, build_etc(tmp_path))
    kinds = {target: kind for kind, _, target in plan}
    assert [kinds[f"/m/{n}"] for n in (1, 2, 3)] == ["read", "write", "take"]
    assert kinds["/workspace"] == "workspace"


def test_layers_with_one_target_are_stacked_in_their_order(tmp_path: Path) -> None:
    for name in ("base", "tools"):
        (tmp_path / name / "etc").mkdir(parents=True)
    layers = tuple(Layer(source=str(tmp_path / name), target="/") for name in ("base", "tools"))
    plan = mount_plan(spec(layers=layers), tmp_path, build_etc(tmp_path))
    assert plan[:2] == [("lower", str(tmp_path / "base"), "/"), ("layer", str(tmp_path / "tools"), "/")]
    etc = [target for kind, _, target in plan if kind == "read" and target.startswith("/etc")]
    assert "/etc/passwd" in etc
    assert "/etc" not in etc


@pytest.mark.parametrize("link", ["workspace", "tmp", "etc/passwd", "home", "data", "opt"])
def test_an_image_with_a_link_where_something_is_mounted_is_refused(tmp_path: Path, link: str) -> None:
    image = tmp_path / "image"
    (image / "etc").mkdir(parents=True)
    mounts = (Mount(source="/usr", target="/data/set"),)
    (tmp_path / "tool").mkdir()
    layers = (Layer(source=str(image), target="/"), Layer(source=str(tmp_path / "tool"), target="/opt/tool"))
    mount_plan(spec(layers=layers, mounts=mounts), tmp_path, build_etc(tmp_path))
    (image / link).symlink_to("/oldroot/tmp")
    with pytest.raises(RequestRefusedError, match=f"a link at /{link}"):
        mount_plan(spec(layers=layers, mounts=mounts), tmp_path, build_etc(tmp_path))


def test_a_copy_of_a_tree_passes_over_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "of" / "below").mkdir(parents=True)
    (tmp_path / "of" / "below" / "file").write_text("text")
    os.mkfifo(tmp_path / "of" / "pipe")
    copy_owned(str(tmp_path / "of"), str(tmp_path / "copy"), os.getuid())
    assert sorted(str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*")) == [
        "below",
        "below/file",
    ]
