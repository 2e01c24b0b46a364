"""Images from the store when something is wrong: with the store, the disk, or what lies there."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from tidegate_executor import fetched_images, image_shelf, image_store, images, store_threads
from tidegate_executor.image_shelf import ImageShelf, ImageUnavailableError
from tidegate_executor.prefetching import Prefetcher
from tidegate_executor.turns import to_its_end

from tests.executor.agent.conftest import until
from tests.executor.agent.test_prefetch import IMAGE_BYTES, MIB, Place, hexadecimal


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def order_of_use(place: Place) -> list[str]:
    return [stored.name for stored in fetched_images.held(place.settings.paths.fetched)]


async def test_a_hint_takes_away_neither_what_is_hinted_nor_what_waits_for_its_job(tmp_path: Path) -> None:
    place = Place(tmp_path, fetched_images_mib=2 * IMAGE_BYTES // MIB)
    for name in ("old", "one", "two", "three"):
        place.publish(name)
    shelf = await place.shelf()
    await shelf.get("old")
    prefetcher = Prefetcher(shelf, place.starts)
    running = asyncio.ensure_future(prefetcher.run())
    try:
        prefetcher.hint(("one", "two", "three"))
        await until(lambda: "three" in shelf.unavailable)
        assert set(await shelf.here()) == {"one", "two"}, "what nobody awaits left"
        prefetcher.hint(("one", "two"))
        assert (shelf.fetches, shelf.failures) == (3, 1), "no turn-taking"
        prefetcher.hint(("old",))
        await until(lambda: "old" in shelf.unavailable)
        assert set(await shelf.here()) == {"one", "two"}, "no longer hinted, but their jobs may be on their way"
        await shelf.get("two")
        prefetcher.hint(())
        await shelf.get("three")
        assert set(await shelf.here()) == {"one", "three"}, "a start takes what was used rather than what is awaited"
        shelf.in_use = lambda: {"three"}
        await shelf.get("two")
        assert set(await shelf.here()) == {"two", "three"}, "but it may take that too"
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_what_a_hint_brought_leaves_for_another_when_nobody_came_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, fetched_images_mib=IMAGE_BYTES // MIB)
    place.publish("one")
    place.publish("two")
    shelf = await place.shelf()
    await shelf.prefetch("one")
    await shelf.prefetch("two")
    assert list(shelf.unavailable) == ["two"]
    monkeypatch.setattr(image_shelf, "UNUSED_SECONDS_MAX", 0.0)
    await shelf.prefetch("two")
    assert set(await shelf.here()) == {"two"}
    assert not shelf.unavailable


async def test_nothing_leaves_for_what_cannot_fit(tmp_path: Path) -> None:
    place = Place(tmp_path, fetched_images_mib=IMAGE_BYTES // MIB + 1)
    place.publish("one")
    made = place.publish("big")
    record = place.store / "big" / "image.json"
    stored = image_store.read(place.store / "big")
    assert stored is not None
    record.write_bytes(msgspec.json.encode(msgspec.structs.replace(stored, size_bytes=2 * IMAGE_BYTES)))
    shelf = await place.shelf()
    await shelf.get("one")
    with pytest.raises(ImageUnavailableError, match=f"image big has {2 * IMAGE_BYTES} bytes"):
        await shelf.get(made.digest)
    assert set(await shelf.here()) == {"one"}


async def test_a_start_writes_nothing_to_what_was_fetched(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "three"):
        place.publish(name)
    shelf = await place.shelf()
    for name in ("one", "two", "three", "one"):
        await shelf.get(name)

    def full(path: Path, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(image_store, "write_durably", full)
    again = await place.shelf()
    assert set(await again.here()) == {"one", "two", "three"}
    assert order_of_use(place) == ["two", "three", "one"]


async def test_what_cannot_be_measured_now_stays_and_is_left_out(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    made = place.publish("sim")
    await (await place.shelf()).get("sim")

    def failing(*_: object) -> str:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(images, "measured_digest", failing)
        shelf = await place.shelf()
    assert not await shelf.here()
    assert place.left_over() == [hexadecimal(made)]
    shelf.in_use = lambda: {made.digest}
    with pytest.raises(ImageUnavailableError, match="members may run on"):
        await shelf.get("sim")
    shelf.in_use = frozenset
    assert (await shelf.get("sim")).digest == made.digest, "it is replaced when nobody runs on it"


@pytest.mark.parametrize("used", [False, True])
async def test_what_is_damaged_leaves_at_a_start_unless_a_member_runs_on_it(place: Place, used: bool) -> None:
    made = place.publish("sim")
    tool = Path((await (await place.shelf()).get("sim")).layers[0].source) / "bin" / "tool"
    tool.chmod(0o755)
    shelf = ImageShelf(place.settings, place.starts)
    shelf.in_use = lambda: {made.digest} if used else frozenset[str]()
    await shelf.measure()
    assert not await shelf.here()
    assert place.left_over() == ([hexadecimal(made)] if used else [])


async def test_what_is_no_image_disturbs_neither_a_start_nor_a_fetch(place: Place) -> None:
    made, other = place.publish("sim"), place.publish("other")
    fetched = place.settings.paths.fetched
    (fetched / ".nfs0001").write_text("a file")
    (fetched / ".tmp-file").write_text("another")
    (fetched / hexadecimal(made)).mkdir()
    (fetched / "lost+found").mkdir()
    shelf = await place.shelf()
    assert (await shelf.get("sim")).digest == made.digest
    assert (await shelf.get("other")).digest == other.digest
    assert order_of_use(place) == ["sim", "other"]
    assert (fetched / ".nfs0001").exists()


async def test_a_use_that_cannot_be_noted_is_no_fault(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.publish("sim")
    shelf = await place.shelf()
    await shelf.get("sim")

    def readonly(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("os.utime", readonly)
    assert (await shelf.get("sim")).name == "sim"


@pytest.mark.parametrize("mode", [0o4755, 0o2755])
async def test_programs_that_change_their_user_are_not_copied(place: Place, mode: int) -> None:
    made = place.publish("sim")
    tool = Path(made.layers[0].source) / "bin" / "tool"
    tool.chmod(mode)
    with pytest.raises(image_store.StoreError, match=rf"{tool} has mode {mode:o}.*are accepted"):
        image_store.publish(msgspec.structs.replace(made, name="new"), place.store, place.root / "cache")
    assert sorted(path.name for path in place.store.iterdir()) == ["sim"]
    (place.store / "sim" / "layers" / "0" / "bin" / "tool").chmod(mode)
    shelf = await place.shelf()
    with pytest.raises(ImageUnavailableError, match=f"has mode {mode:o}"):
        await shelf.get("sim")
    assert place.left_over() == []


async def test_a_record_that_cannot_be_read_hides_no_other_image(place: Place) -> None:
    made = place.publish("sim")
    (place.store / "broken").mkdir()
    (place.store / "broken" / "image.json").write_text("{")
    shelf = await place.shelf()
    assert (await shelf.get(made.digest)).digest == made.digest
    with pytest.raises(ImageUnavailableError, match="broken"):
        await shelf.get("broken")


async def test_a_store_that_hangs_holds_up_nothing_else(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_threads, "ANSWER_SECONDS_MAX", 0.2)
    monkeypatch.setattr(store_threads, "GIVE_UP_SECONDS", 0.1)
    made = place.publish("sim")
    asked = [f"away{number}" for number in range(2 * store_threads.THREADS_MAX)]
    for name in asked:
        (place.store / name).mkdir()
        os.mkfifo(place.store / name / "image.json")
    shelf = await place.shelf()
    found = await asyncio.gather(*(shelf.get(name) for name in asked), return_exceptions=True)
    assert {"did not answer within" in str(each) for each in found} == {True}
    await shelf.prefetch("sim")
    assert "did not answer within" in shelf.unavailable["sim"], "no thread is free for it"
    assert await asyncio.to_thread(lambda: "the agent's own threads are")
    for name in asked:  # whichever of them the threads hang at
        os.close(os.open(place.store / name / "image.json", os.O_RDWR))  # which waits for no reader, as O_WRONLY does
    monkeypatch.setattr(store_threads, "ANSWER_SECONDS_MAX", 30.0)
    assert (await shelf.get("sim")).digest == made.digest, "when it answers again"


async def test_a_copy_that_hangs_is_given_up_and_writes_no_more(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_threads, "ANSWER_SECONDS_MAX", 0.2)
    monkeypatch.setattr(store_threads, "GIVE_UP_SECONDS", 0.1)
    place.publish("sim")
    answers, ended, real = threading.Event(), threading.Event(), image_store._copy_file

    def hanging(source: str, target: str) -> Iterator[int]:
        assert answers.wait(30)
        ended.set()
        yield 0
        raise AssertionError("it went on")

    monkeypatch.setattr(image_store, "_copy_file", hanging)
    shelf = await place.shelf()
    with pytest.raises(ImageUnavailableError, match="did not answer within"):
        await shelf.get("sim")
    assert place.left_over() == []
    monkeypatch.setattr(image_store, "_copy_file", real)
    monkeypatch.setattr(store_threads, "ANSWER_SECONDS_MAX", 30.0)
    assert (await shelf.get("sim")).name == "sim"
    answers.set()
    await until(ended.is_set)


async def test_whoever_is_cancelled_again_still_waits_for_the_thread() -> None:
    begun, may_end, order = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        assert may_end.wait(30)
        order.append("thread")

    async def caller() -> None:
        try:
            await to_its_end(work)
        finally:
            order.append("clean-up")

    task = asyncio.ensure_future(caller())
    await until(begun.is_set)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert order == ["thread", "clean-up"]
