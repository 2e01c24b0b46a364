"""Resumed equals undisturbed: with `determinism: strict` both end with the same weights, bit for bit."""

from __future__ import annotations

import pytest

from tests.e2e.running import UPDATES, RunningStack

pytestmark = [pytest.mark.e2e, pytest.mark.isolation, pytest.mark.timeout(600)]


def test_a_preempted_run_ends_with_the_weights_of_an_undisturbed_one(stack: RunningStack) -> None:
    undisturbed = stack.submit("job.json", UPDATES)
    (reference,) = stack.completed(undisturbed)
    assert reference["preemptions"] == 0

    low, high = stack.submit_main_job()
    ended, _ = stack.completed(low, high)

    assert ended["preemptions"] == 1
    assert 0 < ended["resumed_step"] < UPDATES
    assert ended["lost_steps"] == 0
    for name in ("weights_digest", "mean_return", "steps", "updates", "cpu_model", "isa"):
        assert ended["result"][name] == reference["result"][name], name
    stack.verify()
