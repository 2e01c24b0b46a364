"""Hostile images on a real agent: a job on one is rejected by what is wrong with it, in the journal and in the log."""

from __future__ import annotations

import asyncio
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tidegate_events.events import PlacementRejected, SandboxStarted
from tidegate_events.orders import SandboxOrder

from tests.executor.agent.conftest import Agent, Scheduler, component, job, until
from tests.executor.agent.conftest import bus as bus  # noqa: PLC0414 - a fixture
from tests.executor.agent.conftest import client as client  # noqa: PLC0414 - a fixture
from tests.executor.agent.conftest import image as image  # noqa: PLC0414 - a fixture
from tests.executor.agent.conftest import make_agent as make_agent  # noqa: PLC0414 - a fixture
from tests.executor.agent.conftest import scheduler as scheduler  # noqa: PLC0414 - a fixture
from tests.executor.oci.made import FILE, HARD, LINK, Entry, layer, layout, sha256

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="layers are mounted by root only")

EVIL = "/tmp/evil-of-an-image"
LAYERS: dict[str, list[Entry]] = {
    "absolute": [(EVIL, FILE, b"x")],
    "climbing": [("a/../../../tmp/evil-of-an-image", FILE, b"x")],
    "disk": [("dev/vda", tarfile.BLKTYPE, "")],
    "memory": [("dev/mem", tarfile.CHRTYPE, "")],
    "pipe": [("pipe", tarfile.FIFOTYPE, "")],
    "hard-link-outside": [("shadow", HARD, "/etc/shadow")],
    "hard-link-climbing": [("shadow", HARD, "../../../etc/shadow")],
    "hard-link-by-a-link": [("out", LINK, "/etc"), ("shadow", HARD, "out/shadow")],
    "file-by-a-link": [("out", LINK, "/tmp"), ("out/evil-of-an-image", FILE, b"x")],
    "whiteout-by-a-link": [("out", LINK, "/etc"), ("out/.wh.passwd", FILE, b"")],
    "deep": [("/".join(["d"] * 200), FILE, b"x")],
    "workspace-elsewhere": [("workspace", LINK, "/etc")],
    "helper-elsewhere": [("run", LINK, "/tmp")],
}
DESCRIPTIONS: dict[str, Any] = {
    "no-layers": {"layers": []},
    "layers-that-are-a-number": {"layers": 3},
    "configuration-elsewhere": {"config": {"digest": "../../../etc/passwd", "size": 10}},
    "layer-elsewhere": {"layers": [{"digest": "sha256:../../../../etc/passwd", "size": 1, "mediaType": "x"}]},
    "layer-that-is-not-there": {"layers": [{"digest": sha256(b"nothing"), "size": -1}]},
    "layers-without-end": {"layers": [{"digest": sha256(b"nothing"), "size": 1}] * 600},
}


