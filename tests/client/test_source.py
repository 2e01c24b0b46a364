"""Where code came from: commit, what was not committed, the command line; and never a secret."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tidegate.client import source
from tidegate.client.source import redacted, source_record, submitter

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def _git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    _git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.py").write_text("x = 1\n")
    (tmp_path / ".gitignore").write_text("ignored\n")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


@needs_git
def test_a_clean_tree_is_its_commit(repository: Path) -> None:
    (repository / "ignored").write_text("whatever")
    record = source_record(repository, ["train"], [])
    assert record == {"argv": ["train"], "git_commit": _git(repository, "rev-parse", "HEAD")}


@needs_git
def test_each_kind_of_change_has_a_digest_of_its_own(repository: Path) -> None:
    digests = []
    for change in ("print(2)\n", "print(3)\n"):
        (repository / "train.py").write_text(change)
        digests.append(source_record(repository, [], [])["dirty_diff_digest"])
    (repository / "new.py").write_text("new")
    digests.append(source_record(repository, [], [])["dirty_diff_digest"])
    (repository / "new.py").write_text("newer")
    digests.append(source_record(repository, [], [])["dirty_diff_digest"])
    assert len(set(digests)) == 4
    assert all(digest.startswith("sha256:") for digest in digests)
    assert source_record(repository, [], [])["dirty_diff_digest"] == digests[-1]


@needs_git
def test_a_change_beside_the_working_directory_counts(repository: Path) -> None:
    (repository / "train.py").write_text("print(2)\n")
    assert "dirty_diff_digest" in source_record(repository / "sub", [], [])


@needs_git
def test_a_large_untracked_file_goes_by_its_size(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "UNTRACKED_BYTES_MAX", 10)
    (repository / "data.bin").write_bytes(b"a" * 100)
    before = source_record(repository, [], [])["dirty_diff_digest"]
    (repository / "data.bin").write_bytes(b"b" * 100)
    assert source_record(repository, [], [])["dirty_diff_digest"] == before
    (repository / "data.bin").write_bytes(b"b" * 101)
    assert source_record(repository, [], [])["dirty_diff_digest"] != before


def test_without_a_repository_only_the_command_line_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert source_record(tmp_path, ["a", "b"], []) == {"argv": ["a", "b"]}


def test_without_git_only_the_command_line_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert source_record(tmp_path, ["a"], []) == {"argv": ["a"]}


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        (["run", "--api-key", "CANARY", "x"], ["run", "--api-key", "[redacted]", "x"]),
        (["run", "--api-key=CANARY"], ["run", "--api-key=[redacted]"]),
        (["WANDB_TOKEN=CANARY", "run"], ["WANDB_TOKEN=[redacted]", "run"]),
        (["run", "--password", "CANARY"], ["run", "--password", "[redacted]"]),
        (["run", "--use-token", "--seed", "1"], ["run", "--use-token", "--seed", "1"]),
        (["run", "--url=https://u:CANARY-2@host"], ["run", "[redacted]"]),
    ],
)
def test_secrets_do_not_leave_by_the_command_line(argv: list[str], kept: list[str]) -> None:
    assert redacted(argv, ["MY_SECRET"], {"MY_SECRET": "CANARY-2"}) == kept


def test_the_command_line_is_bounded_and_always_text() -> None:
    assert redacted(["x" * 3000, "y" * 3000, "z"], [], {}) == ["x" * 3000, "[2 more]"]
    assert redacted(["caf\udce9"], [], {}) == ["caf?"]


@pytest.mark.parametrize(("name", "expected"), [("ada", "ada"), ("DOM\\ada l", "DOM_ada_l")])
def test_the_submitter_has_a_form_that_the_gateway_takes(
    monkeypatch: pytest.MonkeyPatch, name: str, expected: str
) -> None:
    monkeypatch.setattr(source.getpass, "getuser", lambda: name)
    assert submitter() == expected


def test_a_user_without_a_name_goes_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(source.getpass, "getuser", nameless)
    assert submitter().startswith("uid-")
