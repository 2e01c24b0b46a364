"""The data directory: one stack at a time, nothing in it readable by others."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tidegate.client.endpoint import gateway_url
from tidegate_local.home import Home, HomeError, HomeInUseError, StackRecord


def record(home: Home) -> StackRecord:
    return StackRecord(
        state="ready",
        pid=4711,
        home=str(home.root),
        node="local",
        level="trusted",
        gateway_url="http://127.0.0.1:7433",
        bus_url="nats://127.0.0.1:4222",
        bus_user="operator",
        bus_password="hidden",
        ports={"gateway": 7433},
    )


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return a made home."""
    place = Home(tmp_path / "home")
    place.create()
    return place


@pytest.mark.parametrize("below", ["", "home"])
def test_a_file_in_the_way_of_a_home_is_told(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HomeError, match=r"file.* cannot be a stack's data directory: .*Give another --home"):
        Home(tmp_path / "file" / below).create()
    assert Home(tmp_path / "file" / below).read_record() is None


def test_two_stacks_cannot_share_a_home(home: Home) -> None:
    home.write_record(record(home))
    held = home.hold()
    with pytest.raises(HomeInUseError, match=r"pid 4711.*already uses.*tidegate down"):
        home.hold()
    assert home.is_held()
    os.close(held)
    assert not home.is_held()
    os.close(home.hold())


def test_secrets_are_for_the_owner_alone(home: Home) -> None:
    home.write_record(record(home))
    assert stat.S_IMODE(home.stack_file.stat().st_mode) == 0o600
    for private in (home.run_dir, home.logs_dir, home.secrets_dir, home.nats_dir):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert home.read_record() == record(home)


def test_the_client_finds_the_gateway_by_the_record(home: Home) -> None:
    home.write_record(record(home))
    assert gateway_url(environ={"TIDEGATE_HOME": str(home.root)}) == "http://127.0.0.1:7433"


def test_a_broken_record_is_no_record(home: Home) -> None:
    assert home.read_record() is None
    home.stack_file.write_text('{"state": "re')
    assert home.read_record() is None
