"""An OCI image of the settings on a real agent: converted meanwhile, told of, run on, and checked at each start."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tidegate_events.events import ImageCached, SandboxStarted
from tidegate_events.orders import SandboxOrder
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, ResourceRange

from tests.executor.agent.conftest import Agent, Scheduler, job, until
from tests.executor.oci.made import FILE, LINK, layer, layout

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="layers are mounted by root only")


def on(image: str, name: str, script: str) -> SandboxOrder:
    main = Component(
        name="main", command=("sh", "-c", script), resources={"default": ResourceRange(minimum=Resources(500, 128))}
    )
    order = job(name, main, level="trusted")
    return msgspec.structs.replace(order, spec=msgspec.structs.replace(order.spec, image=image))


async def test_an_image_is_converted_told_of_run_on_and_checked(
    scheduler: Scheduler, make_agent: Callable[..., Agent], image: dict[str, Any], tmp_path: Path
) -> None:
    links = [("bin", LINK, "usr/bin"), ("lib", LINK, "usr/lib"), ("lib64", LINK, "usr/lib64")]
    lower = layer(*links, tree=Path(image["layers"][0]["source"]))
    upper = layer(("etc/motto", FILE, b"layers\n"))
    place = layout(tmp_path / "layout", [lower, upper])
    digest = json.loads((place / "index.json").read_text())["manifests"][0]["digest"]
    agent = make_agent(images={"made": {"oci": f"oci:{place}"}}, offer_trusted=True)
    assert (await scheduler.joined()).images == {}

    async def told() -> list[ImageCached]:
        return await scheduler.events(ImageCached)

    (cached,) = await until(told)
    assert (cached.image, cached.digest, cached.incarnation) == ("made", digest, scheduler.incarnation)
    assert cached.size_bytes > 1_000_000
    scheduler.want(on("made", "first", 'test "$(cat /etc/motto)" = layers && test "$COLOUR" = blue'))
    assert (await scheduler.first(SandboxStarted, "first")).image_digest == digest
    assert (await scheduler.exit_of("first")).outcome == "completed"

    scheduler.want(on("made", "lasting", "sleep 600"))
    await scheduler.first(SandboxStarted, "lasting")
    place_of_mounts = namespace(agent.pid)
    assert place_of_mounts != namespace("self")
    agent.end()
    assert str(agent.data_dir) not in mounts()
    agent.start()
    assert (await scheduler.joined(2)).images == {"made": digest}
    assert namespace(agent.pid) == place_of_mounts
    damage(agent.data_dir / "oci-images" / "layers")
    scheduler.want(on("made", "second", "sleep 60"))
    exited = await scheduler.exit_of("second")
    assert exited.outcome != "completed"
    assert "pre-check layers failed" in exited.detail


def namespace(pid: object) -> str:
    return os.readlink(f"/proc/{pid}/ns/mnt")


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


def damage(layers: Path) -> None:
    smallest = min((path for path in layers.iterdir() if path.is_file()), key=lambda path: path.stat().st_size)
    with smallest.open("r+b") as writing:
        writing.seek(-1, os.SEEK_END)
        writing.write(b"!")
