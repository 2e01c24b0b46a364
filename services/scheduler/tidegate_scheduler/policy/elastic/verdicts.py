"""What each node means for a waiting job when its turn comes in a pass, with the numbers: for explanations."""

from __future__ import annotations

import numpy as np

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.isolation import isolates
from tidegate_scheduler.policy.elastic.at_rest import AtRest
from tidegate_scheduler.policy.elastic.causes import closed_code, closing
from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS, accepts
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.offered import may_get
from tidegate_scheduler.policy.elastic.pipeline import _Pass
from tidegate_scheduler.policy.elastic.queue import Turn
from tidegate_scheduler.policy.elastic.shapes import Fit, Shape
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, MEMORY, SHARE
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.outlook import FITS, Verdict
from tidegate_scheduler.state import Job, Node


def verdicts(draft: Draft, index: Index, job: Job) -> tuple[Verdict, ...]:
    """Return what every node means for `job` in the pass that `decide` would make of the same draft, by name."""
    trial = Trial(index)
    try:
        stages = _UntilTurn(draft, trial, job.id)
        stages.settle()
        stages.place_waiting()
        trial.withdraw(job)
        return _Verdicts(draft, trial, job).all()
    finally:
        trial.undo()


class _UntilTurn(_Pass):
    """A pass up to the turn of one job; the whole pass where it has no turn."""

    def __init__(self, draft: Draft, trial: Trial, until: str) -> None:
        super().__init__(draft, trial)
        self.at_rest = AtRest()  # it tries some only
        self._until = until
        self._reached = False

    def _ask(self, job: Job, turn: Turn) -> bool:
        self._reached = self._reached or job.id == self._until
        return not self._reached and super()._ask(job, turn)


