"""The history commands on a file alone: what they print, for people and for programs, and their exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tidegate.cli.main import run
from tidegate_events.events import DecisionPass
from tidegate_events.frame import Frame

from tests.scheduler.history.files import a_history, write

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `tidegate history` where there is no stack and no bus."""
    monkeypatch.delenv("TIDEGATE_BUS_URL", raising=False)
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path / "no-stack"))

    def ran(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["history", *arguments])
        return code, *capsys.readouterr()

    return ran


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(write(tmp_path / "history.tgj", a_history().frames))


def document(ran: tuple[int, str, str]) -> Any:
    assert ran[0] == 0, ran
    return json.loads(ran[1])


def test_ls(history: Run, file: str) -> None:
    code, out, _ = history("ls", "--file", file)
    assert code == 0
    assert "1.0" in out
    assert "[main 1.5 CPU 512M]" in out  # what looks like markup is shown
    found = document(history("ls", "--file", file, "--kind", "JobPlaced", "--json"))["events"]
    assert [each["job"] for each in found] == ["low", "high", "low", "last"]
    assert history("ls", "--file", file, "--since", "-1s", "--kind", "JobSubmitted", "--json")[0] == 0
    code, _, err = history("ls", "--file", file, "--kind", "JobVanished")
    assert code == 2
    assert "JobPlaced" in err


def test_show(history: Run, file: str) -> None:
    preempt = document(history("ls", "--file", file, "--kind", "PreemptRequested", "--json"))["events"][0]
    place = f"{preempt['seq']}.{preempt['index']}"
    code, out, _ = history("show", place, "--file", file)
    assert code == 0
    assert "because of" in out
    assert "LeastCost" in out
    shown = document(history("show", str(preempt["seq"]), "--file", file, "--json"))["events"]
    assert [each["event"]["kind"] for each in shown][-1] == "PreemptRequested"
    assert shown[-1]["fields"]["grace_seconds"] == 10
    assert history("show", "9999", "--file", file)[0] == 4
    assert history("show", "1.7", "--file", file)[0] == 4
    assert history("show", "first", "--file", file)[0] == 2


def test_state(history: Run, file: str) -> None:
    code, out, _ = history("state", "--at", "9", "--file", file)
    assert code == 0
    for part in ("sequence 9", "n1", "guarded", "low", "main 1.5 CPU 512M"):
        assert part in out
    then = document(history("state", "--at", "-1s", "--file", file, "--json"))
    assert then["nodes"][0]["node"] == "n1"
    assert history("state", "--at", "noon", "--file", file)[0] == 2
    assert history("state", "--at", "9999", "--file", file)[0] == 4


def test_why(history: Run, file: str) -> None:
    code, out, _ = history("why", "high", "--at", "10", "--file", file)
    assert code == 0
    assert "it waits, number 1 of 1 in line: Reserved" in out
    assert "needs 1.5 CPU, 0.5 free" in out
    found = document(history("why", "low", "--file", file, "--json"))
    assert found["state"] == "completed"
    assert found["leaving"]["for_job"] == "high"
    code, _, err = history("why", "nobody", "--file", file)
    assert code == 4
    assert "ls --kind JobSubmitted" in err


def test_verify(history: Run, file: str, tmp_path: Path) -> None:
    report = document(history("verify", "--file", file, "--json"))
    assert report["ok"] is True
    assert report["decisions"] == report["decisions_verified"] > 8
    assert report["compared"] == "bit for bit"
    code, out, _ = history("verify", "--file", file, "--from", "5", "--to", "9")
    assert (code, "bit for bit" in out) == (0, True)
    assert history("verify", "--file", file, "--from", "9999")[0] == 4


