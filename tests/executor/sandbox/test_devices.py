"""Devices by CDI: a made specification and stand-in nodes; what was leased is there and works, and nothing else is."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate_executor.sandbox import cdi
from tidegate_executor.sandbox.base import Device, RequestRefusedError
from tidegate_executor.sandbox.shim.engine import Engine

from tests.executor.sandbox.conftest import World, open_world, output_of, wait_output

ZERO, FULL = os.makedev(1, 5), os.makedev(1, 7)
LOOK = (
    "import os, stat\n"
    "print(sorted(name for name in os.listdir('/dev') if name.startswith('accelerator')))\n"
    "print(open('/dev/accelerator1', 'rb').read(4))\n"
    "print(open('/usr/lib/libaccelerator.so.1').read())\n"
    "print([name for name in os.listdir('/dev') if stat.S_ISBLK(os.lstat('/dev/' + name).st_mode)])\n"
)


@pytest.fixture(params=["bwrap", "docker"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    opened = await open_world(request.param, tmp_path)
    yield opened
    await opened.backend.sweep(set())
    await opened.backend.release()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A CDI directory with two accelerators, a library of theirs, and stand-in nodes."""
    if os.geteuid() != 0:
        pytest.skip("only root makes device nodes")
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    for number, device in enumerate((FULL, ZERO)):
        os.mknod(nodes / f"node{number}", stat.S_IFCHR | 0o666, device)
        (nodes / f"node{number}").chmod(0o666)
    (nodes / "library").write_text("the driver's library")
    devices = [
        {
            "name": str(number),
            "containerEdits": {
                "deviceNodes": [{"path": f"/dev/accelerator{number}", "hostPath": str(nodes / f"node{number}")}],
                "env": [f"ACCELERATOR={number}"],
            },
        }
        for number in range(2)
    ]
    mount = {
        "hostPath": str(nodes / "library"),
        "containerPath": "/usr/lib/libaccelerator.so.1",
        "options": ["ro", "nosuid", "nodev", "bind"],
    }
    specification = {
        "cdiVersion": "0.6.0",
        "kind": "example.com/accelerator",
        "devices": devices,
        "containerEdits": {"mounts": [mount]},
    }
    place = tmp_path / "cdi"
    place.mkdir()
    (place / "accelerator.json").write_text(json.dumps(specification))
    return place


async def test_only_the_leased_device_is_there_and_it_works(world: World, directory: Path) -> None:
    given = cdi.granted(["example.com/accelerator=1"], cdi.specifications([str(directory)]))
    assert given.env == {"ACCELERATOR": "1"}
    sandbox = await world.create(devices=given.devices, mounts=given.mounts)
    exited, output = await world.run(sandbox, world.python(LOOK))
    assert exited.exit_code == 0, output
    assert output.splitlines() == ["['accelerator1']", repr(bytes(4)), "the driver's library", "[]"]


async def test_without_a_lease_no_device_is_there(world: World) -> None:
    sandbox = await world.create()
    look = "import os\nprint([name for name in os.listdir('/dev') if name.startswith('accelerator')])"
    _, output = await world.run(sandbox, world.python(look))
    assert output == "[]\n"


