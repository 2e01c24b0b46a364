"""What stands in the way is said with its remedy, by exit code 3, before anything is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tidegate_local import commands, plan, preflight
from tidegate_local.plan import StackOptions
from typer import Typer
from typer.testing import CliRunner

SAYS_NO = """#!/bin/sh
echo '[{"level": "trusted", "backend": "bwrap", "available": false, "limits": "none", "remedy": "run it as root"},
       {"level": "unisolated", "backend": "plain", "available": true, "limits": "none"}]'
"""


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return how to replace the node agent's command by a script (all other commands do nothing)."""
    directory = tmp_path / "bin"
    directory.mkdir()

    def place(script: str) -> None:
        for name in preflight.COMMANDS:
            (directory / name).write_text(script if name == "tidegate-executor" else "#!/bin/sh\n")
            (directory / name).chmod(0o755)

    monkeypatch.setattr(plan, "console_script", lambda name: str(directory / name))
    return place


async def check(tmp_path: Path, *, unisolated: bool = False) -> list[preflight.Problem]:
    return await preflight.check(StackOptions(home=tmp_path / "home", unisolated=unisolated))


async def test_no_isolation_comes_with_the_agents_remedy(tmp_path: Path, pretend: Callable[[str], None]) -> None:
    pretend(SAYS_NO)
    (problem,) = await check(tmp_path)
    assert "trusted" in problem.what
    assert problem.remedy == "run it as root"
    assert await check(tmp_path, unisolated=True) == []


async def test_a_probe_that_breaks_is_a_problem(tmp_path: Path, pretend: Callable[[str], None]) -> None:
    pretend("#!/bin/sh\necho it broke >&2\nexit 9\n")
    (problem,) = await check(tmp_path)
    assert "exit 9" in problem.what
    assert "it broke" in problem.what


async def test_a_probe_that_hangs_is_a_problem(
    tmp_path: Path, pretend: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "PROBE_SECONDS_MAX", 0.2)
    pretend("#!/bin/sh\nexec sleep 60\n")
    (problem,) = await check(tmp_path)
    assert "did not end" in problem.what


async def test_missing_commands_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "console_script", lambda name: str(tmp_path / name))
    (problem,) = await check(tmp_path)
    assert "tidegate-scheduler" in problem.what


async def test_a_full_disk_is_named(
    tmp_path: Path, pretend: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "DISK_BYTES_MIN", 2**62)
    pretend(SAYS_NO)
    (problem,) = await check(tmp_path)
    assert "MiB free" in problem.what


def test_up_exits_3_and_starts_nothing(tmp_path: Path, pretend: Callable[[str], None]) -> None:
    pretend(SAYS_NO)
    app = Typer()
    app.command()(commands.up)
    result = CliRunner().invoke(app, ["--home", str(tmp_path / "home"), "--json"])
    assert result.exit_code == 3
    assert json.loads(result.stdout.splitlines()[0])["problems"][0]["remedy"] == "run it as root"
    assert not (tmp_path / "home" / "stack.json").exists()
