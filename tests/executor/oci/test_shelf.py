"""OCI images on the shelf: had by a start or ahead of it, told of, kept within the disk's marks, gone when they may."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tidegate_events.events import ImageEvicted
from tidegate_executor import watermarks
from tidegate_executor.image_news import since
from tidegate_executor.image_shelf import ImageShelf, ImageUnavailableError
from tidegate_executor.prefetching import Prefetcher
from tidegate_executor.settings import Settings, SettingsError, checked
from tidegate_executor.starts import Starts

from tests.executor.oci.made import FILE, layer, layout

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="layers are mounted by root only")


def image(place: Path, text: bytes) -> Path:
    return layout(place, [layer(("common", FILE, b"c" * 4096)), layer(("own", FILE, text * 4096))])


def common(source: str) -> bytes:
    return Path(source, "common").read_bytes()


def settings(root: Path, **changes: Any) -> Settings:
    (root / "store").mkdir(exist_ok=True)
    places = {name: str(root / name) for name in ("data_dir", "hot_dir", "secrets_dir")}
    values = {"node": "n1", **places, "offer_host_image": False, "image_store_dir": str(root / "store"), **changes}
    made = msgspec.convert(values, Settings)
    made.paths.ensure()
    return made


class Shelves:
    """Shelves whose mounts are undone at the end."""

    def __init__(self) -> None:
        self._open: list[ImageShelf] = []

    async def open(self, made: Settings) -> ImageShelf:
        shelf = ImageShelf(made, Starts())
        await shelf.measure()
        self._open.append(shelf)
        return shelf

    async def close(self) -> None:
        for shelf in self._open:
            await shelf.close()


@pytest.fixture
async def shelves() -> Any:
    made = Shelves()
    yield made
    await made.close()


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watermarks, "PRESSURE", ())  # whoever else is busy on this machine


async def test_a_start_has_its_image_from_the_store_and_by_digest(tmp_path: Path, shelves: Shelves) -> None:
    shelf = await shelves.open(settings(tmp_path))
    image(tmp_path / "store" / "one", b"1")
    first, second = await asyncio.gather(shelf.get("one"), shelf.get("one"))
    assert first.digest == second.digest
    assert (await shelf.get(first.digest)).name == "one"
    assert shelf.changed.is_set()
    assert shelf.counters()["images_fetched"] == 1
    with pytest.raises(ImageUnavailableError, match="neither on this node nor in"):
        await shelf.get("two")


async def test_images_of_the_settings_are_converted_in_the_background(tmp_path: Path, shelves: Shelves) -> None:
    source = f"oci:{image(tmp_path / 'somewhere', b'1')}"
    wanted = {"mine": {"oci": source}, "broken": {"oci": "oci:/nowhere"}}
    shelf = await shelves.open(settings(tmp_path, images=wanted))
    assert await shelf.here() == {}
    await shelf.convert_own()
    assert list(await shelf.here()) == ["mine"]
    assert "nowhere" in shelf.unavailable["broken"]
    await shelf.close()
    again = await shelves.open(settings(tmp_path, images=wanted))
    assert list(await again.here()) == ["mine"]


async def test_a_hint_brings_an_image_ahead(tmp_path: Path, shelves: Shelves) -> None:
    image(tmp_path / "store" / "one", b"1")
    shelf = await shelves.open(settings(tmp_path))
    prefetcher = Prefetcher(shelf, Starts())
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(prefetcher.run())
        prefetcher.hint(("one",))
        async with asyncio.timeout(20):
            await shelf.changed.wait()
        following.cancel()
    assert "one" in await shelf.here()


async def test_a_start_does_not_wait_for_a_hint_that_waits(
    tmp_path: Path, shelves: Shelves, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressure = tmp_path / "cpu"
    pressure.write_text("some avg10=90.00 avg60=1.00 avg300=0.00 total=1\n")
    monkeypatch.setattr(watermarks, "PRESSURE", (pressure,))
    image(tmp_path / "store" / "one", b"1")
    shelf = await shelves.open(settings(tmp_path))
    async with asyncio.TaskGroup() as tasks:
        hinted = tasks.create_task(shelf.prefetch("one"))
        async with asyncio.timeout(20):
            assert (await shelf.get("one")).name == "one"
        assert not hinted.done()
        hinted.cancel()


async def test_a_full_disk_sends_the_unused_away_first(
    tmp_path: Path, shelves: Shelves, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old", "used", "pinned", "newer"):
        image(tmp_path / "store" / name, name.encode())
    shelf = await shelves.open(settings(tmp_path, pinned_images=["pinned"]))
    for name in ("pinned", "used", "old", "newer"):
        await shelf.get(name)
    shelf.in_use = lambda: {"used"}
    left: list[str] = []

    async def leaving(digest: str) -> None:
        assert all(os.listdir(layer.source) for layer in layers[digest]), "it is still there"
        left.append(digest)

    shelf.leaving = leaving
    layers = {image.digest: image.layers for image in (await shelf.here()).values()}
    told = shelf.news()
    await shelf.trim()
    assert set(await shelf.here()) == {"old", "used", "pinned", "newer"}
    monkeypatch.setattr(watermarks, "excess_bytes", lambda *_: 1)
    shelf.changed.clear()
    await shelf.trim()
    assert set(await shelf.here()) == {"used", "pinned", "newer"}
    assert shelf.changed.is_set()
    (evicted,) = since(told, shelf.news(), ("n1", 1, 0))
    assert isinstance(evicted, ImageEvicted)
    assert (evicted.image, left) == ("old", [evicted.digest])
    assert evicted.size_bytes == told.size_bytes[evicted.digest] > 0
    monkeypatch.setattr(watermarks, "excess_bytes", lambda *_: 10**12)
    await shelf.trim()
    assert set(await shelf.here()) == {"used", "pinned"}
    kept = await shelf.get("used")
    assert common(kept.layers[0].source) == b"c" * 4096


def test_the_marks_bound_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = settings(tmp_path, images_high_percent=80, images_low_percent=60)

    def used(percent: int) -> int:
        usage = type("Usage", (), {"used": percent, "free": 100 - percent})
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        return watermarks.excess_bytes(made, tmp_path)

    assert (used(50), used(80), used(81), used(100)) == (0, 0, 21, 40)


@pytest.mark.parametrize(
    "changes",
    [
        {"images": {"a": {"oci": "oci:/x", "layers": [{"source": "/", "target": "/usr"}]}}},
        {"images": {"a": {}}},
        {"images_low_percent": 95},
        {"images_high_percent": 101},
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        checked(settings(tmp_path, **changes))


async def test_what_is_done_ahead_waits_for_an_idle_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pressure = tmp_path / "cpu"
    pressure.write_text("some avg10=90.00 avg60=1.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 total=0\n")
    monkeypatch.setattr(watermarks, "PRESSURE", (pressure,))
    monkeypatch.setattr(watermarks, "LOOK_SECONDS", 0.01)
    assert not await watermarks.idle(0.05)
    waiting = asyncio.ensure_future(watermarks.idle(20))
    await asyncio.sleep(0.03)
    assert not waiting.done()
    pressure.write_text("some avg10=1.50 avg60=1.00 avg300=0.00 total=1\n")
    assert await waiting
    assert watermarks.pressure_percent(tmp_path / "absent") == 0
