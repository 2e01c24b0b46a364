"""A keeper that dies before or after any change it makes on the bus: the next one ends at the same result."""

from __future__ import annotations

from pathlib import Path

import pytest
from nats.aio.client import Client
from tidegate_events import bus
from tidegate_events.journal.archive import ArchiveWriter
from tidegate_events.journal.base import Raw
from tidegate_events.journal.generations import open_first
from tidegate_events.journal.nats import NatsJournal
from tidegate_scheduler.keeper.shell import Keeper

from tests.scheduler.keeper.bench import (
    GENERATION_BYTES,
    PADDING_BYTES,
    History,
    Killed,
    MortalClient,
    Result,
    keeper,
    result,
    settings,
)
from tests.support.nats import NatsServer

TO_ROLL = GENERATION_BYTES * 75 // 100 // PADDING_BYTES


async def connect(server: NatsServer, monkeypatch: pytest.MonkeyPatch, kind: type[Client]) -> Client:
    with monkeypatch.context() as patched:
        patched.setattr(bus, "Client", kind)
        return await bus.connect(bus.BusSettings(url=server.url))


def a_server(directory: Path) -> NatsServer:
    directory.mkdir()
    return NatsServer(directory)


async def one_generation(made: Keeper) -> None:
    await made.begin()
    for _ in range(2):
        await made.keep()
        await made.seal()
        await made.archive()


async def whole_life(
    directory: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int | None, *, after: bool
) -> tuple[Result, int]:
    """Let a keeper die once, and another one do the rest; return what is left, and how many changes the first made."""
    server = a_server(directory)
    await server.start()
    writer = await connect(server, monkeypatch, Client)
    try:
        await open_first(writer, max_bytes=GENERATION_BYTES)
        history = History(NatsJournal(writer))
        await history.begin()
        await history.pad(TO_ROLL)
        chosen = settings(directory / "archive")
        mortal = await connect(server, monkeypatch, MortalClient)
        assert isinstance(mortal, MortalClient)
        mortal.dies_at, mortal.dies_after = dies_at, after
        try:
            await one_generation(keeper(mortal, chosen))
        except BaseException as error:
            if not _is_death(error):
                raise
        await mortal.close()
        await one_generation(keeper(writer, chosen))
        left = await result(writer, chosen.archive_dir)
    finally:
        await writer.close()
        server.stop()
    return left, mortal.changes


def _is_death(error: BaseException) -> bool:
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return isinstance(error, Killed) or bool(inner and all(_is_death(each) for each in inner))


async def test_killed_between_any_two_changes_it_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Padding is random, so digests differ between histories; that they are right is part of `result`.
    whole, changes = await whole_life(tmp_path / "whole", monkeypatch, None, after=False)
    assert changes > 10
    assert _shape(whole) == (
        ((2, TO_ROLL + 4, True),),
        ((1, TO_ROLL + 3, False),),
        ((2, TO_ROLL + 4, TO_ROLL + 3),),
    )
    for number in range(1, changes + 1):
        for after in (False, True):
            left, reached = await whole_life(tmp_path / f"{number}-{after}", monkeypatch, number, after=after)
            assert reached == number, "it was killed there"
            assert _shape(left) == _shape(whole), f"killed at change {number}, after={after}"
            assert [digest for _, _, digest, *_ in left.archived] == [digest for _, _, _, digest, *_ in left.opened]


def _shape(left: Result) -> tuple[object, ...]:
    archived = tuple((number, frames, has_snapshot) for number, frames, _, _, has_snapshot in left.archived)
    return left.streams, archived, tuple(opened[:3] for opened in left.opened)


@pytest.mark.parametrize("dies", ["while it writes the file", "when the file has its name"])
async def test_killed_at_the_archive_it_writes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    finish, add = ArchiveWriter._finish, ArchiveWriter.add

    def finish_and_die(writer: ArchiveWriter) -> None:
        finish(writer)
        raise Killed(dies)

    def die(writer: ArchiveWriter, raw: Raw) -> None:
        add(writer, raw)
        if raw.seq == TO_ROLL:
            raise Killed(dies)

    directory = tmp_path / "bus"
    server = a_server(directory)
    await server.start()
    client = await connect(server, monkeypatch, Client)
    try:
        await open_first(client, max_bytes=GENERATION_BYTES)
        history = History(NatsJournal(client))
        await history.begin()
        await history.pad(TO_ROLL)
        chosen = settings(directory / "archive")
        with monkeypatch.context() as dying:
            if dies.startswith("while"):
                dying.setattr(ArchiveWriter, "add", die)
            else:
                dying.setattr(ArchiveWriter, "_finish", finish_and_die)
            with pytest.raises(Killed):
                await one_generation(keeper(client, chosen))
        await one_generation(keeper(client, chosen))
        left = await result(client, chosen.archive_dir)
    finally:
        await client.close()
        server.stop()
    assert [frames for _, frames, *_ in left.archived] == [TO_ROLL + 3]
    assert [number for number, *_ in left.streams] == [2]