class _Verdicts:
    """Judges every node for one job, with the tables as its turn finds them."""

    def __init__(self, draft: Draft, trial: Trial, job: Job) -> None:
        self._state = draft.state
        self._trial = trial
        self._job = job
        self._table = trial.index.table
        self._shape: Shape = trial.index.line_key(job).shape
        self._fit: Fit = trial.index.fit(self._shape)
        rows = np.arange(len(self._table))
        self._empty = self._fit.holds_empty()
        self._free = self._fit.members(self._table.free, rows, "free")
        self._now = self._fit.members(self._table.now, rows)
        windows = closing(trial.index, job, draft.now_ns)
        self._window = {name: window.name for window in windows for name in window.nodes}
        self._together = self._table.sites.numbers("rack" if self._shape.rack_wide else "switch")
        self._below: dict[int, int] = {}
        for row in rows:
            number = int(self._together[row])
            self._below[number] = self._below.get(number, 0) + int(self._now[row])

    def all(self) -> tuple[Verdict, ...]:
        """Return the verdicts, by name."""
        return tuple(self._of(node) for _, node in sorted(self._state.nodes.items()))

    def _of(self, node: Node) -> Verdict:
        row = self._table.rows[node.name]
        if not self._empty[row]:
            return self._unsuited(node, row)
        if code := closed_code(node):
            return self._closed(node, code)
        if node.name in self._job.excluded_nodes:
            return Verdict(node.name, "Excluded", "it refused this job before, and others may take it")
        if node.name in self._window:
            return Verdict(node.name, "Maintenance", f"the job might still run there then: {self._window[node.name]}")
        return self._room(node, row)

    @staticmethod
    def _closed(node: Node, code: str) -> Verdict:
        if code == "NodeDrained":
            return Verdict(node.name, code, "it is drained", {"deadline_ns": node.drain_deadline_ns})
        if code == "NodeCordoned":
            detail = "it is cordoned, for jobs kept failing there"
            return Verdict(node.name, code, detail, {"failures": len(node.failures)})
        if code == "Leftovers":
            held = ", ".join(sorted({zombie.job for zombie in node.zombies}))
            return Verdict(node.name, code, f"it still has to end what was given up: {held}")
        return Verdict(node.name, code, f"it is {node.status}")

    def _room(self, node: Node, row: int) -> Verdict:
        """Say what the room on an open node is for the job."""
        numbers = self._compared(row)
        size, holds = self._shape.gang_size, int(self._now[row])
        if not holds and self._free[row]:
            kept = [self._state.jobs[name] for name, rows in self._trial.promises.items() if row in rows]
            front = ", ".join(other.id for other in kept) or "one that is placed before"
            numbers |= {"priority": max(other.priority for other in kept)} if kept else {}
            return Verdict(node.name, "Priority", f"the room is kept for {front}", numbers)
        if not holds:
            return Verdict(node.name, "Resources", numbers=numbers)
        if size == 1:
            return Verdict(node.name, FITS, numbers=numbers)
        numbers |= {"members_needed": size, "members_fit": holds}
        if self._shape.intensive and holds < size:
            together = self._below[int(self._together[row])]
            if together < size:
                where = "rack" if self._shape.rack_wide else "switch"
                numbers["members_fit_in_rack" if self._shape.rack_wide else "members_fit_below_switch"] = together
                return Verdict(node.name, "GangTopology", f"neither it nor its {where} has room for all", numbers)
        return Verdict(node.name, FITS, numbers=numbers)

    def _unsuited(self, node: Node, row: int) -> Verdict:
        """Say why not even an empty node could hold a member."""
        shape, need = self._shape, self._shape.need
        if shape.isolation not in node.levels:
            offered = ", ".join(node.levels) or "none"
            return Verdict(node.name, "Isolation", f"it offers {offered}, not {shape.isolation}")
        if not isolates(node, shape.isolation, shape.needs):
            passing = ", ".join(node.gpu_levels or ()) or "no level"
            return Verdict(node.name, "Isolation", f"it passes GPUs at {passing}, not at {shape.isolation}")
        if shape.image not in node.images and shape.image not in node.images.values():
            return Verdict(node.name, "Image", self._without_image(row))
        if shape.cpu_model and node.cpu_model != shape.cpu_model:
            return Verdict(node.name, "CpuModel", f"it is {node.cpu_model or 'unknown'}, not {shape.cpu_model}")
        accepted = sum(accepts(gpu, need, shape.gpu_models) for gpu in node.gpus)
        if accepted < (need.gpus or bool(need.gpu_millis)) and accepted < len(node.gpus):
            models = ", ".join(sorted({gpu.model for gpu in node.gpus}))
            numbers = {"gpus_needed": need.gpus or 1, "gpus_accepted": accepted}
            return Verdict(node.name, "DeviceModel", f"it has {models}", numbers)
        kind = self._table.kinds[row]
        room = (kind.cpu_millis, kind.memory_mib, len(node.gpus), 0)
        return Verdict(node.name, "TooSmall", "it could not hold a member were it empty", self._against(room))

    def _without_image(self, row: int) -> str:
        """Say that a node lacks the image, and whether it may come to it."""
        kind, image = self._table.kinds[row], self._shape.image
        if image in kind.unavailable:
            return f"it could not get the image {image}"
        return f"it has no image {image}" + (", which it may get" if may_get(kind, image) else ", and fetches none")

    def _compared(self, row: int) -> dict[str, int]:
        now = [max(0, int(each)) for each in self._table.now[:, row]]
        return self._against((now[CPU], now[MEMORY], now[GPUS], now[SHARE]))

    def _against(self, room: tuple[int, int, int, int]) -> dict[str, int]:
        need = self._shape.need
        numbers = {
            "cpu_millis_needed": need.cpu_millis,
            "cpu_millis_free": room[CPU],
            "memory_mib_needed": need.memory_mib,
            "memory_mib_free": room[MEMORY],
        }
        if need.gpus:
            numbers |= {"gpus_needed": need.gpus, "gpus_free": room[GPUS]}
        if need.gpu_millis:
            free_millis = WHOLE_MILLIS if room[GPUS] else room[SHARE]
            numbers |= {"gpu_millis_needed": need.gpu_millis, "gpu_millis_free": free_millis}
        return numbers
