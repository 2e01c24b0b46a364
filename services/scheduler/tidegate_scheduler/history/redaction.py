"""Takes out of events and state what may be private, and leaves what decisions are made of.

Job ids, tenants, resources, priorities, images, names of nodes, components, phases and maintenance windows, and all
times stay. What users wrote, what their code said, where it came from and who they are goes, and every digest over it:
a digest of something short tells whoever guesses it. Redacting twice changes nothing more, so redacted decisions can be
compared with recomputed ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from tidegate_events import events as e
from tidegate_events import spec as s
from tidegate_events.frame import KINDS, Frame

from tidegate_scheduler.draft import PASS_BYTES_MAX
from tidegate_scheduler.snapshot import decode_snapshot, encode_snapshot
from tidegate_scheduler.state import Exit, Job, State

# The very default, which is left out of the wire form: one that only equals it is not.
_NO_SOURCE = s.JobSpec(name="", tenant="", submitter="", components=()).source
Field = tuple[type[msgspec.Struct], str]
T = TypeVar("T")


def _blank(_value: Any) -> str:
    return ""


def _blank_if_there(value: str | None) -> str | None:
    return None if value is None else ""


def _names_only(value: dict[str, str]) -> dict[str, str]:
    return dict.fromkeys(value, "")


REMOVED: dict[Field, Callable[[Any], Any]] = {
    (s.JobSpec, "name"): _blank,
    (s.JobSpec, "submitter"): _blank,
    (s.JobSpec, "workdir"): _blank,
    (s.JobSpec, "env"): _names_only,
    (s.JobSpec, "secrets"): lambda _: {},
    (s.JobSpec, "inputs"): lambda _: (),
    (s.JobSpec, "outputs"): lambda _: (),
    (s.JobSpec, "labels"): lambda _: {},
    (s.JobSpec, "source"): lambda _: _NO_SOURCE,
    (s.Component, "command"): lambda _: (),
    (s.Component, "env"): _names_only,
    (s.PreemptionRule, "checkpoint_dir"): _blank_if_there,
    (e.Reason, "detail"): _blank,
    (e.CheckpointRef, "directory"): _blank,
    (e.CheckpointRef, "layers"): lambda _: (),
    (e.CheckpointRef, "lost"): lambda _: (),
    (e.CancelRequested, "actor"): _blank,
    **{
        (kind, name): _blank
        for kind in KINDS.values()
        if "note" in kind.__struct_fields__
        for name in ("actor", "note")
    },
    (e.NodeJoined, "address"): _blank,
    (e.SandboxExited, "detail"): _blank,
    (e.SandboxExited, "result"): lambda _: {},
    (e.JobCompleted, "result"): lambda _: {},
    (e.DecisionPass, "state_digest"): _blank,
    (e.GenerationOpened, "sealed_digest"): _blank,
    (e.GenerationOpened, "state_digest"): _blank,
}
"""What is taken out of each record, wherever it stands."""


def redact(value: T) -> T:
    """Return an event, or anything that stands in one, without what REMOVED names."""
    return _redacted(value)  # type: ignore[no-any-return]


def _redacted(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        kind = type(value)
        changes = {}
        for name in kind.__struct_fields__:
            before = getattr(value, name)
            remove = REMOVED.get((kind, name))
            after = _redacted(before) if remove is None else remove(before)
            if after is not before:
                changes[name] = after
        return msgspec.structs.replace(value, **changes) if changes else value
    if isinstance(value, tuple):
        parts = tuple(_redacted(part) for part in value)
        return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
    if isinstance(value, dict):
        entries = {key: _redacted(part) for key, part in value.items()}
        return value if all(entries[key] is value[key] for key in value) else entries
    return value


def redact_frame(frame: Frame) -> Frame:
    """Return the frame with redacted events; its writer, and so its place in history, stays."""
    return Frame(frame.writer, tuple(redact(event) for event in frame.events))


def redact_state(state: State) -> State:
    """Return a copy of the state with nothing in it that `redact` would have removed from the events it came from."""
    made = decode_snapshot(encode_snapshot(state))
    for job in made.jobs.values():
        _redact_job(job)
        job.spec_digest = made.remember_spec(job.id, redact(made.specs[job.id]))
        made.touch(f"job/{job.id}")
    for node in made.nodes.values():
        node.address = ""
        made.touch(f"node/{node.name}")
    for job_id, spec in list(made.specs.items()):
        made.remember_spec(job_id, redact(spec))
    return made


def _redact_job(job: Job) -> None:
    job.result = {}
    job.checkpoints = [redact(checkpoint) for checkpoint in job.checkpoints]
    job.resumed_from = redact(job.resumed_from)
    for member in job.members:
        if member.exit is not None:
            end = member.exit
            member.exit = Exit(end.exit_code, end.signal, end.oom, end.last_step, detail="")


_encoder = msgspec.json.Encoder()


def is_cut(frame: Frame) -> bool:
    """Say whether a pass ended for its size, which the texts count into: without them it would have gone on."""
    return sum(len(_encoder.encode(event)) for event in frame.events[1:]) >= PASS_BYTES_MAX
