"""Images from the store: fetched by a start or ahead of it, whole or not at all, within their room, and told of."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tidegate_events.events import ImageCached, ImageUnavailable, SandboxStarted
from tidegate_executor import image_shelf, image_store, images
from tidegate_executor.image_shelf import ImageShelf, ImageUnavailableError
from tidegate_executor.images import Image
from tidegate_executor.prefetching import Prefetcher
from tidegate_executor.settings import Settings
from tidegate_executor.starts import Starts

from tests.executor.agent.conftest import BIN, Agent, Scheduler, component, job, until

MIB = 1024**2
IMAGE_BYTES = 3 * MIB


class Place:
    """A node and the store it shares with the one where images are made."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.root = root
        self.store = root / "store"
        self.store.mkdir()
        values = {
            "node": "n1",
            "data_dir": str(root / "n1"),
            "hot_dir": str(root / "hot"),
            "secrets_dir": str(root / "secrets"),
            "offer_host_image": False,
            "image_store_dir": str(self.store),
            **changes,
        }
        self.settings = msgspec.convert(values, Settings)
        self.settings.paths.ensure()
        self.starts = Starts()

    async def shelf(self) -> ImageShelf:
        shelf = ImageShelf(self.settings, self.starts)
        await shelf.measure()
        return shelf

    def publish(self, name: str) -> Image:
        layer = self.root / "made" / name
        (layer / "bin" / "__pycache__").mkdir(parents=True)
        (layer / "bin" / "__pycache__" / "tool.pyc").write_text("derived")
        (layer / "bin" / "tool").write_bytes(name.encode() * (IMAGE_BYTES // len(name)))
        (layer / "bin" / "tool").chmod(0o555)
        (layer / "bin" / "other").symlink_to("tool")
        (layer / "bin").chmod(0o555)
        digest = images.measured_digest([(str(layer), "/usr")], self.root / "cache")
        made = Image(
            name=name, digest=digest, layers=(image_store.Layer(source=str(layer), target="/usr"),), path=("/usr/bin",)
        )
        assert image_store.publish(made, self.store, self.root / "cache").digest == digest
        return made

    def left_over(self) -> list[str]:
        return sorted(path.name for path in self.settings.paths.fetched.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def hexadecimal(image: Image) -> str:
    return image.digest.removeprefix("b3:")


async def test_whoever_wants_it_and_by_whichever_name_it_is_fetched_once(place: Place) -> None:
    made = place.publish("sim")
    shelf = await place.shelf()
    got = await asyncio.gather(shelf.get("sim"), shelf.get(made.digest), shelf.prefetch("sim"), shelf.get("sim"))
    assert shelf.counters() == {
        "images_fetched": 1.0, "image_fetch_failures": 0.0, "image_fetched_bytes": float(IMAGE_BYTES)
    }  # fmt: skip
    assert got[0] == got[1] == got[3]
    (layer,) = got[0].layers
    assert images.measured_digest([(layer.source, layer.target)], place.root / "cache") == made.digest
    assert not (Path(layer.source) / "bin" / "__pycache__").exists()
    assert shelf.changed.is_set()
    assert place.left_over() == [hexadecimal(made)]


async def test_what_is_here_by_another_name_is_not_fetched_and_never_removed(tmp_path: Path) -> None:
    layer = tmp_path / "made" / "sim"
    own = {"mine": {"layers": [{"source": str(layer), "target": "/usr"}]}}
    place = Place(tmp_path, images=own, fetched_images_mib=IMAGE_BYTES // MIB)
    made = place.publish("sim")
    shelf = await place.shelf()
    await shelf.prefetch("sim")
    assert {name: image.digest for name, image in (await shelf.here()).items()} == dict.fromkeys(
        ("mine", "sim"), made.digest
    )
    assert shelf.fetches == 0
    assert shelf.changed.is_set()
    place.publish("other")
    place.publish("third")
    await shelf.get("other")
    await shelf.get("third")
    assert set(await shelf.here()) == {"mine", "sim", "third"}


async def test_what_was_fetched_is_there_at_the_next_start_if_it_is_whole(place: Place) -> None:
    whole, damaged = place.publish("whole"), place.publish("damaged")
    shelf = await place.shelf()
    await shelf.get("whole")
    tool = Path((await shelf.get("damaged")).layers[0].source) / "bin" / "tool"
    tool.chmod(0o755)
    tool.write_text("power was cut")
    (place.settings.paths.fetched / ".tmp-1234").mkdir()
    again = await place.shelf()
    assert {name: image.digest for name, image in (await again.here()).items()} == {"whole": whole.digest}
    assert place.left_over() == [hexadecimal(whole)]
    assert (await again.get("damaged")).digest == damaged.digest, "it is fetched anew"


@pytest.mark.parametrize("damage", ["bytes", "more bytes", "no layer", "no record"])
async def test_what_is_not_what_its_record_says_is_refused_and_leaves_nothing(place: Place, damage: str) -> None:
    place.publish("sim")
    tool = place.store / "sim" / "layers" / "0" / "bin" / "tool"
    tool.chmod(0o755)
    if damage == "bytes":
        tool.write_bytes(tool.read_bytes().replace(b"s", b"S", 1))
    elif damage == "more bytes":
        tool.write_bytes(tool.read_bytes() + b"s")
    elif damage == "no layer":
        (place.store / "sim" / "layers" / "0" / "bin").chmod(0o755)
        shutil.rmtree(place.store / "sim" / "layers" / "0")
    else:
        (place.store / "sim" / "image.json").write_text("{")
    shelf = await place.shelf()
    with pytest.raises(ImageUnavailableError, match="image sim cannot be fetched"):
        await shelf.get("sim")
    await shelf.prefetch("sim")
    assert shelf.failures == 2
    assert list(shelf.unavailable) == ["sim"]
    assert not await shelf.here()
    assert place.left_over() == []


async def test_the_image_that_was_not_used_for_longest_leaves_but_none_that_is_needed(tmp_path: Path) -> None:
    place = Place(tmp_path, fetched_images_mib=2 * IMAGE_BYTES // MIB)
    for name in ("one", "two", "three", "four"):
        place.publish(name)
    shelf = await place.shelf()
    await shelf.get("one")
    await shelf.get("two")
    await shelf.get("one")
    await shelf.get("three")
    assert set(await shelf.here()) == {"one", "three"}
    three = (await shelf.here())["three"]
    shelf.in_use = lambda: {"one", three.digest}
    with pytest.raises(ImageUnavailableError, match="3 are free for it here"):
        await shelf.get("four")
    shelf.in_use = lambda: {"one"}
    await asyncio.gather(shelf.prefetch("four"), shelf.prefetch("two"))
    assert len(place.left_over()) == 2, "both at once have no more room than one after the other"
    assert len(shelf.unavailable) == 1
    assert "one" in await shelf.here()


async def test_a_hint_waits_for_starts_but_not_for_the_one_that_waits_for_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_store, "STEP_ENTRIES", 1)
    place.publish("sim")
    shelf = await place.shelf()
    with place.starts.one():
        hinted = asyncio.ensure_future(shelf.prefetch("sim"))
        await until(lambda: place.left_over() != [])
        assert not (await asyncio.wait([hinted], timeout=5 * image_shelf.PAUSE_SECONDS))[0]
        await shelf.get("sim")
        await hinted
    assert shelf.fetches == 1


async def test_who_stops_in_the_middle_leaves_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_store, "STEP_ENTRIES", 1)
    place.publish("sim")
    shelf = await place.shelf()
    with place.starts.one():
        hinted = asyncio.ensure_future(shelf.prefetch("sim"))
        await until(lambda: place.left_over() != [])
        hinted.cancel()
        with suppress(asyncio.CancelledError):
            await hinted
        assert hinted.cancelled()
        assert place.left_over() == []
        assert (await shelf.get("sim")).name == "sim", "its room and its turn were given back"


async def test_hints_are_followed_when_no_start_waits_and_dropped_when_withdrawn(place: Place) -> None:
    place.publish("sim")
    place.publish("torch")
    shelf = await place.shelf()
    prefetcher = Prefetcher(shelf, place.starts)
    running = asyncio.ensure_future(prefetcher.run())
    try:
        with place.starts.one():
            prefetcher.hint(("sim",))
            await asyncio.sleep(0.05)
            assert place.left_over() == []
            prefetcher.hint(("nowhere", "torch"))
        await until(lambda: shelf.fetches)
        assert list(await shelf.here()) == ["torch"]
        assert "neither on this node nor in" in shelf.unavailable["nowhere"]
        prefetcher.hint(("torch", "nowhere"))
        prefetcher.hint(("torch", "nowhere", "sim"))
        await until(lambda: shelf.fetches == 2)
        assert shelf.failures == 1, "it is not tried again and again"
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_a_node_without_a_store_says_so(tmp_path: Path) -> None:
    place = Place(tmp_path, image_store_dir="")
    shelf = await place.shelf()
    assert not shelf.fetches_others
    await shelf.prefetch("sim")
    assert shelf.unavailable == {"sim": "image sim is not on this node, which has no image store"}
    with pytest.raises(ImageUnavailableError) as refused:
        await shelf.get("sim")
    assert refused.value.missing


def test_what_is_in_the_store_is_not_written_over(place: Place) -> None:
    made = place.publish("sim")
    cache = place.root / "cache"
    assert image_store.publish(made, place.store, cache).digest == made.digest
    with pytest.raises(image_store.StoreError, match="another name"):
        image_store.publish(msgspec.structs.replace(made, digest="b3:00"), place.store, cache)
    with pytest.raises(image_store.StoreError, match="names of the form"):
        image_store.publish(msgspec.structs.replace(made, name="../sim"), place.store, cache)
    with pytest.raises(image_store.StoreError, match="was copied as"):
        image_store.publish(msgspec.structs.replace(made, name="new", digest="b3:00"), place.store, cache)
    assert sorted(path.name for path in place.store.iterdir()) == ["sim"]
    assert image_store.find(place.store, "b3:00") is None


# ---- a real agent ----


def publish(agent: Agent, name: str) -> str:
    """Publish an image of the agent's settings; return its digest."""
    done = subprocess.run(
        [BIN / "tidegate-executor", "--config", agent.directory / "agent.json", "publish", name],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.split("\t")[1]


async def test_an_agent_fetches_what_is_hinted_or_started_and_tells_it(
    scheduler: Scheduler, make_agent: Callable[..., Agent], image: dict[str, Any], tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    (small / "note").write_text("an image of its own")
    store = tmp_path / "store"
    store.mkdir()
    builder = make_agent(
        node="builder",
        data_dir=str(tmp_path / "builder" / "node"),
        images={
            "sim": {**image, "layers": [*image["layers"], {"source": str(small), "target": "/opt"}]},
            "other": {"layers": [{"source": str(small), "target": "/usr"}], "path": ["/usr/bin"]},
        },
        image_store_dir=str(store),
    )
    builder.end()
    digest, other = publish(builder, "sim"), publish(builder, "other")
    agent = make_agent(image_store_dir=str(store))
    joined = await scheduler.joined()
    assert (set(joined.images), joined.fetches_images) == ({"tiny"}, True)
    scheduler.prefetch = ("absent", "sim")
    scheduler.at_seq += 1

    async def told() -> list[ImageCached]:
        return await scheduler.events(ImageCached)

    (cached,) = await until(told)
    assert (cached.image, cached.digest, cached.incarnation) == ("sim", digest, scheduler.incarnation)
    assert [event.image for event in await scheduler.events(ImageUnavailable)] == ["absent"]

    for name, wanted in (("sim", digest), ("other", other)):  # one that was hinted, and one that was not
        order = job(f"on-{name}", component("main", "print('ran')"))
        scheduler.want(msgspec.structs.replace(order, spec=msgspec.structs.replace(order.spec, image=name)))
        assert (await scheduler.first(SandboxStarted, f"on-{name}")).image_digest == wanted
        assert (await scheduler.exit_of(f"on-{name}")).outcome == "completed"

    agent.end()
    agent.start()
    assert set((await scheduler.joined(2)).images) == {"tiny", "sim", "other"}
    hinted = [json.loads(line) for line in agent.log.read_text().splitlines() if '"image_fetching"' in line]
    assert [(each["image"], each["hinted"]) for each in hinted] == [("sim", True), ("other", False)]
