"""The command as a process: how it starts, and how it ends when its reader goes away or somebody presses Ctrl-C."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import story
from tests.cli.live import LiveGateway

COMMAND = [sys.executable, "-c", "from tidegate.cli.main import main; main()"]
SECONDS_MAX = 30.0
Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def spawn(live: LiveGateway) -> Spawn:
    def spawned(*arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            env={**os.environ, "TIDEGATE_URL": live.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return spawned


def test_help_needs_neither_the_client_nor_asyncio() -> None:
    code = (
        "import sys; sys.argv = ['tidegate', '--help']\n"
        "from tidegate.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "assert not {'httpx', 'asyncio', 'tidegate.client', 'tidegate_scheduler', 'nats'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_ends_the_command_quietly(live: LiveGateway, spawn: Spawn) -> None:
    story.preempting(live)
    live.logs["j-high", 1, "learner"] = b"x" * 4_000_000
    process = spawn("logs", story.HIGH)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(SECONDS_MAX) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize("arguments", [("jobs",), ("jobs", "--json")])
def test_a_reader_that_never_was_ends_the_command_quietly(
    live: LiveGateway, spawn: Spawn, arguments: tuple[str, ...]
) -> None:
    story.preempting(live)
    process = spawn(*arguments)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(SECONDS_MAX) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_ctrl_c_while_following_ends_with_130(live: LiveGateway, spawn: Spawn) -> None:
    story.preempting(live)
    live.logs["j-high", 1, "learner"] = b"step 1\n"
    process = spawn("logs", "-f", story.HIGH)
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], SECONDS_MAX)[0]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 130
    assert out == b"step 1\n"
    assert b"Traceback" not in err


def test_ctrl_c_while_waiting_leaves_the_job_alone(live: LiveGateway, spawn: Spawn, tmp_path: Path) -> None:
    need = {"default": {"minimum": {"cpu_millis": 500, "memory_mib": 64}}}
    (tmp_path / "job.json").write_text(json.dumps({"command": ["true"], "resources": need}))
    process = spawn("submit", str(tmp_path / "job.json"), "--wait")
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], SECONDS_MAX)[0]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 130
    assert b"nothing was undone" in err
    live.publish()
    assert live.cluster.stage(out.split()[0].decode()) == "pending"
