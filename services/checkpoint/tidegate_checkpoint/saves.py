"""Saves of gangs on several nodes: which parts there are, and what is to be done next. A pure fold of the journal.

A save is begun by the first word about it and ended by the first CheckpointSaved or CheckpointFailed that names it;
what comes later is void. It is joined when every node's part is in a tier that nodes share, and vetoed when a node has
none, when a member left before its node's part was stored, when a node was lost before its part was promoted, when a
node told of two parts (a process of it began again: it may hold something else), or when it takes too long. It must
not read a clock or a file.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from tidegate.checkpoint.occasions import ANSWER_SECONDS_MAX, JOIN_SECONDS_MAX
from tidegate_events import events as e
from tidegate_events.contract import may_say
from tidegate_events.frame import Writer

DECIDED_PER_JOB_MAX = 64
"""Decided saves kept of a job: for agents that still ask."""
UNDECIDED_PER_JOB_MAX = 256
"""A job that begins more than that at once has the oldest of them vetoed."""
TAKEOVER_SECONDS = ANSWER_SECONDS_MAX / 2
"""So much later than it is due anybody gives up a save that the service of rank 0's node does not decide."""

Outcome = Literal["", "joined", "vetoed"]


class Part(msgspec.Struct, frozen=True):
    """What one node stored, and the tier in which it is by now (empty: only on the node)."""

    node: str
    ranks: tuple[int, ...]
    ref: e.CheckpointRef
    tier: str = ""