async def test_an_engine_that_knows_the_devices_by_name_is_asked_by_name(world: World, directory: Path) -> None:
    """With an engine whose CDI directory the test may write to: `TIDEGATE_ENGINE=... scripts/private-dockerd`."""
    if world.name != "docker":
        pytest.skip("only an engine is asked by name")
    engine = Engine(world.settings.docker_socket)
    places = [Path(place) for place in engine.call("GET", "/info").get("CDISpecDirs") or []]
    own = next((place for place in places if place.is_relative_to(Path(world.settings.docker_socket).parent)), None)
    if own is None:
        pytest.skip(f"the engine knows no devices by name from a directory of its own: {places}")
    file = own / "accelerator.json"
    file.write_text((directory / "accelerator.json").read_text())
    try:
        given = cdi.granted(["example.com/accelerator=1"], cdi.specifications([str(directory)]))
        sandbox = await world.create(devices=given.devices, mounts=given.mounts)
        await sandbox.start(world.python(LOOK + "import time\ntime.sleep(600)"))
        await wait_output(sandbox, "[]")
        assert (await output_of(sandbox)).splitlines()[:3] == [
            "['accelerator1']",
            repr(bytes(4)),
            "the driver's library",
        ]
        found = [
            engine.call("GET", f"/containers/{each['Id']}/json") for each in engine.call("GET", "/containers/json")
        ]
        asked = [each["HostConfig"]["DeviceRequests"] for each in found]
        (request,) = [each for requests in asked if requests for each in requests]
        assert (request["Driver"], request["DeviceIDs"]) == ("cdi", ["example.com/accelerator=1"])
    finally:
        await asyncio.to_thread(file.unlink)


def test_an_engine_is_asked_by_name_only_for_what_it_knows_alike(directory: Path, tmp_path: Path) -> None:
    given = cdi.granted(
        ["example.com/accelerator=0", "example.com/accelerator=1"], cdi.specifications([str(directory)])
    )
    names = ("example.com/accelerator=0", "example.com/accelerator=1")
    assert cdi.known_alike(given.devices, [str(directory)]) == names
    assert cdi.as_docker(given.devices, names) == {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": list(names)}]}
    assert cdi.known_alike(given.devices, []) == ()
    other = tmp_path / "other"
    other.mkdir()
    text = (directory / "accelerator.json").read_text()
    (other / "accelerator.json").write_text(text.replace("/dev/accelerator1", "/dev/accelerator9"))
    assert cdi.known_alike(given.devices, [str(other)]) == ()
    unnamed = (Device(source="/dev/null", target="/dev/accelerator0"),)
    assert cdi.known_alike(unnamed, [str(directory)]) == ()
    assert [each["PathInContainer"] for each in cdi.as_docker(unnamed, ())["Devices"]] == ["/dev/accelerator0"]


@pytest.mark.parametrize("name", ["gvisor", "docker-guarded"])
async def test_where_a_guest_kernel_passes_no_device_it_is_refused(name: str, directory: Path, tmp_path: Path) -> None:
    world = await open_world(name, tmp_path)
    given = cdi.granted(["example.com/accelerator=1"], cdi.specifications([str(directory)]))
    with pytest.raises(RequestRefusedError, match="passes no device of the host"):
        await world.create(devices=given.devices, mounts=given.mounts)
    await world.backend.release()


async def test_what_is_no_device_is_refused(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestRefusedError, match="no device node"):
        await world.create(devices=(Device(source=str(tmp_path / "file"), target="/dev/accelerator0"),))
    with pytest.raises(RequestRefusedError, match="below /dev"):
        await world.create(devices=(Device(source="/dev/null", target="/etc/passwd"),))


def test_an_unknown_device_is_named_with_those_there_are(directory: Path) -> None:
    known = cdi.specifications([str(directory)])
    with pytest.raises(cdi.CdiError, match=r"accelerator=7.*accelerator=0, example.com/accelerator=1"):
        cdi.granted(["example.com/accelerator=7"], known)
    with pytest.raises(cdi.CdiError, match="no CDI file"):
        cdi.granted(["../../dev/sda"], known)


def test_a_file_that_cannot_be_read_and_a_node_that_is_gone_are_named(directory: Path, tmp_path: Path) -> None:
    known = cdi.specifications([str(directory)])
    (tmp_path / "nodes" / "node0").unlink()
    with pytest.raises(cdi.CdiError, match="node0 is not there"):
        cdi.granted(["example.com/accelerator=0"], known)
    (directory / "broken.json").write_text("{")
    with pytest.raises(cdi.CdiError, match=r"broken\.json"):
        cdi.specifications([str(directory)])
