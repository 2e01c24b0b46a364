"""Whoever waits is told why, where in line and when, at every moment of anything, and asking leaves nothing behind."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from tidegate_scheduler.dry_run import dry_run
from tidegate_scheduler.explain import count_waiting, explain, queue
from tidegate_scheduler.policy import registry
from tidegate_scheduler.policy.codes import WAITING

from tests.scheduler.elastic.test_machine_elastic import ODD_SECONDS, ElasticMachine
from tests.support.cluster import SECOND, spec


class ToldMachine(ElasticMachine):
    """The same world, asked all the time."""

    def what_was_kept_up_says_what_is_known_anew(self) -> None:
        """Held by the machine above."""

    def passes_come_to_rest(self) -> None:
        """Held by the machine above."""

    @rule(
        cpu=st.integers(1, 30),
        gpus=st.integers(0, 2),
        priority=st.integers(0, 5),
        gang=st.integers(1, 3),
        seconds=st.sampled_from([None, 500]),
    )
    def somebody_tries_a_job(self, *, cpu: int, gpus: int, priority: int, gang: int, seconds: int | None) -> None:
        cluster = self.cluster
        job = spec(cpu * 100, gpus=gpus, priority=priority, gang=gang, expected_seconds=seconds)
        found = dry_run(cluster.state, job, cluster.now)
        assert all(each.job in cluster.state.jobs for each in found.displaces)
        assert (found.verdict == "displaces") == bool(found.displaces)
        assert found.starts_at_ns is None or found.starts_at_ns >= cluster.now

    @rule(seconds=st.sampled_from(ODD_SECONDS))
    def somebody_asks_about_a_job_at_another_time(self, seconds: int) -> None:
        self._told(max(self.cluster.now + seconds * SECOND, 0))

    @invariant()
    def whoever_waits_is_told(self) -> None:
        self._told(self.cluster.now)

    def _told(self, now_ns: int) -> None:
        state, waiting, digest = self.cluster.state, self.cluster.waiting, self.cluster.state.digest()
        line = queue(state, waiting, now_ns)
        waits = [job.id for job in state.jobs.values() if job.waiting]
        assert sorted(each.job for each in line.queue) == sorted(waits)
        assert line.total == len(waits)
        counted: Counter[tuple[str, str]] = Counter()
        for position, each in enumerate(line.queue, start=1):
            assert each.position == position
            assert each.reasons[0].code in WAITING, each
            assert each.starts_at_ns is None or each.starts_at_ns >= min(now_ns, state.header.now_ns), each
            assert not (state.jobs[each.job].held and each.starts_at_ns), f"held, and told a start: {each}"
            assert explain(state, waiting, each.job, now_ns) == each
            counted[state.jobs[each.job].tenant, each.reasons[0].code] += 1
        found = {(each.tenant, each.reason): each.jobs for each in count_waiting(state, waiting, now_ns)}
        assert found == counted
        self._is_judged(now_ns)
        assert state.digest() == digest

    def _is_judged(self, now_ns: int) -> None:
        """Hold that a start now is told to nobody whom no node could take, as things are."""
        outlook = registry.outlook(self.cluster.state, now_ns)
        for job in (job for job in self.cluster.state.jobs.values() if job.waiting):
            known = outlook.starts(50).get(job.id)
            if known is not None:
                assert outlook.never(job) is None, f"it could never run, and is told a start: {job.id}, {known}"


ToldMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
TestTold = ToldMachine.TestCase
