"""Subjects and trace ids: names that every service has to derive alike, for ever."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_events import subjects, trace


@pytest.mark.parametrize("name", ["", "a.b", "*", ">", "a b", "a\n", "é", "a" * 65, "a/b", "\0", "a\tb"])
@pytest.mark.parametrize(
    "derive",
    [
        subjects.token,
        subjects.order,
        subjects.live,
        subjects.ask_scheduler,
        subjects.user,
        lambda name: subjects.fact(name, "i"),
        lambda name: subjects.fact("node", name),
        lambda name: subjects.ask_node(name, "logs"),
        lambda name: subjects.ask_node("n1", name),
    ],
)
def test_a_name_that_is_more_than_a_token_is_refused(derive: Callable[[str], str], name: str) -> None:
    with pytest.raises(ValueError, match="use 1 to 64 of"):
        derive(name)


@given(st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True))
def test_a_token_adds_one_level(name: str) -> None:
    assert subjects.fact("node", name) == f"tg.fact.node.{name}"
    assert subjects.order(name).count(".") == 2


def test_subjects_are_the_documented_ones() -> None:
    assert subjects.DECISION == "tg.decision"
    assert subjects.JOURNAL_SUBJECTS == ("tg.fact.>", "tg.decision")
    assert subjects.live("n1") == "tg.live.n1"
    assert subjects.LIVE_ALL == "tg.live.*"
    assert subjects.ask_scheduler("explain") == "tg.ask.scheduler.explain"
    assert subjects.ask_node("n1", "logs") == "tg.ask.node.n1.logs"
    assert subjects.user("lab") == "tg.user.lab"


def test_trace_ids_are_golden() -> None:
    # Old traces are looked up by ids derived anew: these may never change.
    assert trace.trace_id("j-4k2m") == "8c2755901ad683f86c7c709d8f7c7aaf"
    assert trace.span_id("7-48211-1") == "6004f191bb3c5083"
    assert trace.traceparent("j-4k2m") == "00-8c2755901ad683f86c7c709d8f7c7aaf-f21a9a8b851c58fe-01"


@given(st.text(), st.text())
def test_trace_contexts_are_well_formed_and_differ(one: str, other: str) -> None:
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", trace.traceparent(one))
    assert (trace.trace_id(one) == trace.trace_id(other)) == (one == other)
    assert (trace.span_id(one) == trace.span_id(other)) == (one == other)
