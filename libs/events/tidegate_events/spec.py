"""What a job is: the specification that a user submits and that every service reads.

Only shapes live here. Whether a specification makes sense (bounds, roots, quotas) is judged once, by the gateway,
before anything is taken.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tidegate_events.resources import Resources

DEFAULT_PHASE = "default"

JobType = Literal["sampling", "learning", "mixed"]
ComponentKind = Literal["simulator", "inference", "buffer", "learner", "main"]
Isolation = Literal["trusted", "guarded", "vm", "unisolated"]
Determinism = Literal["relaxed", "strict"]
Communication = Literal["loose", "intensive"]
PhaseEntry = Literal["told", "asked"]
WidestDomain = Literal["switch", "rack"]


class _Spec(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Common options: immutable, defaults left out of the wire form, unknown fields refused."""


class ResourceRange(_Spec, frozen=True, kw_only=True):
    """What one replica needs in a phase: it never gets less than `minimum`, and more only up to `maximum`."""

    minimum: Resources = Resources()
    maximum: Resources | None = None

    @property
    def ceiling(self) -> Resources:
        """Return the maximum, which is the minimum where none was given."""
        return self.maximum if self.maximum is not None else self.minimum


class Component(_Spec, frozen=True, kw_only=True):
    """One kind of process of a job; `replicas` of them run side by side in each member's sandbox.

    Where `replicas_max` is given (for simulators only), their number may be raised up to it while there is room.
    """

    name: str
    kind: ComponentKind = "main"
    command: tuple[str, ...]
    replicas: int = 1
    resources: dict[str, ResourceRange]
    env: dict[str, str] = {}
    restart: Literal["never", "on_failure"] = "never"
    replicas_max: int | None = None

    def range_in(self, phase: str) -> ResourceRange:
        """Return the range for `phase`; a phase that is not declared uses `default`."""
        return self.resources.get(phase) or self.resources[DEFAULT_PHASE]


class RestartRule(_Spec, frozen=True, kw_only=True):
    """How often a job that failed by its own fault is tried again (its first attempt included)."""

    max_attempts: int = 1
    backoff_seconds: int = 5


class PreemptionRule(_Spec, frozen=True, kw_only=True):
    """How the job wants to be asked to leave; `checkpoint_dir` is for jobs that do not use the SDK.

    `restart_seconds` is what it takes until it is again where its checkpoint was: it counts when victims are chosen.
    `hand_back_seconds` is how long it may take to leave a phase whose lease is recalled; then it is asked to leave.
    """

    grace_seconds: int = 30
    checkpoint_dir: str | None = None
    restart_seconds: int = 0
    hand_back_seconds: int = 30


class PathBinding(_Spec, frozen=True, kw_only=True):
    """A host path below an allowed root, seen in the sandbox as `/inputs/<name>` or `/outputs/<name>`."""

    name: str
    source: str


class SourceRecord(_Spec, frozen=True, kw_only=True):
    """Where the submitted code came from, captured by the client."""

    git_commit: str = ""
    dirty_diff_digest: str = ""
    argv: tuple[str, ...] = ()


class JobSpec(_Spec, frozen=True, kw_only=True):
    """A job as accepted. Secrets are names in the tenant's store on the node; values never appear here.

    The members of an `intensive` job run on one node; after `locality_wait_seconds` below one switch will do, or in one
    rack where that is its `widest_domain`.

    Where `phase_entry` is `asked`, a member enters a phase when the scheduler granted it, and what its phase does not
    need of memory and devices is lent. One that `borrows` is guaranteed no more than its default phase needs: what
    others need beyond that is granted from what is free or lent, and may be recalled.
    """

    name: str
    tenant: str
    submitter: str
    type: JobType = "mixed"
    image: str = "host"
    workdir: str = ""
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    components: tuple[Component, ...]
    priority: int = 0
    gang_size: int = 1
    isolation: Isolation = "trusted"
    expected_seconds: int | None = None
    time_limit_seconds: int | None = None
    target_steps_per_second: int | None = None
    restart: RestartRule = RestartRule()
    preemption: PreemptionRule = PreemptionRule()
    determinism: Determinism = "relaxed"
    threads: int = 1
    seed: int = 0
    inputs: tuple[PathBinding, ...] = ()
    outputs: tuple[PathBinding, ...] = ()
    labels: dict[str, str] = {}
    source: SourceRecord = SourceRecord()
    communication: Communication = "loose"
    locality_wait_seconds: int = 0
    gpu_models: tuple[str, ...] = ()
    phase_entry: PhaseEntry = "told"
    borrows: bool = False
    widest_domain: WidestDomain = "switch"

    @property
    def phases(self) -> tuple[str, ...]:
        """Return every phase that any component declares, sorted."""
        return tuple(sorted({phase for component in self.components for phase in component.resources}))

    @property
    def main_component(self) -> Component:
        """Return the component whose exit ends the sandbox: the last learner, else the last one listed."""
        learners = [component for component in self.components if component.kind == "learner"]
        return learners[-1] if learners else self.components[-1]


def member_floor(spec: JobSpec) -> Resources:
    """Return what one member is guaranteed in every phase: the largest, over phases, of its summed minima.

    A phase change then never needs room that is not there; what a phase does not need is lent above the floor. One that
    borrows is guaranteed what its default phase needs, and no more.
    """
    if spec.borrows:
        return phase_need(spec, DEFAULT_PHASE)
    floor = Resources()
    for phase in spec.phases:
        floor = floor.ceiling(phase_need(spec, phase))
    memory_mib = sum(component_memory_mib(component) * component.replicas for component in spec.components)
    return Resources(floor.cpu_millis, memory_mib, floor.gpus, floor.gpu_memory_mib, floor.gpu_millis)


def phase_need(spec: JobSpec, phase: str) -> Resources:
    """Return what one member needs in a phase: the sum of the minima of its replicas."""
    need = Resources()
    for component in spec.components:
        need = need.plus(component.range_in(phase).minimum.times(component.replicas))
    return need


def component_memory_mib(component: Component) -> int:
    """Return the memory of one replica, in MiB, that is enough in all phases: the largest minimum of them.

    It is the limit of a job whose phases are told: a limit below a working set kills, so it keeps its largest value.
    """
    return max([phase.minimum.memory_mib for phase in component.resources.values()])
