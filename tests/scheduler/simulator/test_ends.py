"""How a simulation ends: with its last job, when nothing more can happen, or with an error."""

from __future__ import annotations

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.settle import settle
from tidegate_scheduler.policy.sharing import fixed
from tidegate_scheduler.simulator import engine, measures
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.engine import simulate
from tidegate_scheduler.simulator.errors import SimulationError
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.simulator.tally import Tally
from tidegate_scheduler.simulator.workload import Workload
from tidegate_scheduler.state import Member

from tests.scheduler.simulator.small import SECOND, arrival, by_name, ends, node, run, workload
from tests.support.cluster import spec

ONE = workload([node("n1")], arrival("a", 0, spec(gpus=1), 10))


def test_nothing_to_do_ends_at_once() -> None:
    result = run(Workload("nothing", (node("n1"),), ()))
    assert (result.jobs, result.end_ns, result.stays) == ((), 0, ())


def test_jobs_without_a_cluster_wait_for_ever() -> None:
    result = run(Workload("no nodes", (), ONE.arrivals))
    assert by_name(result)["a"].outcome == ""


def test_a_node_may_come_later() -> None:
    late = node("n1")
    joins = e.NodeJoined(**{**{name: getattr(late, name) for name in late.__struct_fields__}, "at_ns": 100 * SECOND})
    assert ends(run(Workload("late", (), ONE.arrivals, (joins,)))) == {"a": 111}


