"""Which control groups the sandboxes of a stack have."""

from __future__ import annotations

from pathlib import Path

from tidegate_local.sandbox_groups import group_names


def test_a_group_that_was_made_before_its_job_was_known_is_found_by_the_job(tmp_path: Path) -> None:
    for name, record in {
        "j-1.1.0": '{"id": "j-1.1.0", "group": "ready-0a"}',
        "j-1.2.0": '{"id": "j-1.2.0", "group": ""}',
        "j-11.1.0": '{"id": "j-11.1.0", "group": "ready-0b"}',
        ".ready/ready-0c": '{"id": "ready-0c", "group": "ready-0c"}',
    }.items():
        directory = tmp_path / "nodes" / "n1" / "sandboxes" / name
        directory.mkdir(parents=True)
        (directory / "sandbox.json").write_text(record)
    (tmp_path / "nodes" / "n1" / "sandboxes" / "j-1.3.0").mkdir()
    assert group_names(tmp_path, "j-1.*") == {"ready-0a", "j-1.2.0"}
    assert group_names(tmp_path, ".ready/*") == {"ready-0c"}
