"""What a specification becomes before it is sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tidegate.client import PackingError, SpecError
from tidegate.client.submission import SPEC_BYTES_MAX, prepare


def _spec_file(root: Path, **fields: object) -> Path:
    root.mkdir(exist_ok=True)
    path = root / "job.json"
    path.write_text(json.dumps({"name": "x", **fields}))
    return path


def test_a_relative_directory_counts_from_the_file_not_from_where_we_stand(tmp_path: Path) -> None:
    spec = _spec_file(tmp_path / "project", workdir="code")
    (tmp_path / "project" / "code").mkdir()
    prepared = prepare(spec)
    assert prepared.archive is not None
    assert prepared.spec["workdir"] == prepared.archive.digest
    prepared.close()


@pytest.mark.parametrize("workdir", ["..", "../other", "code/../../other", "link"])
def test_a_file_may_not_reach_out_of_its_own_directory(tmp_path: Path, workdir: str) -> None:
    (tmp_path / "other").mkdir()
    spec = _spec_file(tmp_path / "project", workdir=workdir)
    (tmp_path / "project" / "code").mkdir()
    (tmp_path / "project" / "link").symlink_to(tmp_path / "other")
    with pytest.raises(PackingError, match=r"leaves the directory of the specification.*--workdir"):
        prepare(spec)
    outright = prepare(spec, workdir=tmp_path / "other")
    assert outright.archive is not None
    outright.close()


def test_a_digest_names_what_was_sent_before(tmp_path: Path) -> None:
    digest = "0123456789abcdef" * 4
    prepared = prepare({"workdir": digest})
    assert prepared.archive is None
    assert prepared.spec["workdir"] == digest


@pytest.mark.parametrize("workdir", [5, None, ["a"], ""])
def test_what_cannot_be_a_directory_is_left_to_the_gateway_to_refuse(workdir: object) -> None:
    prepared = prepare({"workdir": workdir})
    assert prepared.archive is None
    assert prepared.spec["workdir"] == workdir


def test_overrides_replace_fields_and_the_caller_keeps_its_mapping(tmp_path: Path) -> None:
    spec = {"tenant": "a", "workdir": str(tmp_path)}
    prepared = prepare(spec, overrides={"tenant": "b", "priority": 7})
    assert (prepared.spec["tenant"], prepared.spec["priority"]) == ("b", 7)
    assert spec == {"tenant": "a", "workdir": str(tmp_path)}
    prepared.close()


def test_keys_are_taken_from_the_argument_the_field_or_drawn() -> None:
    assert prepare({"idempotency_key": "field"}, idempotency_key="argument").idempotency_key == "argument"
    kept = prepare({"idempotency_key": "field"})
    assert kept.idempotency_key == "field"
    assert "idempotency_key" not in kept.spec
    assert prepare({}).idempotency_key != prepare({}).idempotency_key


def test_who_and_from_where_are_recorded_unless_the_caller_says_it() -> None:
    prepared = prepare({}, argv=["train.py", "--lr", "1"])
    assert prepared.spec["source"]["argv"] == ["train.py", "--lr", "1"]
    assert prepared.spec["submitter"]
    said = prepare({"source": {"argv": []}, "submitter": "ada"})
    assert (said.spec["source"], said.spec["submitter"]) == ({"argv": []}, "ada")


def test_a_declared_secret_does_not_leave_by_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB", "CANARY-9041")
    prepared = prepare({"secrets": {"WANDB": "wandb-key"}}, argv=["train.py", "login:CANARY-9041"])
    assert "CANARY" not in json.dumps(prepared.spec)
    assert prepared.spec["secrets"] == {"WANDB": "wandb-key"}


@pytest.mark.parametrize(
    ("content", "why"),
    [("{", "is not JSON"), ("[]", "JSON list"), ('"x"', "JSON str"), ("\xff", "is not JSON"), (None, "cannot be read")],
)
def test_a_file_that_is_no_specification_says_why(tmp_path: Path, content: str | None, why: str) -> None:
    path = tmp_path / "job.json"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    with pytest.raises(SpecError, match=why):
        prepare(path)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_bytes(b" " * (SPEC_BYTES_MAX + 1))
    with pytest.raises(SpecError, match="larger than 1,048,576 bytes"):
        prepare(path)