class Save(msgspec.Struct, kw_only=True):
    """One save. `begun` is the first event about it; `failure` is why it is to be vetoed."""

    key: str
    begun: e.CheckpointPartSaved | e.CheckpointPartFailed
    parts: dict[str, Part] = {}
    failure: e.Reason | None = None
    outcome: Outcome = ""
    joined: e.CheckpointSaved | None = None
    vetoed: e.Reason | None = None

    @property
    def job(self) -> str:
        """Return the id of the job."""
        return self.begun.job

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes whose parts make the whole, that of rank 0 first."""
        return self.begun.nodes

    @property
    def step(self) -> int:
        """Return the step at which it was saved, as its name says."""
        return int(self.key.partition("-")[0])

    @property
    def all_parts(self) -> list[Part]:
        """Return the parts there are, in the order of their nodes."""
        return [self.parts[node] for node in self.nodes if node in self.parts]

    @property
    def ready(self) -> bool:
        """Say whether every part is where nodes share it."""
        return all(node in self.parts and self.parts[node].tier for node in self.nodes)

    def lacking(self) -> str:
        """Say in words what it waits for."""
        unsaid = [node for node in self.nodes if node not in self.parts]
        unsent = [node for node in self.nodes if node in self.parts and not self.parts[node].tier]
        said = [f"node {', '.join(unsaid)} stored no part"] if unsaid else []
        said += [f"the part of node {', '.join(unsent)} did not reach a shared tier"] if unsent else []
        return "; ".join(said)


class Saves:
    """All saves of the jobs that have not ended, as far as the journal says."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, Save]] = {}
        self._undecided: dict[tuple[str, str], Save] = {}

    def apply(self, writer: Writer, event: e.Event) -> None:
        """Fold the next event."""
        if not may_say(writer, event):
            return
        match event:
            case e.CheckpointPartSaved():
                self._on_saved(event)
            case e.CheckpointPartFailed():
                self._on_failed(event)
            case e.CheckpointPartPromoted():
                self._on_promoted(event)
            case e.CheckpointSaved() | e.CheckpointFailed() if event.save and writer.service == "checkpoint":
                self._on_decided(event)
            case e.SandboxExited():
                self._on_exited(event)
            case e.NodeLost():
                self._on_node_lost(event)
            case e.JobCompleted() | e.JobFailed() | e.JobCancelled() | e.JobRejected():
                self._forget_job(event.job)

    def _begun(self, event: e.CheckpointPartSaved | e.CheckpointPartFailed) -> Save | None:
        """Return the save that an event is about, None where it is decided or the event is of no use."""
        if event.save.split("-")[1:2] != [str(event.attempt)] or event.node not in event.nodes:
            return None
        of_job = self._jobs.setdefault(event.job, {})
        save = of_job.get(event.save)
        if save is None:
            save = of_job[event.save] = self._undecided[event.job, event.save] = Save(key=event.save, begun=event)
            self._bound(event.job)
        if save.outcome:
            return None
        if event.nodes != save.nodes or event.tenant != save.begun.tenant:
            self._fail(save, "OtherGang", f"nodes {', '.join(event.nodes)} were named beside {', '.join(save.nodes)}")
        return save

    def _on_saved(self, event: e.CheckpointPartSaved) -> None:
        save = self._begun(event)
        if save is None:
            return
        before = save.parts.get(event.node)
        if before is None:
            save.parts[event.node] = Part(event.node, event.ranks, event.part)
        elif before.ref.id != event.part.id:
            self._fail(save, "StoredTwice", f"node {event.node} stored two parts: a process there began again")

    def _on_failed(self, event: e.CheckpointPartFailed) -> None:
        if (save := self._begun(event)) is not None:
            said = f"rank {event.rank} on node {event.node}: {event.reason.detail}"
            self._fail(save, event.reason.code, said)

    def _on_promoted(self, event: e.CheckpointPartPromoted) -> None:
        save = self.find(event.job, event.save)
        part = save.parts.get(event.node) if save else None
        if save is not None and part is not None and not save.outcome and part.ref.id == event.part_id:
            save.parts[event.node] = msgspec.structs.replace(part, tier=event.tier)

    def _on_decided(self, event: e.CheckpointSaved | e.CheckpointFailed) -> None:
        save = self.find(event.job, event.save)
        if save is None or save.outcome:
            return
        if isinstance(event, e.CheckpointSaved):
            save.outcome, save.joined = "joined", event
        else:
            save.outcome, save.vetoed = "vetoed", event.reason
        del self._undecided[event.job, event.save]
        of_job = self._jobs[event.job]
        decided = [each.key for each in of_job.values() if each.outcome]
        for old in decided[:-DECIDED_PER_JOB_MAX]:
            del of_job[old]

    def _on_exited(self, event: e.SandboxExited) -> None:
        for save in self._of(event.job):
            if save.begun.attempt == event.attempt and event.node in save.nodes and event.node not in save.parts:
                said = f"rank {event.rank} on node {event.node} ended before the part there was stored"
                self._fail(save, "MemberEnded", said)

    def _on_node_lost(self, event: e.NodeLost) -> None:
        for save in self.undecided():
            part = save.parts.get(event.node)
            if event.node in save.nodes and (part is None or not part.tier):
                self._fail(save, "NodeLost", f"node {event.node} was lost before its part was in a shared tier")

    def _fail(self, save: Save, code: str, detail: str) -> None:
        """Remember the first failure: it is the one that is told."""
        if save.failure is None:
            save.failure = e.Reason(code=code, detail=detail)

    def _bound(self, job: str) -> None:
        open_saves = [save for save in self._of(job) if save.failure is None]
        for save in open_saves[:-UNDECIDED_PER_JOB_MAX]:
            self._fail(save, "TooMany", f"more than {UNDECIDED_PER_JOB_MAX} saves of the job were begun and not ended")

    def _forget_job(self, job: str) -> None:
        for key in self._jobs.pop(job, {}):
            self._undecided.pop((job, key), None)

    def _of(self, job: str) -> list[Save]:
        return [save for save in self._jobs.get(job, {}).values() if not save.outcome]

    def undecided(self) -> list[Save]:
        """Return the saves that are neither joined nor vetoed, the oldest first."""
        return list(self._undecided.values())

    def find(self, job: str, key: str) -> Save | None:
        """Return a save; None where nothing was said of it, or it is forgotten."""
        return self._jobs.get(job, {}).get(key)


def is_decided(saves: Saves, save: Save) -> bool:
    """Say whether nothing is left to decide about a save: it is decided, or its job has ended."""
    known = saves.find(save.job, save.key)
    return known is None or bool(known.outcome)


def veto(save: Save, node: str, now_ns: int) -> e.Reason | None:
    """Return why the service of `node` (empty: of all) is to veto a save now, None where it is not."""
    leads = node in ("", save.nodes[0])
    if leads and save.failure is not None:
        return save.failure
    age_seconds = (now_ns - save.begun.at_ns) / 1e9
    if age_seconds <= JOIN_SECONDS_MAX + (0 if leads else TAKEOVER_SECONDS):
        return None
    said = save.lacking() or f"node {save.nodes[0]} did not join the parts"
    return e.Reason(code="TooLate", detail=f"not within {JOIN_SECONDS_MAX:.0f} s: {said}")


def to_join(save: Save, node: str) -> bool:
    """Say whether the service of `node` is to join the parts now."""
    return node in ("", save.nodes[0]) and save.failure is None and save.ready


def to_promote(save: Save, node: str) -> list[Part]:
    """Return the parts that the service of `node` is to bring to a shared tier."""
    if save.failure is not None:
        return []
    return [part for part in save.parts.values() if not part.tier and node in ("", part.node)]
