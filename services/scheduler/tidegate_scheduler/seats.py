"""Who is on which node, and which nodes have zombies of which job: derived from the state, and not digested.

Both follow the state by what it says of itself to have changed (`State.touch`), and are brought up to date when they
are asked. So a fact about one node costs what is on that node, and not a look at all jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_events.seating import Seating

if TYPE_CHECKING:
    from tidegate_scheduler.state import Job, Node, State

UNSEATED_MAX = 20_000
"""Jobs that may have changed before they are looked at, though nobody asks: replays of quiet histories stay small."""

PREFIX_CHARS = len("job/")


class Seats:
    """By node the jobs whose current attempt has a member there, whether it is active still or not."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.changed: dict[str, None] = {}
        """The keys of jobs that changed, came or went, put here by `State.touch`: every event does, so at no cost."""

        self._seating = Seating()
        self._newest_seq = -1
        self._first = ""
        self._numbered = 0
        self._places: dict[str, int] = {}
        """Of the jobs that were submitted in one frame, the places of all but the first."""

    def tidy(self) -> None:
        """Look at what changed though nobody asks; called between events, when jobs are whole."""
        self._catch_up()

    def on(self, node: str) -> list[Job]:
        """Return the jobs on the node in the order of their submission, in which the state's table holds them."""
        self._catch_up()
        there = [self._state.jobs[name] for name in self._seating.on(node)]
        return sorted(there, key=lambda job: (job.submitted_seq, self._places.get(job.id, 0)))

    def nodes_of(self, job: str) -> tuple[str, ...]:
        """Return the nodes of the job's members, in the order of the members."""
        self._catch_up()
        return self._seating.nodes_of.get(job, ())

    def _catch_up(self) -> None:
        if not self.changed:
            return
        jobs, seating = self._state.jobs, self._seating
        for key in self.changed:
            name = key[PREFIX_CHARS:]
            job = jobs.get(name)
            if job is not None:
                if job.submitted_seq >= self._newest_seq:
                    self._place(job)
                if job.members:
                    seating.seat(name, tuple(dict.fromkeys([member.node for member in job.members])))
                    continue
            elif self._places:
                self._places.pop(name, None)
            if name in seating.nodes_of:
                seating.seat(name, ())
        self.changed.clear()

    def _place(self, job: Job) -> None:
        """Number the jobs of one frame: they change for the first time in the order in which they were submitted."""
        if job.submitted_seq > self._newest_seq:
            self._newest_seq, self._first = job.submitted_seq, job.id
        elif job.submitted_seq == self._newest_seq and job.id != self._first and job.id not in self._places:
            self._numbered += 1
            self._places[job.id] = self._numbered


class Zombies:
    """By job the nodes that have sandboxes of it which belong to no current attempt."""

    def __init__(self) -> None:
        self._seating = Seating()
        """A node's name stands in it for who is there, and a job for where: it is the same both ways round."""

    def note(self, name: str, node: Node | None) -> None:
        """Take note of what is on the node now; None: it is gone."""
        jobs = tuple(dict.fromkeys(zombie.job for zombie in node.zombies)) if node is not None else ()
        self._seating.seat(name, jobs)

    def nodes_with(self, job: str) -> tuple[str, ...]:
        """Return the nodes that still have sandboxes of the job."""
        return self._seating.on(job)
