"""Specifications and amounts: what a member is guaranteed, and which component ends it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, ResourceRange, component_memory_mib, member_floor

from tests.events.examples import SPEC

AMOUNTS = st.builds(Resources, *[st.integers(0, 10_000)] * 5)


def component(name: str = "main", *, kind: str = "main", replicas: int = 1, **minima: tuple[int, ...]) -> Component:
    resources = {phase: ResourceRange(minimum=Resources(*minimum)) for phase, minimum in minima.items()}
    return Component(name=name, kind=kind, command=("x",), replicas=replicas, resources=resources)  # type: ignore[arg-type]


def spec(*components: Component) -> JobSpec:
    return JobSpec(name="n", tenant="t", submitter="s", components=components)


def test_the_floor_is_the_largest_phase_not_the_sum_of_all() -> None:
    sim = component("sim", replicas=4, default=(50, 64), sampling=(500, 64))
    learner = component("learner", kind="learner", default=(100, 512), learning=(1500, 512))
    # sampling: 4 x 500 + 100; learning: 4 x 50 + 1500; neither is 4 x 500 + 1500
    assert member_floor(spec(sim, learner)) == Resources(2100, 4 * 64 + 512)


def test_memory_keeps_each_components_largest_phase() -> None:
    sim = component("sim", replicas=2, default=(50, 64), sampling=(500, 256))
    learner = component("learner", default=(100, 100), learning=(1500, 900))
    assert component_memory_mib(sim) == 256
    assert member_floor(spec(sim, learner)).memory_mib == 2 * 256 + 900


def test_gpus_add_up_and_their_memory_does_not() -> None:
    one, two = component("a", default=(0, 0, 1, 8000)), component("b", replicas=2, default=(0, 0, 1, 16000))
    assert member_floor(spec(one, two)) == Resources(0, 0, 3, 16000)


def test_shares_of_a_gpu_add_up_over_components_and_replicas_in_the_neediest_phase() -> None:
    sim = component("sim", replicas=3, default=(0, 0, 0, 0, 100), sampling=(0, 0, 0, 0, 200))
    learner = component("learner", default=(0, 0, 0, 8000, 300), learning=(0, 0, 0, 8000, 350))
    # sampling: 3 x 200 + 300; learning: 3 x 100 + 350
    assert member_floor(spec(sim, learner)) == Resources(0, 0, 0, 8000, 900)


def test_what_scales_is_guaranteed_only_its_least_number() -> None:
    fixed = component("sim", kind="simulator", replicas=2, default=(100, 64))
    assert member_floor(spec(msgspec.structs.replace(fixed, replicas_max=9))) == member_floor(spec(fixed))


def test_a_phase_that_is_not_declared_uses_the_default() -> None:
    sim = component("sim", default=(50, 64), sampling=(500, 64))
    assert sim.range_in("sampling").minimum.cpu_millis == 500
    assert sim.range_in("thinking").minimum.cpu_millis == 50


def test_a_missing_maximum_is_the_minimum() -> None:
    low, high = Resources(1, 2), Resources(3, 4)
    assert ResourceRange(minimum=low).ceiling == low
    assert ResourceRange(minimum=low, maximum=high).ceiling == high


def test_phases_are_those_of_all_components() -> None:
    assert SPEC.phases == ("default", "sampling")


@pytest.mark.parametrize(
    ("kinds", "main"),
    [("main", 0), ("main main", 1), ("learner simulator", 0), ("learner learner buffer", 1), ("simulator buffer", 1)],
)
def test_the_last_learner_ends_the_sandbox_else_the_last_one_listed(kinds: str, main: int) -> None:
    parts = [component(f"c{i}", kind=kind, default=(1, 1)) for i, kind in enumerate(kinds.split())]
    assert spec(*parts).main_component.name == f"c{main}"


def test_an_unknown_field_of_a_spec_is_refused() -> None:
    document = msgspec.to_builtins(SPEC)
    assert msgspec.convert(document, JobSpec) == SPEC
    for damaged in ({**document, "gpu": 1}, {**document, "restart": {"max_attempts": 1, "more": 2}}):
        with pytest.raises(msgspec.ValidationError, match="unknown field"):
            msgspec.convert(damaged, JobSpec)


@given(AMOUNTS, AMOUNTS, st.integers(0, 9))
def test_amounts_add_and_multiply(one: Resources, other: Resources, count: int) -> None:
    assert one.plus(other) == other.plus(one)
    total = Resources(gpu_memory_mib=one.gpu_memory_mib)
    for _ in range(count):
        total = total.plus(one)
    assert one.times(count) == total
    ceiling = one.ceiling(other)
    assert ceiling == other.ceiling(one) == ceiling.ceiling(one)
