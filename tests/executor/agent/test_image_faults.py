"""Images from the store when something is wrong: with the store, the disk, or what lies there."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest
from tidegate_executor import image_store
from tidegate_executor.image_shelf import ImageUnavailableError
from tidegate_executor.turns import to_its_end

from tests.executor.agent.conftest import until
from tests.executor.agent.test_prefetch import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


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
