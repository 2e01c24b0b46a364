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
    """

    grace_seconds: int = 30
    checkpoint_dir: str | None = None
    restart_seconds: int = 0


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

    The members of an `intensive` job run on one node; after `locality_wait_seconds` below one switch will do.
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

    A phase change then never needs room that is not there; what a phase does not need is lent above the floor.
    """
    cpu_millis = gpus = gpu_memory_mib = gpu_millis = 0
    for phase in spec.phases:
        minima = [(component.range_in(phase).minimum, component.replicas) for component in spec.components]
        cpu_millis = max(cpu_millis, sum(least.cpu_millis * replicas for least, replicas in minima))
        gpus = max(gpus, sum(least.gpus * replicas for least, replicas in minima))
        gpu_memory_mib = max(gpu_memory_mib, *(least.gpu_memory_mib for least, _ in minima))
        gpu_millis = max(gpu_millis, sum(least.gpu_millis * replicas for least, replicas in minima))
    memory_mib = sum(component_memory_mib(component) * component.replicas for component in spec.components)
    return Resources(cpu_millis, memory_mib, gpus, gpu_memory_mib, gpu_millis)


def component_memory_mib(component: Component) -> int:
    """Return the memory limit of one replica, in MiB: the largest minimum of its phases.

    Memory is not moved between phases yet: a limit below a working set kills, so it keeps its largest value.
    """
    return max(phase.minimum.memory_mib for phase in component.resources.values())
