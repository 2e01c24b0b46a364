"""Work of a job: its pace, what happens by it alone, and what of it is lost."""

from __future__ import annotations

import pytest
from tidegate_scheduler.simulator.work import FULL, Work, share, slower
from tidegate_scheduler.simulator.workload import Span, Truth

SECOND = 1_000_000_000


def work(*seconds: int, **more: int) -> Work:
    return Work(Truth(tuple(Span(f"p{number}", each) for number, each in enumerate(seconds)), **more))


def phase(of: Work) -> str | None:
    return of.span.phase if of.span is not None else None


def test_it_goes_through_its_spans_and_is_done() -> None:
    job = work(10, 5)
    assert phase(job) == "p0"
    job.go_on(0, FULL)
    assert job.due_ns() == 10 * SECOND
    job.stop(10 * SECOND)
    assert (phase(job), job.due_ns()) == ("p1", None)
    job.go_on(12 * SECOND, FULL)
    assert job.due_ns() == 17 * SECOND
    job.stop(17 * SECOND)
    assert (phase(job), job.step) == (None, 15)


def test_a_span_without_length_is_passed_over() -> None:
    assert phase(work(0, 5)) == "p1"
    assert phase(work(0)) is None


def test_with_a_part_of_the_cpu_it_takes_as_much_longer() -> None:
    job = work(10)
    job.go_on(0, share(2000, 6000))
    assert job.due_ns() == 30 * SECOND
    job.go_on(15 * SECOND, share(6000, 6000))
    assert job.due_ns() == 20 * SECOND
    job.go_on(16 * SECOND, share(0, 6000))
    assert job.due_ns() is None
    job.go_on(50 * SECOND, share(9000, 6000))
    assert job.due_ns() == 54 * SECOND


def test_an_end_is_reached_at_the_nanosecond_at_which_it_is_due() -> None:
    job = work(1)
    job.go_on(0, (3, 7))
    due = job.due_ns()
    assert due == -(-SECOND * 7 // 3)
    job.stop(due)
    assert phase(job) is None


def test_the_slower_of_two_is_compared_exactly() -> None:
    assert slower((1, 3), (333_333, 1_000_000)) == (333_333, 1_000_000)
    assert slower(FULL, (2, 3)) == (2, 3)
    assert share(5, 0) == FULL


def test_what_was_not_saved_is_lost() -> None:
    job = work(100)
    job.go_on(0, FULL)
    job.stop(40 * SECOND)
    job.save("one")
    job.go_on(50 * SECOND, FULL)
    job.stop(60 * SECOND)
    assert job.lost_ns == 10 * SECOND
    job.drop()
    assert (job.done_ns, job.lost_ns) == (40 * SECOND, 0)
    job.go_back("one")
    assert job.done_ns == 40 * SECOND
    job.go_back("")
    assert (job.done_ns, job.saved_ns) == (0, 0)
    job.go_back("of before the simulation")
    assert job.done_ns == 0


def saves_of(job: Work) -> list[int]:
    """Return after how many seconds of work it saves by itself."""
    job.go_on(0, FULL)
    found = []
    while (due_ns := job.due_ns()) is not None and due_ns < 100 * SECOND:
        job.go_on(due_ns, FULL)
        assert job.saves
        job.save(str(due_ns))
        found.append(due_ns // SECOND)
    return found


def test_it_saves_by_itself_after_so_much_work_since_the_last_time() -> None:
    job = work(100, saves_every_seconds=30)
    assert saves_of(work(100, saves_every_seconds=30)) == [30, 60, 90]
    assert saves_of(work(100, saves_every_seconds=30, saves_first_ms=12_000)) == [12, 42, 72]
    resumed = work(100, saves_every_seconds=30, saves_first_ms=12_000)
    resumed.go_back("")
    assert saves_of(resumed) == [30, 60, 90]
    job.go_on(0, FULL)
    assert job.due_ns() == 30 * SECOND
    job.stop(30 * SECOND)
    assert job.saves
    job.save("one")
    assert not job.saves
    job.go_on(30 * SECOND, FULL)
    job.stop(40 * SECOND)
    job.save("asked")
    job.go_on(40 * SECOND, FULL)
    assert job.due_ns() == 70 * SECOND


@pytest.mark.parametrize(("after", "fails"), [(5, True), (10, True), (11, False)])
def test_it_fails_when_it_has_worked_for_so_long(after: int, fails: bool) -> None:
    job = work(10, fails_after_seconds=after)
    job.go_on(0, FULL)
    due = job.due_ns()
    assert due == min(after, 10) * SECOND
    job.stop(due)
    assert job.fails == fails


def test_steps_go_on_from_those_of_before_the_simulation() -> None:
    job = Work(Truth((Span("p", 10),)), base_step=5000)
    job.go_on(0, FULL)
    job.stop(7 * SECOND + 1)
    assert job.step == 5007