def hostile(directory: Path, base: bytes) -> dict[str, Path]:
    """Every hostile image by its name; each has a layer that is none, so that only what is hostile is wrong."""
    made = {name: layout(directory / name, [base, layer(*entries)]) for name, entries in LAYERS.items()}
    made |= {
        name: layout(directory / name, [layer((name, FILE, b"new"))], changes) for name, changes in DESCRIPTIONS.items()
    }
    made["another-content"] = layout(directory / "another-content", [base])
    blobs = sorted((made["another-content"] / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    blobs[-1].write_bytes(b"\x1f\x8b" + blobs[-1].read_bytes()[2:-1] + b"!")
    made["gzip-of-garbage"] = layout(directory / "gzip-of-garbage", [layer(("gzip", FILE, b"new"))])
    exchange(made["gzip-of-garbage"], b"\x1f\x8b\x08\x00" + bytes(range(256)) * 8)
    made["zstd-of-garbage"] = layout(directory / "zstd-of-garbage", [layer(("zstd", FILE, b"new"))])
    exchange(made["zstd-of-garbage"], b"\x28\xb5\x2f\xfd" + bytes(range(256)) * 8)
    made["garbage"] = layout(directory / "garbage", [b"no archive" * 1000])
    for name in ("manifest", "index"):
        made[f"{name}-of-garbage"] = layout(directory / f"{name}-of-garbage", [base])
        file = made[f"{name}-of-garbage"] / "index.json"
        if name == "index":
            file.write_text('{"manifests": [' * 5000)
        else:
            digest = json.loads(file.read_text())["manifests"][0]["digest"]
            (made[f"{name}-of-garbage"] / "blobs" / "sha256" / digest.removeprefix("sha256:")).write_text("{")
    return made


def exchange(place: Path, data: bytes) -> None:
    """Put other bytes in the place of the only layer, and say so wherever it is named."""
    index = json.loads((place / "index.json").read_text())
    parts = place / "blobs" / "sha256"
    manifest = json.loads((parts / index["manifests"][0]["digest"].removeprefix("sha256:")).read_text())
    (parts / sha256(data).removeprefix("sha256:")).write_bytes(data)
    manifest["layers"] = [{"digest": sha256(data), "size": len(data)}]
    text = json.dumps(manifest).encode()
    (parts / sha256(text).removeprefix("sha256:")).write_bytes(text)
    index["manifests"][0] |= {"digest": sha256(text), "size": len(text)}
    (place / "index.json").write_text(json.dumps(index))


def on(image: str) -> SandboxOrder:
    order = job(image, component("main", "print('ran')"), level="trusted")
    return msgspec.structs.replace(order, spec=msgspec.structs.replace(order.spec, image=image))


async def test_a_job_on_a_hostile_image_is_rejected_and_that_is_logged(
    scheduler: Scheduler, make_agent: Callable[..., Agent], image: dict[str, Any], tmp_path: Path
) -> None:
    links: list[Entry] = [("bin", LINK, "usr/bin"), ("lib", LINK, "usr/lib"), ("lib64", LINK, "usr/lib64")]
    base = layer(*links, tree=Path(image["layers"][0]["source"]))
    places = hostile(tmp_path / "images", layer(*links))
    places["honest"] = layout(tmp_path / "images" / "honest", [base])
    before = await asyncio.to_thread(outside)
    room = {"offer_trusted": True, "cpu_millis": 100_000, "memory_mib": 100_000}
    agent = make_agent(images={name: {"oci": f"oci:{place}"} for name, place in places.items()}, **room)
    await scheduler.joined()

    async def rejected() -> dict[str, PlacementRejected] | None:
        found = {event.job: event for event in await scheduler.events(PlacementRejected)}
        return found if len(found) >= len(places) - 1 else None

    async def converted() -> bool:
        lines = [json.loads(line) for line in await asyncio.to_thread(lines_of, agent.log)]
        return any((line["event"], line.get("image")) == ("oci_image_converted", "honest") for line in lines)

    await until(converted, 60)  # it is the last of them
    for name in places.keys() - {"honest"}:
        scheduler.want(on(name))
    found = await until(rejected, 60)
    scheduler.want(on("honest"))
    assert (await scheduler.exit_of("honest")).outcome == "completed", "no other job pays for it"
    assert [event.job for event in await scheduler.events(SandboxStarted)] == ["honest"]
    assert found.keys() == places.keys() - {"honest"}
    logged = [json.loads(line) for line in await asyncio.to_thread(lines_of, agent.log)]
    said = {line["image"]: line["why"] for line in logged if line["event"] == "image_not_prefetched"}
    rejections = {line["job"]: line["detail"] for line in logged if line["event"] == "placement_rejected"}
    for name, event in found.items():
        assert rejections[name] == event.reason.detail, f"{name} is in the log"
        if event.reason.code == "ImageMissing":
            assert said[name], "why it is not here"
        else:
            assert "the image has a link at /" in event.reason.detail
    assert agent.alive
    assert await asyncio.to_thread(outside) == before
    assert before[2] is False


def lines_of(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if line.startswith("{")]


def outside() -> tuple[bytes, int, bool]:
    """What hostile images try to change."""
    return Path("/etc/passwd").read_bytes(), os.stat("/etc/shadow").st_nlink, Path(EVIL).exists()
