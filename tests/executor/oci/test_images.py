"""OCI images: converted once for each layer, known by their manifest's digest, mounted, and run in a sandbox."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tidegate_executor.oci import blobs, layers, manifest, mounting, streams
from tidegate_executor.oci.blobs import ImageRefusedError
from tidegate_executor.oci.images import OciImages
from tidegate_executor.oci.mounting import Form
from tidegate_executor.sandbox.base import ComponentProcess, Limits, ReplicaExited, RequestRefusedError, SandboxSpec
from tidegate_executor.sandbox.bwrap import BwrapBackend
from tidegate_executor.sandbox.settings import SandboxSettings
from tidegate_local.chaos import image

from tests.executor.oci.made import DIRECTORY, FILE, LINK, docker_save, layer, layout, sha256

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="layers are mounted by root only")
NEVER = bool  # nobody gives the conversion up


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OciImages]:
    images = OciImages(tmp_path / "node", tmp_path / "store", {})
    images.open()
    yield images
    images.layers.close()


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


def base(tmp_path: Path) -> bytes:
    tree = image.build(tmp_path / "usr")
    links = [("bin", LINK, "usr/bin"), ("lib", LINK, "usr/lib"), ("lib64", LINK, "usr/lib64")]
    files = [
        ("etc/version", FILE, b"1\n"),
        ("etc/gone", FILE, b"x"),
        ("opt/a/old", FILE, b"o"),
        ("opt/a/b/c", FILE, b"c"),
    ]
    return layer(*links, ("etc", DIRECTORY, ""), *files, tree=tree)


def top() -> bytes:
    return layer(
        ("etc/version", FILE, b"2\n"),
        ("etc/.wh.gone", FILE, b""),
        ("opt/a/.wh..wh..opq", FILE, b""),
        ("opt/a/new", FILE, b"n"),
    )


async def said(tmp_path: Path, spec_layers: tuple[object, ...], script: str) -> str:
    settings = SandboxSettings(sandboxes_dir=str(tmp_path / "sandboxes"), cgroup_name=f"tidegate-oci-{os.getpid()}")
    backend = BwrapBackend(settings)
    spec = SandboxSpec(id="oci.1.0", hostname="h", log_dir=str(tmp_path / "log"), layers=spec_layers)  # type: ignore[arg-type]
    try:
        sandbox = await backend.create(spec)
        limits = Limits(cpu_millis=1000, memory_mib=64, pids=32)
        argv = ("/bin/bash", "-c", script)
        await sandbox.start(ComponentProcess(component="main", replica=0, argv=argv, limits=limits))
        async for recorded in sandbox.events():
            if isinstance(recorded.event, ReplicaExited):
                assert recorded.event.exit_code == 0
                break
        text = (await sandbox.logs("main", 0)).data.decode()
        await sandbox.destroy()
    finally:
        await backend.release()
    return text


async def test_an_image_runs_with_its_layers_stacked(tmp_path: Path, node: OciImages) -> None:
    place = layout(tmp_path / "layout", [base(tmp_path), top()])
    made = node.convert("made", f"oci:{place}", NEVER)
    index = json.loads((place / "index.json").read_text())
    assert made.digest == index["manifests"][0]["digest"]
    assert (made.path, made.env) == (("/usr/bin", "/bin"), {"COLOUR": "blue"})
    script = (
        "read v </etc/version; echo $v; echo /opt/a/*; [ -e /etc/gone ] || echo gone; "
        "while read line; do echo $line; done </etc/hosts; echo mine >/opt/a/mine && echo written"
    )
    lines = (await said(tmp_path, made.layers, script)).splitlines()
    assert lines == ["2", "/opt/a/new", "gone", "127.0.0.1 localhost h", "::1 localhost", "written"]
    assert not any("mine" in files for _, _, files in os.walk(made.layers[-1].source))


@pytest.mark.parametrize("form", ["file", "loop", "tree"])
async def test_each_form_shows_the_same(tmp_path: Path, form: Form) -> None:
    node = OciImages(tmp_path / "node", None, {})
    node.open()
    if form == "file" and node.layers.form != "file":
        pytest.skip("this kernel mounts no EROFS from files")
    node.layers.form = form
    try:
        made = node.convert("made", f"oci:{layout(tmp_path / 'layout', [base(tmp_path), top()])}", NEVER)
        assert await said(tmp_path, made.layers, "echo /opt/a/*; read v </etc/version; echo $v") == "/opt/a/new\n2\n"
    finally:
        node.layers.close()
    assert str(tmp_path) not in mounts()


def test_a_changed_layer_converts_itself_alone(
    tmp_path: Path, node: OciImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower = base(tmp_path)
    node.convert("one", f"oci:{layout(tmp_path / 'one', [lower, top()])}", NEVER)
    made: list[Path] = []
    real = mounting.make

    def make(tree: Path, file: Path, given_up: Callable[[], bool]) -> None:
        made.append(tree)
        real(tree, file, given_up)

    monkeypatch.setattr(mounting, "make", make)
    node.convert("two", f"oci:{layout(tmp_path / 'two', [lower, layer(('etc/version', FILE, b'3'))])}", NEVER)
    assert len(made) == 1


def test_images_are_there_after_a_restart_and_share_layers(tmp_path: Path, node: OciImages) -> None:
    lower, places = base(tmp_path), {}
    for name, text in (("one", b"1"), ("two", b"2")):
        places[name] = layout(tmp_path / name, [lower, layer(("etc/version", FILE, text))])
    one = node.convert("one", f"oci:{places['one']}", NEVER)
    two = node.convert("two", f"oci:{places['two']}", NEVER)
    node.note_use(one.digest)
    node.layers.close()
    again = OciImages(tmp_path / "node", None, {})
    found = {each.name: each for each in again.open()}
    assert {name: each.digest for name, each in found.items()} == {"one": one.digest, "two": two.digest}
    assert [record.name for record in again.held()] == ["two", "one"]
    assert again.remove(two.digest) > 0
    assert [record.name for record in again.held()] == ["one"]
    assert Path(found["one"].layers[0].source, "usr").is_dir()
    assert len(list((tmp_path / "node" / "layers").iterdir())) == 2
    again.layers.close()


def test_what_an_engine_saves_is_the_same_image_each_time(tmp_path: Path, node: OciImages) -> None:
    lower = base(tmp_path)
    archive = docker_save(tmp_path / "saved.tar", [lower, lower])
    first = node.convert("saved", f"docker-archive:{archive}", NEVER)
    again = node.convert("saved", f"docker-archive:{archive}:made:1", NEVER)
    assert first.digest == again.digest
    assert len(first.layers) == 2


def test_the_store_offers_layouts_and_archives(tmp_path: Path, node: OciImages) -> None:
    (tmp_path / "store").mkdir()
    layout(tmp_path / "store" / "one", [base(tmp_path)])
    docker_save(tmp_path / "store" / "two.docker.tar", [base(tmp_path)])
    assert node.source("one") == f"oci:{tmp_path / 'store' / 'one'}"
    assert node.source("two") == f"docker-archive:{tmp_path / 'store' / 'two.docker.tar'}"
    assert node.source("../store/one") is None
    assert node.source("three") is None


def test_content_that_is_not_what_its_name_says_is_refused(tmp_path: Path, node: OciImages) -> None:
    place = layout(tmp_path / "layout", [base(tmp_path)])
    part = json.loads((place / "blobs" / "sha256" / _manifest(place)).read_text())["layers"][0]["digest"]
    (place / "blobs" / "sha256" / part.removeprefix("sha256:")).write_bytes(gzip.compress(top()))
    with pytest.raises(ImageRefusedError, match="has the digest"):
        node.convert("made", f"oci:{place}", NEVER)
    assert list((tmp_path / "node" / "layers").iterdir()) == []


def test_a_bomb_is_refused_at_the_room_there_is(tmp_path: Path) -> None:
    bomb = layer(("zeros", FILE, bytes(8 * 1024**2)))
    place = layout(tmp_path / "layout", [bomb])
    cache = layers.LayerCache(tmp_path / "node")
    cache.open()
    with blobs.opened(place) as parts:
        described = manifest.read(parts)
        with pytest.raises(ImageRefusedError, match="more than the 1048576 bytes"):
            cache.convert(parts, described.layers[0], 1024**2, NEVER)
    assert list((tmp_path / "node" / "layers").iterdir()) == []


def test_bytes_behind_the_archive_count_too(tmp_path: Path) -> None:
    data = layer(("a", FILE, b"a")) + bytes(8 * 1024**2)
    with blobs.opened(layout(tmp_path / "layout", [data])) as parts:
        described = manifest.read(parts)
        with (
            pytest.raises(ImageRefusedError, match="more than"),
            streams.content(parts, described.layers[0], 1024**2) as stream,
        ):
            stream.read(10)


@pytest.mark.parametrize("changes", [{"layers": []}, {"config": {"digest": "../../etc/passwd"}}, {"layers": 3}])
def test_descriptions_that_make_no_sense_are_refused(
    tmp_path: Path, node: OciImages, changes: dict[str, object]
) -> None:
    place = layout(tmp_path / "layout", [base(tmp_path)], changes)
    with pytest.raises(ImageRefusedError):
        node.convert("made", f"oci:{place}", NEVER)


async def test_an_image_with_a_link_where_the_sandbox_mounts_is_refused(tmp_path: Path, node: OciImages) -> None:
    hostile = layer(("workspace", LINK, "/oldroot/tmp"))
    made = node.convert("made", f"oci:{layout(tmp_path / 'layout', [base(tmp_path), hostile])}", NEVER)
    with pytest.raises(RequestRefusedError, match="link at /workspace"):
        await said(tmp_path, made.layers, "true")


def test_a_conversion_nobody_waits_for_ends_and_leaves_nothing(tmp_path: Path, node: OciImages) -> None:
    place = layout(tmp_path / "layout", [base(tmp_path)])
    with pytest.raises(ImageRefusedError, match="no longer waited for"):
        node.convert("made", f"oci:{place}", lambda: True)
    assert list((tmp_path / "node" / "layers").iterdir()) == []
    assert node.held() == []


def test_without_a_converter_layers_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == mounting.MKFS else found(name))
    assert mounting.probe(tmp_path) == "tree"


def _manifest(place: Path) -> str:
    digest: str = json.loads((place / "index.json").read_text())["manifests"][0]["digest"]
    assert sha256((place / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()) == digest
    return digest.removeprefix("sha256:")
