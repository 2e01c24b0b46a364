"""The records that events carry: not events themselves, but part of the wire form, so under the same rules."""

from __future__ import annotations

import msgspec


class _Part(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """Common options of the records inside events."""


class Reason(_Part, frozen=True, kw_only=True):
    """Why a decision was taken: a stable code and the numbers behind it."""

    code: str
    detail: str = ""
    numbers: dict[str, int] = {}


class Quota(_Part, frozen=True, kw_only=True):
    """The limits of **each** replica of one component, and how many of them run (None: as the job says)."""

    component: str
    cpu_millis: int
    memory_mib: int
    replicas: int | None = None


class MemberPlacement(_Part, frozen=True, kw_only=True):
    """Where one member of a job runs, and with what."""

    rank: int
    node: str
    incarnation: int
    quotas: tuple[Quota, ...]
    gpu_indices: tuple[int, ...] = ()


class LayerRef(_Part, frozen=True, kw_only=True):
    """One layer of a checkpoint: its name, the digest of its bytes and their number."""

    name: str
    digest: str
    size_bytes: int


class CheckpointRef(_Part, frozen=True, kw_only=True):
    """A committed checkpoint: `directory` is the name of its root in the job's store; `lost` are layers that were to be
    saved and were not, because the time before a deadline was too short."""

    id: str
    step: int
    attempt: int
    directory: str
    layers: tuple[LayerRef, ...] = ()
    lost: tuple[str, ...] = ()


class HeldSandbox(_Part, frozen=True, kw_only=True):
    """A sandbox that a node still holds when its agent (re)starts."""

    job: str
    attempt: int
    rank: int