def test_who_can_never_run_does_not_keep_it_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes fail and come back for ever, and passes are due for ever: that alone brings nobody on."""
    monkeypatch.setattr(engine, "QUIET_STEPS_MAX", 50)
    held = e.HoldRequested(id="h", at_ns=0, tenant="t", job="b", actor="ada")
    work = workload([node("n1")], arrival("a", 0, spec(gpus=1), 10), arrival("b", 0, spec(gpus=1), 10), facts=(held,))
    result = run(work, Costs(node_failures_per_day_millis=24_000))
    assert {job.job: job.outcome for job in result.jobs} == {"a": "completed", "b": ""}
    assert (result.end_ns, result.samples[-1].at_ns) == (11 * SECOND, 11 * SECOND)  # not where it gave up, days later
    assert by_name(result)["b"].waited_ns == 11 * SECOND
    assert measures.of(result).makespan_s == 11


def test_failures_of_a_node_that_is_gone_for_good_do_not_keep_it_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "QUIET_STEPS_MAX", 50)
    gone = e.NodeUnreachable(id="u", at_ns=5 * SECOND, node="n1", incarnation=1)
    work = Workload("gone", ONE.nodes, (arrival("a", 60, spec(gpus=1), 10),), (gone,))
    result = run(work, Costs(node_failures_per_day_millis=24_000))
    assert by_name(result)["a"].first_placed_ns is None


def test_who_comes_last_and_is_never_placed_has_come() -> None:
    held = e.HoldRequested(id="h", at_ns=60 * SECOND, tenant="t", job="b", actor="ada")
    work = workload([node("n1")], arrival("a", 0, spec(gpus=1), 10), arrival("b", 60, spec(gpus=1), 10), facts=(held,))
    result = run(work)
    assert (result.end_ns, by_name(result)["b"].waited_ns) == (60 * SECOND, 0)


def test_rules_that_decide_for_ever_at_one_time_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PASSES_MAX", 20)

    def restless(draft: Draft) -> None:
        settle(draft)
        for job in draft.state.jobs.values():
            draft.add(e.RoomReserved, job, nodes=("n1",))

    with pytest.raises(SimulationError, match="restless does not come to rest: 20 passes at 0 ns"):
        run(ONE, rules=Rules(name="restless", fill=restless))


@pytest.mark.parametrize(
    ("name", "gpu", "jobs", "why"),
    [
        ("n1", 0, 2, "on n1, of which they gave away 2000 thousandths of GPU 0, of 1000"),
        ("n1", 4, 1, "on n1, of which they gave away 1000 thousandths of GPU 4, of 0"),
        ("n2", 0, 1, "when or where it cannot be: it has to wait, and its nodes have to be up"),
    ],
)
def test_rules_that_give_away_what_is_not_there_are_refused(name: str, gpu: int, jobs: int, why: str) -> None:
    def careless(draft: Draft) -> None:
        settle(draft)
        for job in draft.state.jobs.values():
            if job.waiting:
                quotas = fixed(draft.state.specs[job.id])
                place = e.MemberPlacement(rank=0, node=name, incarnation=1, quotas=quotas, gpu_indices=(gpu,))
                draft.add(e.JobPlaced, job, attempt=job.attempt + 1, members=(place,))

    work = workload([node("n1")], *(arrival(f"j{number}", 0, spec(gpus=1), 10) for number in range(jobs)))
    with pytest.raises(SimulationError, match=why):
        simulate(work, Rules(name="careless", fill=careless), Costs())


def test_rules_that_change_what_jobs_have_to_more_than_there_is_are_refused() -> None:
    def careless(draft: Draft) -> None:
        settle(draft)
        for job in draft.state.jobs.values():
            quotas = fixed(draft.state.specs[job.id])
            if job.waiting:
                place = e.MemberPlacement(rank=0, node="n1", incarnation=1, quotas=quotas, gpu_indices=(0,))
                draft.add(e.JobPlaced, job, attempt=job.attempt + 1, members=(place,))
            elif job.members[0].quotas == quotas:
                more = (msgspec.structs.replace(quotas[0], cpu_millis=8001),)
                draft.add(e.QuotaChanged, job, attempt=job.attempt, rank=0, quotas=more)

    work = workload([node("n1", 8000)], arrival("a", 0, spec(gpus=1), 10))
    with pytest.raises(SimulationError, match="what a has on n1, of which they gave away quotas of 8001 of 8000"):
        simulate(work, Rules(name="careless", fill=careless), Costs())


def test_rules_that_place_an_intensive_gang_apart_are_refused() -> None:
    def careless(draft: Draft) -> None:
        for job in draft.state.jobs.values():
            quotas = fixed(draft.state.specs[job.id])
            if job.waiting:
                places = tuple(
                    e.MemberPlacement(rank=rank, node=f"n{rank}", incarnation=1, quotas=quotas, gpu_indices=(0,))
                    for rank in range(2)
                )
                draft.add(e.JobPlaced, job, attempt=job.attempt + 1, members=places)

    gang = msgspec.structs.replace(spec(gpus=1, gang=2), communication="intensive")
    nodes = [node("n0", switch="s0", rack="r"), node("n1", switch="s1", rack="r")]
    with pytest.raises(SimulationError, match=r"placed a, whose members .* in more than one switch: s0 in r, s1 in r"):
        simulate(workload(nodes, arrival("a", 0, gang, 10)), Rules(name="careless", fill=careless), Costs())


def test_rules_that_let_jobs_work_on_what_they_do_not_have_are_refused() -> None:
    def careless(draft: Draft) -> None:
        settle(draft)
        for job in draft.state.jobs.values():
            if job.waiting:
                quotas = fixed(draft.state.specs[job.id])
                place = e.MemberPlacement(rank=0, node="n1", incarnation=1, quotas=quotas, gpu_indices=(0,))
                draft.add(e.JobPlaced, job, attempt=job.attempt + 1, members=(place,))

    work = workload([node("n1", 8000)], arrival("a", 0, spec(gpus=2), 10))
    with pytest.raises(SimulationError, match="a works on 2000 thousandths of GPUs, and holds 1000"):
        simulate(work, Rules(name="careless", fill=careless), Costs())


def test_more_held_on_a_node_than_there_is_names_node_and_job() -> None:
    tally = Tally()
    tally.node_there("n1", 1000, 500)
    for name, cpu_millis, gpus in (("a", 400, 1), ("b", 200, 0)):
        tally.expect(arrival(name, 0, spec(cpu_millis, gpus=gpus), 10), 0)
        member = Member(
            rank=0,
            node="n1",
            quotas=(e.Quota(component="main", cpu_millis=cpu_millis, memory_mib=64),),
            gpu_indices=tuple(range(gpus)),
            status="started",
            phase="default",
            exit=None,
        )
        tally.check()
        tally.seated(name, member, spec(cpu_millis, gpus=gpus), 0)
    with pytest.raises(SimulationError, match=r"600 thousandths of CPUs are held on n1, which has 500: .* was b"):
        tally.check()


def test_rules_that_ask_for_the_next_pass_at_once_are_refused() -> None:
    def spins(draft: Draft) -> None:
        draft.wake_by(draft.now_ns)

    with pytest.raises(SimulationError, match="spins decides nothing, and asks for the next pass at once"):
        run(ONE, rules=Rules(name="spins", fill=spins))


def test_rules_may_ask_to_be_woken_when_nothing_happens() -> None:
    seen: list[int] = []

    def waits(draft: Draft) -> None:
        settle(draft)
        seen.append(draft.now_ns // SECOND)
        if draft.now_ns < 100 * SECOND:
            draft.wake_by(draft.now_ns + 30 * SECOND)

    run(ONE, rules=Rules(name="waits", fill=waits))
    assert seen == [0, 30, 60, 90, 120]


def test_what_users_do_meanwhile_happens_at_its_time() -> None:
    cancel = e.CancelRequested(id="c", at_ns=5 * SECOND, tenant="t", job="a", actor="ada")
    result = run(workload([node("n1")], arrival("a", 0, spec(gpus=1), 10), facts=(cancel,)))
    job = by_name(result)["a"]
    assert job.outcome == "cancelled"
    assert ends(result) == {"a": 6}  # it is told to stop at 5 s, has ended then, and that is seen a second later
