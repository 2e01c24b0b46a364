"""`tidegate deadletter` on a real bus: what it lists, what it changes, and how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from click.testing import Result
from nats.aio.client import Client
from nats.js.api import StreamConfig
from tidegate.cli.exits import CommandError
from tidegate_events import bus
from tidegate_events import deadletter as letters_of
from tidegate_events.deadletter import DeadLetter, Failure, encode_event, nats_letters
from tidegate_events.events import CancelRequested
from tidegate_gateway import deadletters
from typer.testing import CliRunner

from tests.support.nats import NatsServer


@pytest.fixture
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    server = NatsServer(tmp_path)
    await server.start()
    made = await bus.connect(bus.BusSettings(url=server.url))
    await made.jetstream().add_stream(StreamConfig.from_response(letters_of.stream_config(max_bytes=1024 * 1024)))
    monkeypatch.setenv("TIDEGATE_BUS_URL", server.url)
    # The runner's standard error is closed after each command; a process has its own to the end.
    monkeypatch.setattr(deadletters, "log_as", lambda _service, _instance: None)
    # Unconfigured, it would log into the answer.
    with structlog.testing.capture_logs():
        yield made
    await made.close()
    server.stop()


async def aside(client: Client, consumer: str, seq: int, error: str = "no such address") -> None:
    event = CancelRequested(id="e", at_ns=1, tenant="lab", job=f"j-{seq}")
    letter = DeadLetter(
        consumer=consumer,
        seq=seq,
        index=0,
        kind="CancelRequested",
        job=f"j-{seq}",
        error_type="ValueError",
        error_text=error,
        attempts=5,
        first_at_ns=10**18,
        last_at_ns=10**18 + 10**9,
        event=encode_event(event),
    )
    await nats_letters(client).add(letter)


async def run(*arguments: str, code: int = 0) -> Result:
    result = await asyncio.to_thread(CliRunner().invoke, deadletters.deadletter, list(arguments))
    if isinstance(result.exception, CommandError):  # what the root command turns into a message and an exit code
        assert result.exception.exit_code == code
    else:
        assert result.exit_code == code, (result.output, result.exception)
    return result


async def document(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await run(*arguments, "--json")).stdout)
    return found


async def test_what_was_set_aside_is_listed(client: Client) -> None:
    assert (await document("ls")) == {"letters": [], "total": 0}
    for consumer, seq in (("checkpoint", 3), ("projector", 4), ("checkpoint", 9)):
        await aside(client, consumer, seq)
    shown = (await run("ls")).stdout
    assert [line.split()[0] for line in shown.splitlines()] == [
        "LETTER",
        "checkpoint/3.0",
        "projector/4.0",
        "checkpoint/9.0",
    ]
    assert "ValueError: no such address" in shown
    found = await document("ls", "--consumer", "checkpoint", "--limit", "1")
    assert ([each["letter"] for each in found["letters"]], found["total"]) == (["checkpoint/9.0"], 2)


async def test_a_letter_is_shown_with_its_event(client: Client) -> None:
    await aside(client, "checkpoint", 3, error="odd [bold]text[/bold]")
    found = await document("show", "checkpoint/3.0")
    assert (found["error_type"], found["attempts"], found["event"]["kind"]) == ("ValueError", 5, "CancelRequested")
    text = (await run("show", "checkpoint/3.0")).stdout
    assert "odd [bold]text[/bold]" in text
    assert '"job": "j-3"' in text


async def test_a_dropped_one_stays_on_record_with_who_and_why(client: Client) -> None:
    await aside(client, "checkpoint", 3)
    with_reason = await document("drop", "checkpoint/3.0", "--why", "the job is gone")
    assert (with_reason["state"], with_reason["reason"], with_reason["event"]) == ("dropped", "the job is gone", None)
    assert with_reason["by"]
    assert (await document("ls"))["letters"] == []
    assert [each["state"] for each in (await document("ls", "--all"))["letters"]] == ["dropped"]
    assert "the job is gone" in (await run("show", "checkpoint/3.0")).stdout
    for command in (("drop", "checkpoint/3.0", "--why", "x"), ("retry", "checkpoint/3.0")):
        assert "is dropped already" in str((await run(*command, code=4)).exception)


async def test_a_retry_waits_for_what_comes_of_it(client: Client) -> None:
    await aside(client, "checkpoint", 3)
    await aside(client, "checkpoint", 4)

    async def consume() -> None:
        async for stored in nats_letters(client).follow("checkpoint", 0):
            if stored.letter.state == "retry" and stored.letter.seq == 3:
                await nats_letters(client).settle("checkpoint", "3.0", 1)
            elif stored.letter.state == "retry":
                await nats_letters(client).failed_again("checkpoint", "4.0", Failure("OSError", "still", 5, 1, 2))

    async with asyncio.TaskGroup() as tasks:
        consuming = tasks.create_task(consume())
        assert (await document("retry", "checkpoint/3.0", "--why", "fixed"))["state"] == "handled"
        failed = await run("retry", "checkpoint/4.0", code=1)
        assert "failed again, 10 tries in all: OSError: still" in str(failed.exception)
        consuming.cancel()


async def test_a_retry_for_a_consumer_that_is_down_stays(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadletters, "WAIT_SECONDS_MAX", 0.3)
    await aside(client, "checkpoint", 3)
    assert "does it when it is back" in (await run("retry", "checkpoint/3.0")).stderr
    assert [each["state"] for each in (await document("ls"))["letters"]] == ["retry"]
    assert (await document("retry", "checkpoint/3.0", "--no-wait"))["state"] == "retry"


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint/3", "check.point/3.0", "checkpoint/x.0", "/3.0"])
async def test_what_names_no_letter_is_refused(client: Client, name: str) -> None:
    assert "names no dead letter" in str((await run("show", name, code=2)).exception)


async def test_what_is_not_there_is_said(client: Client) -> None:
    for command in (("show", "a/1.0"), ("retry", "a/1.0"), ("drop", "a/1.0", "--why", "x")):
        assert "no dead letter 1.0" in str((await run(*command, code=4)).exception)
    assert "--why is empty" in str((await run("drop", "a/1.0", "--why", " ", code=2)).exception)


async def test_without_a_stack_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadletters, "log_as", lambda _service, _instance: None)
    result = await run("ls", "--home", str(tmp_path), code=3)
    assert f"no local stack at {tmp_path}" in str(result.exception)
