"""The contract table is complete, is the published page, and its writers are services that exist."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from tidegate_events import events as e
from tidegate_events.contract import CONTRACT, WRITERS, may_write, render
from tidegate_events.frame import KINDS, Service

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "events.md"


def test_every_kind_has_one_row() -> None:
    assert sorted(row.kind.__name__ for row in CONTRACT) == sorted(KINDS)


def test_every_event_class_is_a_kind() -> None:
    bases = {e.Event, e.JobEvent, e.AttemptEvent, e.Decision}
    defined = {value for value in vars(e).values() if isinstance(value, type) and issubclass(value, e.Event)}
    assert defined - bases == set(KINDS.values())


def test_the_page_is_the_table() -> None:
    assert PAGE.read_text() == render(), "run: python -m tidegate_events.contract > docs/reference/events.md"


def test_writers_are_services_that_can_sign_a_frame() -> None:
    assert set().union(*WRITERS.values()) == set(get_args(Service))


def test_decisions_are_the_schedulers_alone_and_carry_a_revision() -> None:
    for row in CONTRACT:
        if issubclass(row.kind, e.Decision):
            assert WRITERS[row.kind.__name__] == {"scheduler"}
            assert "revision" in row.carries


def test_facts_about_an_attempt_say_which() -> None:
    for row in CONTRACT:
        if issubclass(row.kind, e.AttemptEvent):
            assert "attempt" in row.carries
            assert "scheduler" not in WRITERS[row.kind.__name__]


@pytest.mark.parametrize(
    ("service", "kind", "allowed"),
    [
        ("scheduler", "JobPlaced", True),
        ("gateway", "JobPlaced", False),
        ("node", "CheckpointFailed", True),
        ("checkpoint", "CheckpointFailed", True),
        ("checkpoint", "CheckpointSaved", True),
        ("node", "NoSuchKind", False),
        ("node", "ProgressReported", True),
        ("gateway", "ProgressReported", False),
        ("gateway", "HoldRequested", True),
        ("scheduler", "HoldRequested", False),
        ("gateway", "NodeCordoned", False),
        ("scheduler", "NodeCordoned", True),
        ("node", "ImagePrefetchHinted", False),
        ("node", "NodeImagesChanged", True),
        ("node", "ImageCached", True),
        ("node", "ImageEvicted", True),
        ("node", "ImageUnavailable", True),
        ("scheduler", "ImageEvicted", False),
    ],
)
def test_who_may_write_what(service: str, kind: str, allowed: bool) -> None:
    assert may_write(service, kind) is allowed
