"""Whoever has waited long for its phase holds up others, so that what it needs gathers, where it could ever have it."""

from __future__ import annotations

from tidegate_events.resources import Resources
from tidegate_scheduler.policy.elastic.borrow import PASSED_NS

from tests.scheduler.elastic.lent import ask, borrower, go, granted, lending, run
from tests.support.cluster import SECOND, spec


def test_who_could_never_have_its_phase_holds_up_nobody() -> None:
    """Were all of it handed back, what others are guaranteed would still be in its way."""
    cluster = lending(memory=6000)
    run(cluster, "plain", spec(100, memory=2000))
    run(cluster, "large", borrower(Resources(100, 500), Resources(200, 5000)))
    run(cluster, "small", borrower(Resources(100, 500), Resources(200, 2000)))
    assert granted(ask(cluster, "large", "learning")) == {}
    cluster.advance(PASSED_NS // SECOND + 1)
    assert granted(ask(cluster, "small", "learning")) == {"small": "learning"}


def test_who_could_have_its_phase_if_all_handed_back_holds_up_others() -> None:
    cluster = lending(memory=6000)
    run(cluster, "large", borrower(Resources(100, 500), Resources(200, 5000)))
    for name in ("has", "small"):
        run(cluster, name, borrower(Resources(100, 500), Resources(200, 2000)))
    go(cluster, "has", "learning")
    assert granted(ask(cluster, "large", "learning")) == {}
    cluster.advance(PASSED_NS // SECOND + 1)
    assert granted(ask(cluster, "small", "learning")) == {}
