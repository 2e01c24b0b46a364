"""Policy 2 under anything: the worse world of policy 1's machine, with tenants, topology, estimates and operators.

After every step a pass on the index that was kept up says what a pass on a state folded anew says, in whatever order
the tables of that one stand; and asking at any other time in between changes nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from tidegate_events import events as e
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Recorded
from tidegate_events.resources import GpuDevice, Resources
from tidegate_events.subjects import DECISION
from tidegate_scheduler.decide import decide
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.policy.elastic.pipeline import index_of
from tidegate_scheduler.policy.parameters import Parameters, as_parameters, as_values
from tidegate_scheduler.state import HINTS_KEPT

from tests.scheduler.elastic.world import (
    CheckedCluster,
    answers,
    assert_balanced,
    assert_few_changes,
    tables,
    told_anew,
)
from tests.scheduler.test_machine import NODES
from tests.scheduler.test_snapshot import RestartedMachine
from tests.support.cluster import SECOND, spec
from tests.support.images import say_images

TENANTS = ["t", "a", "b"]
RACKS = {"n1": "a", "n2": "a", "n3": "a"}
SWITCHES = {"n1": "s1", "n2": "s1", "n3": "s2"}
MODELS = {"n1": "EPYC", "n2": "Xeon", "n3": "EPYC"}
MIXED = (
    GpuDevice(0, "g0", "H", 80_000),
    GpuDevice(1, "g1", "H", 80_000),
    GpuDevice(2, "g2", "L", 24_000),
    GpuDevice(3, "g3", "L", 24_000),
)
PARAMETERS = Parameters(
    ageing_seconds=300,
    preemptions_max=3,
    preemption_cooldown_seconds=20,
    reservations_max=3,
    lend_interval_seconds=5,
    infrastructure_failures_max=3,
)
SET = st.fixed_dictionaries(
    {
        "slice_steps": st.sampled_from([0, 1, 2]),
        "cpu_beside_gpu_millis": st.sampled_from([0, 500, 2000]),
        "rebalance_after_seconds": st.sampled_from([0, 30, 30]),
        "decisions_per_pass_max": st.sampled_from([3, 100]),
    }
)
IMAGES = ["host", "sim", "torch"]
UNAVAILABLE = [(), ("sim",), ("torch", "sim"), tuple(f"i{number}" for number in range(HINTS_KEPT))]
PASSES_TO_REST_MAX = 20
ODD_SECONDS = [-86_400, -61, 0, 1, 19, 45, 299, 3600, 1_000_000]


class ElasticMachine(RestartedMachine):
    """More that can happen, and more that must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = CheckedCluster(PARAMETERS)

    def _join(self, name: str, held: list[e.HeldSandbox]) -> None:
        self.incarnations[name] += 1
        cpu, gpus = NODES[name]
        more: dict[str, Any] = {"devices": MIXED} if name == "n3" else {"gpus": gpus}
        number = self.incarnations[name]
        more |= {"rack": RACKS[name], "switch": SWITCHES[name], "cpu_model": MODELS[name]}
        more["fetches_images"] = bool(number % 3)
        self.cluster.node(name, cpu, incarnation=number, held=held, **more)
        if name == "n1":  # who needs more than the host's often waits for this one
            self.the_images_are(name, IMAGES)

    @rule(
        tenant=st.sampled_from(TENANTS),
        cpu=st.integers(1, 30),
        priority=st.integers(0, 3),
        gang=st.integers(1, 3),
        devices=st.sampled_from([(0, 0), (1, 0), (2, 0), (0, 300), (0, 600)]),
        models=st.sampled_from([(), ("H",), ("L", "H")]),
        seconds=st.sampled_from([None, 50, 500]),
        intensive=st.sampled_from([None, 0, 90]),
        widest=st.sampled_from(["switch", "rack"]),
        grace=st.sampled_from([1, 10, 90, 200]),
        strict=st.booleans(),
        image=st.sampled_from(["host", *IMAGES]),
    )
    def a_tenant_submits(self, *, cpu: int, devices: tuple[int, int], **asked: Any) -> None:
        more: dict[str, Any] = {}
        if asked["intensive"] is not None:
            more = {"communication": "intensive", "locality_wait_seconds": asked["intensive"]}
            more["widest_domain"] = asked["widest"]
        if any(devices):
            more["gpu_models"] = asked["models"]
        seconds = asked["seconds"]
        job = spec(
            cpu * 100,
            gpus=devices[0],
            gpu_millis=devices[1],
            tenant=asked["tenant"],
            priority=asked["priority"],
            gang=asked["gang"],
            grace=asked["grace"],
            attempts=2,
            expected_seconds=seconds,
            time_limit_seconds=seconds * 3 if seconds else None,
            determinism="strict" if asked["strict"] else "relaxed",
            image=asked["image"],
            **more,
        )
        self.cluster.submit(job)

    @initialize(drawn=SET)
    def an_operator_has_set_parameters(self, drawn: dict[str, int]) -> None:
        self._set(drawn)

    @rule(drawn=SET)
    def an_operator_sets_parameters(self, drawn: dict[str, int]) -> None:
        self._set(drawn)

    def _set(self, drawn: dict[str, int]) -> None:
        parameters = msgspec.structs.replace(as_parameters(self.cluster.state.header.parameters), **drawn)
        about: dict[str, Any] = {"id": f"policy-{len(self.cluster.frames)}", "at_ns": self.cluster.now}
        changed = e.PolicyChanged(**about, policy=2, parameters=as_values(parameters))
        self.cluster.append("scheduler", self.cluster.leader, changed)

    @precondition(lambda self: self._running())
    @rule(data=st.data(), seconds=st.sampled_from([61, 700]), tenant=st.sampled_from(TENANTS))
    def somebody_comes_with_less_work(self, data: st.DataObject, seconds: int, tenant: str) -> None:
        self.comes_with_less_work(data.draw(st.sampled_from(self._running())), seconds, tenant)

    def comes_with_less_work(self, job: str, seconds: int, tenant: str) -> None:
        """It fits where that one of its priority runs, once that has left."""
        self.cluster.advance(seconds)
        if job in self._running():
            held, node = self.cluster.state.floors[job], self.cluster.members(job)[0].node
            cpu = max(0, self.cluster.nobody_holds(node)[0]) + max(100, held.cpu_millis)
            priority = self.cluster.job(job).priority
            self.cluster.submit(spec(cpu, priority=priority, tenant=tenant, expected_seconds=1))
            self.cluster.settle()

    def _running(self) -> list[str]:
        return sorted(job.id for job in self.cluster.state.jobs.values() if job.stage == "running")

    @rule(seconds=st.sampled_from([61, 700]))
    def time_passes_for_long(self, seconds: int) -> None:
        self.cluster.advance(seconds)

    @rule(
        tenant=st.sampled_from(TENANTS),
        weight=st.integers(1, 3),
        guaranteed=st.sampled_from([None, 1000, 3000]),
        ceiling=st.sampled_from([None, 2000, 6000]),
        stopped=st.sampled_from([False, False, True]),
    )
    def a_queue_is_set(
        self, *, tenant: str, weight: int, guaranteed: int | None, ceiling: int | None, stopped: bool
    ) -> None:
        self._ask(
            e.QueueChanged,
            tenant=tenant,
            weight=weight,
            guaranteed=Resources(guaranteed) if guaranteed else None,
            ceiling=Resources(ceiling, 1 << 20, 4) if ceiling else None,
            stopped=stopped,
        )

    @precondition(lambda self: self._jobs())
    @rule(data=st.data(), slow=st.booleans())
    def the_rate_of_a_job_changes(self, data: st.DataObject, slow: bool) -> None:
        job = self.cluster.job(data.draw(st.sampled_from(self._jobs())))
        about: dict[str, Any] = {"id": f"rate-{len(self.cluster.frames)}", "at_ns": self.cluster.now, "tenant": "t"}
        about |= {"job": job.id, "attempt": job.attempt, "rate_millis": 1, "target_millis": 2, "window_seconds": 3}
        event = e.StepRateLow(**about) if slow else e.StepRateRecovered(**about)
        self.cluster.append("metrics", "m1", event)

    @rule(image=st.sampled_from(IMAGES[1:]), cpu=st.sampled_from([500, 1000]), jobs=st.integers(2, 6))
    def several_wait_for_an_image(self, *, image: str, cpu: int, jobs: int) -> None:
        for _ in range(jobs):
            self.cluster.submit(spec(cpu, image=image, attempts=2))
        self.cluster.settle()

    @rule(
        name=st.sampled_from(sorted(NODES)),
        images=st.sampled_from([["host"], ["host"], ["sim"], ["host", "torch"], []]),
        unavailable=st.sampled_from(UNAVAILABLE),
    )
    def the_images_of_a_node_change(self, *, name: str, images: list[str], unavailable: tuple[str, ...]) -> None:
        self.the_images_are(name, images, unavailable)

    def the_images_are(self, name: str, images: list[str], unavailable: tuple[str, ...] = ()) -> None:
        there = {image: f"b3:{image}" for image in images}
        say_images(self.cluster, name, there, unavailable, self.incarnations[name])

    @rule(seconds=st.lists(st.sampled_from(ODD_SECONDS), min_size=1, max_size=3))
    def somebody_asks_about_other_times(self, seconds: list[int]) -> None:
        before = answers(self.cluster.state, self.cluster.now)
        for each in seconds:
            decide(self.cluster.state, self.cluster.now + each * SECOND)
        assert answers(self.cluster.state, self.cluster.now) == before, "asking changed the answer"

    @invariant()
    def what_was_kept_up_says_what_is_known_anew(self) -> None:
        now = self.cluster.now
        kept = answers(self.cluster.state, now)
        known = tables(index_of(self.cluster.state))
        for turned in (False, True):
            anew = told_anew(self.cluster.frames, turned=turned)
            assert kept == answers(anew, now)
            assert known == tables(index_of(anew))

    @invariant()
    def passes_come_to_rest(self) -> None:
        """Without new facts: whatever is kept, or swapped, for whom."""
        cluster = self.cluster
        if not decide(cluster.state, cluster.now).events:
            return
        state = told_anew(cluster.frames)
        _, writer_seq = state.writers[f"scheduler/{cluster.leader}"]
        told: list[e.AnyEvent] = []
        for number in range(1, PASSES_TO_REST_MAX + 1):
            decided = decide(state, cluster.now)
            if not decided.events:
                assert decided.wake_at_ns is None or decided.wake_at_ns > cluster.now, "it spins"
                return
            told += decided.events
            assert_few_changes(told)
            writer = Writer("scheduler", cluster.leader, cluster.epoch, writer_seq + number)
            evolve(state, Recorded(state.seq + 1, DECISION, Frame(writer, decided.events)))
        raise AssertionError(f"no rest after {PASSES_TO_REST_MAX} passes: {decided.events}")

    def _raced(self, data: st.DataObject, happen: object) -> None:
        """As in the machine below, but not judged: the state moved on after the pass."""
        self.cluster.raced = True
        try:
            super()._raced(data, happen)
        finally:
            self.cluster.raced = False

    def _operators_let_go(self) -> None:
        super()._operators_let_go()
        for tenant in TENANTS:
            self._ask(e.QueueChanged, tenant=tenant)

    def _fits_no_more(self, job: str) -> bool:
        """A strict job keeps to its CPU model, whose nodes may have other devices by now; images went with a start."""
        asked = self.cluster.job(job).cpu_model or self.cluster.state.specs[job].image != "host"
        return bool(asked) and self.cluster.waiting[job].code == "NoNode"

    def _let_everything_end(self) -> None:
        super()._let_everything_end()
        assert_balanced(self.cluster)


ElasticMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=35, deadline=None)
TestElastic = ElasticMachine.TestCase