def test_verify_shows_the_difference_and_ends_with_1(history: Run, tmp_path: Path) -> None:
    frames = a_history().frames
    index = next(i for i, r in enumerate(frames) if isinstance(r.frame.events[0], DecisionPass))
    head, placed, *rest = frames[index].frame.events
    forged = msgspec.structs.replace(placed, attempt=7)
    frames[index] = msgspec.structs.replace(
        frames[index], frame=Frame(frames[index].frame.writer, (head, forged, *rest))
    )
    path = str(write(tmp_path / "forged.tgj", frames))
    code, out, _ = history("verify", "--file", path)
    assert code == 1
    for part in (f"at sequence {index + 1}", '"attempt":7', '"attempt":1', "the same state", "what happened to low"):
        assert part in out
    code, out, _ = history("verify", "--file", path, "--json")
    assert code == 1
    assert json.loads(out)["difference"]["job"] == "low"


def test_a_damaged_file_is_named_with_its_place(history: Run, file: str) -> None:
    data = bytearray(Path(file).read_bytes())
    data[len(data) // 2] ^= 1
    Path(file).write_bytes(data)
    code, _, err = history("verify", "--file", file)
    assert code == 1
    assert "byte" in err
    assert "sequence" in err


def test_without_a_stack_or_a_file_there_is_a_remedy(history: Run, tmp_path: Path) -> None:
    for command in (["verify"], ["ls"], ["state"], ["why", "j"], ["show", "1"], ["export", str(tmp_path / "x")]):
        code, out, err = history(*command)
        assert code == 3
        assert out == ""
        assert "--file" in err
    code, _, err = history("verify", "--file", str(tmp_path / "none.tgj"))
    assert code == 3
    assert "cannot be read" in err
    assert json.loads(history("verify", "--json")[1])["exit_code"] == 3


def test_export_bundle_and_import(history: Run, file: str, tmp_path: Path) -> None:
    out = str(tmp_path / "export.tgj")
    assert document(history("export", out, "--file", file, "--json"))["frames"] > 10
    assert history("export", out, "--file", file)[0] == 5
    bundle = str(tmp_path / "bundle.tgj")
    made = document(history("bundle", bundle, "--from", "9", "--redact", "--file", file, "--json"))
    assert made["notes"]["redacted"] == "yes"
    assert made["verification"]["ok"] is True
    code, shown, _ = history("verify", "--file", bundle)
    assert (code, "free text, which were removed" in shown) == (0, True)
    home = str(tmp_path / "home")
    code, _, err = history("import", out, "--home", home)
    assert code == 0
    assert "tidegate up" in err
    assert history("import", out, "--home", home)[0] == 5
    assert history("import", bundle, "--home", str(tmp_path / "other"))[0] == 5


@pytest.mark.parametrize("command", ["ls", "show", "state", "why", "verify", "export", "import", "bundle"])
def test_help_teaches_by_example(history: Run, command: str) -> None:
    code, out, _ = history(command, "--help")
    assert code == 0
    assert f"tidegate history {command}" in out


def test_verify_says_that_nothing_was_proved_and_refuses_what_ends_before_it_begins(history: Run, file: str) -> None:
    for backwards in (("--from", "9", "--to", "3"), ("--to", "0"), ("--to", "2000-01-01T00:00:00Z")):
        code, out, err = history("verify", "--file", file, *backwards)
        assert (code, out) == (4, ""), backwards
        assert "there is no history" in err
    code, out, _ = history("verify", "--file", file, "--from", "2100-01-01T00:00:00Z")
    assert code == 0
    assert "verified" not in out
    assert "no pass was decided" in out
    code, out, _ = history("verify", "--file", file)
    assert code == 0
    assert out.startswith("history verified:")


@pytest.mark.parametrize("command", ["export", "bundle"])
def test_a_file_that_cannot_be_written_is_refused(history: Run, file: str, tmp_path: Path, command: str) -> None:
    code, out, err = history(command, str(tmp_path / "missing" / "out.tgj"), "--file", file)
    assert (code, out) == (5, "")
    assert "No such file or directory" in err


def test_a_moment_before_all_that_is_known_is_not_in_history(history: Run, file: str, tmp_path: Path) -> None:
    part = str(tmp_path / "part.tgj")
    assert history("bundle", part, "--file", file, "--from", "2")[0] == 0
    for where in (file, part):
        code, out, err = history("state", "--at", "2000-01-01T00:00:00Z", "--file", where)
        assert (code, out) == (4, ""), where
        assert "before this history" in err
