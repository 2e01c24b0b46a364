"""The machine of policy 2 does a little of everything; this is much of what lets jobs leave for their own priority."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.elastic.test_machine_elastic import SET, TENANTS, ElasticMachine
from tests.scheduler.test_machine import NODES
from tests.support.cluster import spec

_Act = tuple[str, int, int, int | None]
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "come", "less", "less", "pass", "leave", "leave", "end"]),
        st.integers(1, 20),
        st.integers(0, 2),
        st.sampled_from([None, 30, 300, 30_000]),
    ),
    min_size=10,
    max_size=40,
)
"""What happens: who comes with how much CPU, of which priority, expecting what; what passes; who leaves or ends."""


class SlicesMachine(ElasticMachine):
    """Driven by hand."""

    def act(self, what: str, number: int, priority: int, seconds: int | None) -> None:
        cluster, tenant = self.cluster, TENANTS[number % 3]
        if what == "come":
            gpus = number % 2 * (number % 3)
            cluster.submit(spec(number * 100, gpus=gpus, priority=priority, tenant=tenant, expected_seconds=seconds))
        elif what == "less" and self._running():
            self.comes_with_less_work(self._running()[number % len(self._running())], 61, tenant)
        elif what == "pass":
            cluster.advance(number * 10)
        for job in self._jobs():
            if what == "leave" and cluster.stage(job) == "preempting":
                cluster.exit(job, "suspended", acknowledged=True)
        if what == "end" and self._running():
            cluster.exit(self._running()[number % len(self._running())], "completed")
        cluster.settle()
        for job in self._jobs():
            self._start(job)
        cluster.settle()


@settings(max_examples=25, deadline=None)
@given(drawn=SET, slice_steps=st.integers(1, 2), acts=ACTS)
def test_whoever_comes_and_has_less_work_left(drawn: dict[str, int], slice_steps: int, acts: list[_Act]) -> None:
    machine = SlicesMachine()
    machine.an_operator_has_set_parameters(drawn | {"slice_steps": slice_steps})
    for name in NODES:
        machine._join(name, held=[])
    for act in acts:
        machine.act(*act)
        machine.passes_come_to_rest()
    machine.what_was_kept_up_says_what_is_known_anew()
    machine.teardown()
