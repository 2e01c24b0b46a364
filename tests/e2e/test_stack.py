"""`tidegate up` and `tidegate down`: one stack for a home, nothing left of it however it ends, nothing outside it."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from pathlib import Path

import pytest
from tidegate_local import leftovers
from tidegate_local.home import Home
from tidegate_local.plan import STOP_ORDER
from tidegate_local.postgres import password_file

from tests.e2e.conftest import Place
from tests.e2e.running import UPDATES, RunningStack, command

pytestmark = [pytest.mark.e2e, pytest.mark.isolation, pytest.mark.timeout(600)]

WAIT_SECONDS_MAX = 20.0
MANY_UPDATES = 5 * UPDATES
"""So many that the stack is down before they are done, however slow it is to go."""


def test_a_second_stack_in_the_same_home_is_refused(stack: RunningStack) -> None:
    again = command(stack.home, "tidegate", "up", "--home", str(stack.home.root), check=False)
    assert again.returncode == 1
    assert f"(pid {stack.record.pid}) already uses" in " ".join(again.stderr.split())
    assert stack.client.status()["ready"]


def test_passwords_stay_with_the_owner(stack: RunningStack) -> None:
    for file in (stack.home.stack_file, stack.home.run_dir / "nats.conf", password_file(stack.home)):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    passwords = {stack.record.bus_password, stack.record.database_url.split(":")[2].split("@")[0]}
    passwords.add(password_file(stack.home).read_text())
    config = json.loads((stack.home.run_dir / "nats.conf").read_text())
    passwords |= {user["password"] for user in config["authorization"]["users"]}
    for pid in (stack.record.pid, *(service.pid for service in stack.record.services.values())):
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
        assert not any(password in argv for password in passwords)
    for log in stack.home.logs_dir.glob("*.log"):
        assert not any(password in log.read_text() for password in passwords), log


def test_a_secret_never_leaves_its_file(stack: RunningStack) -> None:
    """A canary: named by the job, seen by its process, and found nowhere else: no event, no log, no argv, no table."""
    canary = "canary-7f3a9d41c2e8"
    directory = stack.home.secrets_dir / "demo"
    directory.mkdir(mode=0o700)
    (directory / "token").write_text(canary)
    (directory / "token").chmod(0o600)
    script = (
        "import os; t = os.environ['TOKEN']; print('length', len(t)); print('the token is', t); assert len(t) == 19"
    )
    job = stack.client.submit(
        {
            "name": "canary",
            "tenant": "demo",
            "image": "host",
            "secrets": {"TOKEN": "token"},
            "components": [
                {
                    "name": "main",
                    "command": ["python", "-c", script],
                    "resources": {"default": {"minimum": {"cpu_millis": 100, "memory_mib": 128}}},
                }
            ],
        }
    ).job_id
    stack.completed(job)
    printed = "".join(chunk.text for chunk in stack.client.logs(job))
    assert "length 19" in printed
    assert canary not in printed
    assert canary not in json.dumps(stack.client.job(job))
    found = [file for file in _files(stack.home) if canary.encode() in _content(file)]
    assert found == [directory / "token"]
    assert not any(canary in argument for argument in _arguments())


def test_what_runs_is_seen_afterwards_nothing_is_and_it_comes_back_to_its_history_and_its_jobs(place: Place) -> None:
    """The list of leftovers must be able to find things, or an empty one would prove nothing."""
    stack = place.running()
    job = stack.submit("job.json", MANY_UPDATES, "--checkpoint-every", "1")
    stack.until(lambda: stack.events("CheckpointSaved", job=job), "a checkpoint")
    seen = leftovers.find(stack.home, stack.record.ports)
    kinds = [leftover.kind for leftover in seen]
    commands = " ".join(leftover.what for leftover in seen)
    assert kinds.count("process") >= len(STOP_ORDER) + 1 + 5, seen  # services, the supervisor, the job's processes
    assert kinds.count("port") == len(stack.record.ports)
    assert "cgroup" in kinds
    assert "learner.py" in commands
    assert "simulator.py" in commands

    assert stack.end() == []
    assert leftovers.find(stack.home, stack.record.ports) == []
    again = json.loads(command(stack.home, "tidegate", "down", "--json").stdout)
    assert again == {"was_running": False, "leftovers": []}

    stack = place.again()
    (ended,) = stack.completed(job)
    assert ended["result"]["updates"] == MANY_UPDATES
    assert len(ended["attempts"]) == 2
    stack.assert_nothing_ran_twice(job)
    stack.verify()


def test_after_the_supervisor_was_killed_down_still_finds_everything(stack: RunningStack) -> None:
    job = stack.submit("job.json", 50)
    stack.until(lambda: stack.client.job(job)["state"] == "running", "the job running")
    services = {service.pid for service in stack.record.services.values()}
    os.kill(stack.record.pid, signal.SIGKILL)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while any(_lives(pid) for pid in services):
        assert time.monotonic() < deadline, "a service outlived its supervisor"
        time.sleep(0.05)
    assert any(leftover.kind == "process" for leftover in leftovers.find(stack.home, {})), "the job should live on"
    assert stack.end() == []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return False


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""  # a sandbox that has ended is being removed


def _files(home: Home) -> list[Path]:
    # `os.walk` passes over what vanishes under it.
    found = [Path(directory, name) for directory, _, names in os.walk(home.root) for name in names]
    return [file for file in found if file.is_file() and not file.is_symlink()]


def _arguments() -> list[str]:
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and int(directory.name) != os.getpid():
            try:
                found.append((directory / "cmdline").read_bytes().decode(errors="replace"))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found
