"""What is kept of jobs as they change says what a look at all of them would say, from any point on."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from tidegate_events import events as e
from tidegate_events import subjects
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Recorded
from tidegate_gateway.asks.base import NobodyAnsweredError
from tidegate_gateway.http.queue import in_line
from tidegate_gateway.view import usage
from tidegate_gateway.view.census import by_state, matching
from tidegate_gateway.view.model import ENDED_STATES, JOB_STATES, WAITING_STATES, Job
from tidegate_gateway.view.projection import View

from tests.gateway.test_parity import ACTIONS, Both
from tests.support.cluster import spec

LATE = 2**53


def on_node(view: View, node: str) -> list[str]:
    return [
        job.id
        for job in view.jobs.values()
        if job.latest is not None
        and not job.waiting
        and not job.ended
        and any(member.placement.node == node for member in job.latest.members)
    ]


def resumed(view: View) -> View:
    """Return what another process goes on with."""
    other = View()
    other.resume(view.progress, view.jobs.values(), view.nodes.values(), view.forgotten)
    return other


def check(view: View) -> None:
    census, jobs = view.census, list(view.jobs.values())
    for node in view.nodes:
        assert [job.id for job in view.jobs_on(node)] == on_node(view, node)
    assert by_state(census.states) == Counter(job.state for job in jobs)
    waiting = sorted((-job.priority, job.submitted_seq, job.id) for job in jobs if job.waiting)
    assert list(census.waiting) == waiting == list(census.waiting_of("t"))
    assert census.held["t"] == sum(job.waiting and job.held for job in jobs)
    for states in (frozenset[str](), WAITING_STATES, ENDED_STATES, frozenset(JOB_STATES) - WAITING_STATES):
        alike = [job.id for job in reversed(jobs) if not states or job.state in states]
        assert list(census.newest("t", states, LATE)) == alike == list(census.newest(None, states, LATE))
        assert matching(census.states, "t", states) == len(alike)
    assert list(census.newest("other", (), LATE)) == []


@settings(max_examples=100, deadline=None)
@given(ACTIONS)
def test_it_agrees_with_a_look_at_all_jobs(actions: list[tuple[str, int, str]]) -> None:
    both = Both()
    for action in (("submit", 1, ""), ("pass", 0, ""), *actions):
        both.act(*action)
        check(both.view)
    check(resumed(both.view))
    found = usage.of_tenant(both.view, "t")
    running = sum(not job.waiting and not job.ended for job in both.view.jobs.values())
    assert (found.running, found.waiting + found.held) == (running, len(both.view.census.waiting))


def submitted(story: Any, count: int, **fields: Any) -> list[str]:
    names = [f"j{number}" for number in range(count)]
    for number, name in enumerate(names):
        job = spec(100, priority=number % 3, tenant="ab"[number % 2], **fields)
        story.write("gateway", "g1", e.JobSubmitted(**story.stamp(), tenant=job.tenant, job=name, spec=job))
    return names


def test_of_a_forgotten_job_the_count_is_left() -> None:
    both = Both()
    both.view = View(ended_jobs_max=2)
    both.frames.clear()
    for number in range(5):
        job = f"j{number}"
        frames = (
            ("gateway", "g1", e.JobSubmitted(**both.stamp(), tenant="t", job=job, spec=spec(100))),
            ("scheduler", "s1", e.JobRejected(**both.stamp(), tenant="t", job=job, revision=0, reasons=())),
        )
        tell(both.view, frames)
    census = both.view.census
    assert (matching(census.states, None, ()), matching(census.forgotten, "t", {"rejected"})) == (2, 3)
    assert list(census.newest(None, (), LATE)) == ["j4", "j3"]
    assert resumed(both.view).census.forgotten == census.forgotten


def tell(view: View, frames: Any) -> None:

    for service, instance, event in frames:
        subject = subjects.DECISION if service == "scheduler" else subjects.fact(service, instance)
        writer = Writer(service, instance, 1, view.seq + 1)
        view.apply(Recorded(view.seq + 1, subject, Frame(writer, (event,))))


class Said:
    """A scheduler that names these jobs, in this order."""

    def __init__(self, *names: str, away: bool = False) -> None:
        self._names, self._away = names, away

    async def ask(self, *_: Any) -> Any:
        if self._away:
            raise NobodyAnsweredError("away")
        return {"queue": [{"job": name, "position": place} for place, name in enumerate(self._names, start=1)]}


def looked(view: View, names: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return the line as a look at all who wait gives it: those who were named, then by priority and submission."""
    places = {name: place for place, name in enumerate(names)}
    jobs: list[Job] = sorted(
        (job for job in view.jobs.values() if job.waiting),
        key=lambda job: (places.get(job.id, LATE), -job.priority, job.submitted_seq),
    )
    return [(job.id, place) for place, job in enumerate(jobs, start=1)]


async def test_a_page_of_the_line_is_the_beginning_of_the_whole_line() -> None:
    both = Both()
    names = submitted(both, 9)
    for said in ((), ("j4", "gone", "j1", "j8"), tuple(reversed(names))):
        gateway: Any = SimpleNamespace(fold=SimpleNamespace(view=both.view), asker=Said(*said, away=not said))
        known = tuple(name for name in said if name in both.view.jobs)
        whole = looked(both.view, known)
        for at_most in (2, 5, 100):
            line = await in_line(gateway, at_most)
            assert [(each["job_id"], each["position"]) for each in line.first] == whole[:at_most]
            assert (line.total, line.answered_by) == (9, "scheduler" if said else "gateway")
            of_b = await in_line(gateway, at_most, "b")
            wanted = [each for each in whole if both.view.jobs[each[0]].tenant == "b"]
            assert [(each["job_id"], each["position"]) for each in of_b.first] == wanted[:at_most]
            assert of_b.total == 4
