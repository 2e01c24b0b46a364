"""What the gateway answers with 201 counts in every fold, whatever the clock did, and can be placed in one frame."""

from __future__ import annotations

from typing import Any

from tidegate_events import events as e
from tidegate_events.clock import ManualClock
from tidegate_gateway.desk import Desk
from tidegate_gateway.submission.bounds import COMPONENTS_MAX, GANG_SIZE_MAX, PLACES_MAX


async def test_a_gateway_whose_clock_went_back_is_not_taken_for_a_late_duplicate(bench: Any, spec: Any) -> None:
    """Its frames had an older epoch: they were acknowledged, and void in every fold."""
    await bench.history.write(
        "gateway", "g1", e.CancelRequested(**bench.history.stamp(tenant="t", job="j")), epoch=10**19
    )
    await bench.settle()
    desk = Desk(bench.journal, bench.gateway.fold, ManualClock(), instance="g1", waiting_max=4)
    for key, keyed in (("j-1", True), ("j-2", False)):
        await desk.submit(key, spec, keyed=keyed)
    await bench.settle()
    assert set(bench.gateway.fold.view.jobs) == {"j-1", "j-2"}


async def test_a_gang_that_no_frame_could_place_is_refused(bench: Any) -> None:
    component = {"command": ["true"], "resources": {"cpu_millis": 10, "memory_mib": 4}}
    components = [{**component, "name": f"c{number}"} for number in range(COMPONENTS_MAX)]
    problems = await bench.problems({"components": components, "gang_size": GANG_SIZE_MAX})
    assert str(PLACES_MAX) in problems["gang_size"]
    fits = await bench.submit({"components": components, "gang_size": PLACES_MAX // COMPONENTS_MAX})
    assert fits.status_code == 201
