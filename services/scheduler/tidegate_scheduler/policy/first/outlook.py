"""What explanations ask of policy 1: the line is by priority and submission, and a blocked job closes its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tidegate_events.events import Reason
from tidegate_events.resources import Resources

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.isolation import isolates
from tidegate_scheduler.policy.first import fit
from tidegate_scheduler.policy.first.forecast import forecast
from tidegate_scheduler.policy.first.pipeline import Turn, turn_of
from tidegate_scheduler.policy.first.queue import rank
from tidegate_scheduler.policy.first.room import Space
from tidegate_scheduler.policy.outlook import FITS, NOT_CONSIDERED, Counts, Start, Verdict
from tidegate_scheduler.state import Job, Node, State


class FirstOutlook:
    """The answers of policy 1 about `state` at `now_ns`."""

    def __init__(self, state: State, now_ns: int) -> None:
        self._state = state
        self._now_ns = now_ns
        self._line = sorted((job for job in state.jobs.values() if job.waiting), key=rank)

    @property
    def total(self) -> int:
        """Return how many jobs wait."""
        return len(self._line)

    def in_line(self, at_most: int) -> list[Job]:
        """Return the first jobs in line."""
        return self._line[:at_most]

    def position(self, job: Job) -> int:
        """Return the job's place in line, from 1."""
        return self._line.index(job) + 1

    def reasons(self, job: Job, waiting: Mapping[str, Reason]) -> tuple[Reason, ...]:
        """Return what the last pass said."""
        return (waiting.get(job.id, NOT_CONSIDERED),)

    def counts(self, waiting: Mapping[str, Reason]) -> Counts:
        """Return how many jobs wait, by tenant and reason."""
        return Counter((job.tenant, waiting.get(job.id, NOT_CONSIDERED).code) for job in self._line)

    def starts(self, at_most: int) -> dict[str, Start]:
        """Return the earliest starts that are known."""
        return forecast(self._state, self._line[:at_most], self._now_ns)

    def start(self, job: Job) -> Start | None:
        """Return the end of the job's pause after a failure."""
        return Start(job.not_before_ns, "backoff") if job.not_before_ns > self._now_ns else None

    def never(self, job: Job) -> Reason | None:
        """Return that no node could hold the job."""
        if not self._state.nodes or not fit.Suitable(self._state).hopeless(job):
            return None
        return Reason(code="Inadmissible", detail="larger than the cluster, or no node offers what it asks for")

    def verdicts(self, job: Job) -> tuple[Verdict, ...]:
        """Return what every node means for the job, by name."""
        turn = turn_of(Draft(self._state, self._now_ns), job.id)
        eligible = {node.name for node in fit.Suitable(self._state).eligible(job)}
        return tuple(_verdict(self._state, job, node, turn, eligible) for _, node in sorted(self._state.nodes.items()))


def _verdict(state: State, job: Job, node: Node, turn: Turn, eligible: set[str]) -> Verdict:
    unsuited = _unsuited(state, job, node)
    if unsuited is not None:
        return unsuited
    if node.status != "up":
        return Verdict(node.name, "NodeAway", f"it is {node.status}")
    if node.zombies:
        held = ", ".join(sorted({zombie.job for zombie in node.zombies}))
        return Verdict(node.name, "Leftovers", f"it still has to end what was given up: {held}")
    if node.name not in eligible:
        return Verdict(node.name, "Excluded", "it refused this job before, and others may take it")
    ahead = turn.closed.get(node.name)
    if ahead is not None and not (node.name in job.reserved_nodes and ahead.priority == job.priority):
        return Verdict(node.name, "Priority", f"{ahead.id} is in front", {"priority": ahead.priority})
    space = turn.room.now_for(job, node.name)
    numbers = _compared(state.floors[job.id], space)
    return Verdict(node.name, FITS if space.takes(state.floors[job.id]) else "Resources", numbers=numbers)


def _unsuited(state: State, job: Job, node: Node) -> Verdict | None:
    spec, need = state.specs[job.id], state.floors[job.id]
    if spec.isolation not in node.levels:
        return Verdict(node.name, "Isolation", f"it offers {', '.join(node.levels) or 'none'}, not {spec.isolation}")
    if not isolates(node, spec.isolation, (need,)):
        return Verdict(node.name, "Isolation", f"it passes no GPU at {spec.isolation}")
    if spec.image not in node.images and spec.image not in node.images.values():
        return Verdict(node.name, "Image", f"it has no image {spec.image}")
    empty = fit.empty_space(node)
    if not empty.takes(need):
        return Verdict(node.name, "TooSmall", "it could not hold a member were it empty", _compared(need, empty))
    return None


def _compared(need: Resources, space: Space) -> dict[str, int]:
    numbers = {
        "cpu_millis_needed": need.cpu_millis,
        "cpu_millis_free": space.cpu_millis,
        "memory_mib_needed": need.memory_mib,
        "memory_mib_free": space.memory_mib,
    }
    if need.gpus:
        numbers |= {"gpus_needed": need.gpus, "gpus_free": space.gpu_count}
    return numbers
