"""What is private leaves no trace in a redacted bundle, and what is left still proves its decisions."""

from __future__ import annotations

from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events import spec as s
from tidegate_events.frame import KINDS, Frame
from tidegate_events.journal.archive import ArchiveDamagedError, read_archive, read_snapshot
from tidegate_events.journal.base import Recorded
from tidegate_events.resources import Resources
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.history.carrying import bundle, cut
from tidegate_scheduler.history.commands.proving import as_text, prove
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.redaction import REMOVED, is_cut, redact, redact_frame, redact_state
from tidegate_scheduler.history.source import FileSource, open_file
from tidegate_scheduler.history.verification import Verification
from tidegate_scheduler.snapshot import decode_snapshot
from tidegate_scheduler.state import State

from tests.scheduler.history.files import history_in, told, write
from tests.support.cluster import Cluster, spec

CANARY = "canary-"

# Texts that stay, each for its reason: without them nothing could be decided, told apart, or understood.
KEPT = {
    *(("Event", name) for name in ("id", "cause")),
    *(("JobEvent", name) for name in ("tenant", "job", "traceparent")),
    ("Reason", "code"), ("Reason", "numbers"),
    ("Quota", "component"),
    ("MemberPlacement", "node"),
    ("CheckpointRef", "id"),
    ("HeldSandbox", "job"),
    ("JobSpec", "tenant"), ("JobSpec", "type"), ("JobSpec", "image"), ("JobSpec", "isolation"),
    ("JobSpec", "determinism"), ("JobSpec", "communication"), ("JobSpec", "widest_domain"), ("JobSpec", "gpu_models"),
    ("Component", "name"), ("Component", "kind"), ("Component", "resources"), ("Component", "restart"),
    ("NodeJoined", "node"), ("NodeJoined", "levels"), ("NodeJoined", "images"), ("NodeJoined", "cpu_model"),
    ("NodeJoined", "gpu_levels"), ("NodeJoined", "isa"), ("NodeJoined", "rack"), ("NodeJoined", "switch"),
    ("GpuDevice", "uuid"), ("GpuDevice", "model"),
    ("PlacementRejected", "node"),
    ("SandboxStarted", "node"), ("SandboxStarted", "level"), ("SandboxStarted", "image_digest"),
    ("SandboxExited", "node"), ("SandboxExited", "outcome"),
    ("PhaseChanged", "phase"), ("PhaseRequested", "phase"), ("QuotaChanged", "phase"), ("JobSpec", "phase_entry"),
    ("QuotaApplied", "node"), ("ShrinkRefused", "node"), ("HandBackFailed", "phase"),
    ("CheckpointSaved", "node"), ("CheckpointSaved", "tier"), ("CheckpointSaved", "save"),
    ("CheckpointFailed", "stage"), ("CheckpointFailed", "checkpoint_id"), ("CheckpointFailed", "save"),
    ("CheckpointVerified", "checkpoint_id"),
    ("CheckpointPartSaved", "node"), ("CheckpointPartSaved", "save"), ("CheckpointPartSaved", "nodes"),
    ("CheckpointPartFailed", "node"), ("CheckpointPartFailed", "save"), ("CheckpointPartFailed", "nodes"),
    ("CheckpointPartPromoted", "node"), ("CheckpointPartPromoted", "save"), ("CheckpointPartPromoted", "part_id"),
    ("CheckpointPartPromoted", "tier"),
    ("LeaderElected", "instance"),
    ("PolicyChanged", "parameters"),
    ("DecisionPass", "core"),
    ("GenerationOpened", "snapshot"),
    ("NodeUnreachable", "node"), ("NodeReachable", "node"), ("NodeLost", "node"),
    ("NodeCordoned", "node"), ("ImagePrefetchHinted", "node"), ("ImagePrefetchHinted", "image"),
    ("ImageCached", "node"), ("ImageCached", "image"), ("ImageCached", "digest"),
    ("ImageEvicted", "node"), ("ImageEvicted", "image"), ("ImageEvicted", "digest"),
    ("ImageUnavailable", "node"), ("ImageUnavailable", "image"),
    ("NodeImagesChanged", "node"), ("NodeImagesChanged", "images"), ("NodeImagesChanged", "unavailable"),
    ("NodeDrainRequested", "node"), ("NodeResumeRequested", "node"),
    ("NodeForgetRequested", "node"), ("NodeForgotten", "node"),
    ("QueueChanged", "tenant"),
    ("MaintenancePlanned", "name"), ("MaintenancePlanned", "nodes"), ("MaintenanceCancelled", "name"),
    ("RoomReserved", "nodes"),
    ("PreemptRequested", "for_job"), ("HandBackRequested", "for_job"), ("JobPlaced", "backfills"),
    ("JobResumed", "checkpoint_id"), ("JobSuspended", "checkpoint_id"), ("JobRequeued", "outcome"),
}  # fmt: skip


def _parts(hint: Any) -> set[Any]:
    """Return the types that stand in a type hint."""
    if get_origin(hint) in (Union, UnionType, tuple, dict, list):
        return {part for argument in get_args(hint) for part in _parts(argument)}
    if get_origin(hint) is not None:  # a Literal is made of texts
        return {str}
    return {hint}


def text_fields() -> set[tuple[str, str]]:
    """Return every field of every event that holds a text and is not removed, by the record that declares it."""
    found: set[tuple[str, str]] = set()
    to_see: list[type[msgspec.Struct]] = list(KINDS.values())
    seen: set[type] = set()
    while to_see:
        kind = to_see.pop()
        if kind in seen:
            continue
        seen.add(kind)
        for name, hint in get_type_hints(kind).items():
            if (kind, name) in REMOVED or name.startswith("__"):
                continue
            parts = _parts(hint)
            to_see += [part for part in parts if isinstance(part, type) and issubclass(part, msgspec.Struct)]
            if str in parts:
                owner = next(base for base in reversed(kind.__mro__) if name in getattr(base, "__annotations__", {}))
                found.add((owner.__name__, name))
    return found


def test_every_text_of_every_event_is_removed_or_kept_on_purpose() -> None:
    # A new kind or a new field lands here: decide whether it may be private.
    assert text_fields() == KEPT


def a_secretive_spec(**more: Any) -> s.JobSpec:
    """A job with something private in every place where a user can write."""
    numbered = iter(range(100))

    def canary() -> str:
        return f"{CANARY}{next(numbered)}"

    component = s.Component(
        name="main",
        command=(canary(), canary()),
        env={"TOKEN": canary()},
        resources={"default": s.ResourceRange(minimum=Resources(1500, 512))},
    )
    return s.JobSpec(
        name=canary(),
        tenant="t",
        submitter=canary(),
        workdir=canary(),
        env={"KEY": canary()},
        secrets={"PASSWORD": canary()},
        components=(component,),
        preemption=s.PreemptionRule(grace_seconds=10, checkpoint_dir=canary()),
        inputs=(s.PathBinding(name=canary(), source=canary()),),
        outputs=(s.PathBinding(name=canary(), source=canary()),),
        labels={canary(): canary()},
        source=s.SourceRecord(git_commit=canary(), dirty_diff_digest=canary(), argv=(canary(),)),
        **more,
    )


def a_secretive_run() -> Cluster:
    """Jobs that tell secrets in all they say: results, errors, refusals, names of checkpoints, who cancelled."""
    cluster = Cluster()
    cluster.node("n1", 2000)
    cluster.node("n2", 2000)
    restart = s.RestartRule(max_attempts=3, backoff_seconds=1)
    low = cluster.submit(a_secretive_spec(priority=1, restart=restart), "low")
    cluster.settle()
    cluster.reject(low, "NoRoom")
    cluster.advance(5)
    member = cluster.members(low)[0]
    reason = e.Reason(code="ImageMissing", detail=CANARY + "refused")
    cluster.node_fact(low, member, e.PlacementRejected, reason=reason)
    cluster.settle()
    cluster.advance(5)
    cluster.start(low)
    layers = (e.LayerRef(name=CANARY + "layer", digest=CANARY + "digest", size_bytes=7),)
    checkpoint = e.CheckpointRef(
        id="c-1", step=5, attempt=cluster.job(low).attempt, directory=CANARY + "directory", layers=layers
    )
    cluster.node_fact(low, cluster.members(low)[0], e.CheckpointSaved, checkpoint=checkpoint)
    cluster.exit(low, "failed", exit_code=1, detail=CANARY + "error", result={CANARY + "key": CANARY + "value"})
    cluster.advance(5)
    cluster.start(low)
    cluster.submit(a_secretive_spec(priority=5), "high")
    cluster.submit(a_secretive_spec(priority=5), "other")
    cluster.settle()
    cluster.exit(low, "suspended", acknowledged=True, result={CANARY + "partial": 1.5})
    cluster.start("high")
    cancelled = e.CancelRequested(id="c", at_ns=cluster.now, tenant="t", job="other", actor=CANARY + "actor")
    cluster.append("gateway", "g1", cancelled)
    about: dict[str, Any] = {"id": "h", "at_ns": cluster.now, "actor": CANARY + "operator", "note": CANARY + "note"}
    cluster.append("gateway", "g1", e.HoldRequested(**about, tenant="t", job="high"))
    cluster.append("gateway", "g1", e.NodeDrainRequested(**about, node="n2", deadline_ns=cluster.now))
    cluster.append("gateway", "g1", e.NodeResumeRequested(**about, node="n2"))
    joined = e.NodeJoined(
        id="n3", at_ns=cluster.now, node="n3", incarnation=1, capacity=Resources(1, 1), levels=(), address=CANARY
    )
    cluster.append("node", "n3", joined)
    cluster.settle()
    for job in ("other", "high"):
        if cluster.stage(job) in ("placed", "running", "stopping"):
            cluster.exit(job, "stopped" if job == "other" else "completed", result={CANARY + "x": CANARY + "y"})
    cluster.advance(5)
    return cluster


async def redacted(path: Path, source: FileSource, first: int, last: int) -> FileSource:
    part = await cut(source, Moment(seq=first), Moment(seq=last), told)
    await bundle(source, path, part, redacted=True, told=told)
    return open_file(path)


async def proved(source: FileSource) -> Verification:
    return await prove(source, Moment(), Moment(), told)


def everything_in(path: Path) -> bytes:
    """Return all bytes of a file, those that are compressed too."""
    parts = [path.read_bytes(), *(raw.subject.encode() + raw.data for raw in read_archive(path))]
    if (snapshot := read_snapshot(path)) is not None:
        state = decode_snapshot(snapshot)
        parts += [snapshot, repr(vars(state)).encode()]
    return b"\n".join(parts)


async def test_nothing_private_survives_and_every_part_still_verifies(tmp_path: Path) -> None:
    cluster = a_secretive_run()
    source = history_in(tmp_path, cluster)
    assert everything_in(source.path).count(CANARY.encode()) > 60
    for first in range(1, source.end + 1, 3):
        file = await redacted(tmp_path / f"from-{first}.tgj", source, first, source.end)
        assert CANARY.encode() not in everything_in(file.path)
        report = await proved(file)
        assert report.ok, report.difference
        assert report.unproved == 0
        assert "free text, which were removed" in as_text(report)
    whole = await proved(open_file(tmp_path / "from-1.tgj"))
    assert whole.decisions_verified == (await proved(source)).decisions_verified > 10


async def test_what_a_redacted_file_keeps_is_what_explains(tmp_path: Path) -> None:
    source = history_in(tmp_path, a_secretive_run())
    file = await redacted(tmp_path / "redacted.tgj", source, 1, source.end)
    before, after = [[r async for r in each.read(0, each.end)] for each in (source, file)]
    assert [r.frame.writer for r in before] == [r.frame.writer for r in after]
    for left, right in zip(before, after, strict=True):
        for was, now in zip(left.frame.events, right.frame.events, strict=True):
            assert (was.id, was.at_ns, was.cause, type(was)) == (now.id, now.at_ns, now.cause, type(now))
            for name in ("job", "tenant", "attempt", "members", "nodes", "quotas", "for_job", "revision"):
                assert getattr(was, name, None) == getattr(now, name, None)


async def test_an_edited_redacted_file_does_not_verify(tmp_path: Path) -> None:
    source = history_in(tmp_path, a_secretive_run())
    file = await redacted(tmp_path / "redacted.tgj", source, 1, source.end)
    frames = [recorded async for recorded in file.read(0, file.end)]
    index = next(i for i, r in enumerate(frames) if any(isinstance(x, e.PreemptRequested) for x in r.frame.events))
    events = tuple(
        msgspec.structs.replace(event, grace_seconds=99) if isinstance(event, e.PreemptRequested) else event
        for event in frames[index].frame.events
    )
    edited = [*frames]
    edited[index] = Recorded(frames[index].seq, frames[index].subject, Frame(frames[index].frame.writer, events))
    report = await proved(open_file(write(tmp_path / "edited.tgj", edited, notes=file.info.notes)))
    assert not report.ok
    assert report.difference is not None
    assert report.difference.seq == frames[index].seq
    assert report.difference.job == "low"
    assert any("asked to save and leave" in line for line in report.difference.story)


async def test_texts_put_back_into_a_redacted_file_do_not_verify(tmp_path: Path) -> None:
    cluster = a_secretive_run()
    source = history_in(tmp_path, cluster)
    file = await redacted(tmp_path / "redacted.tgj", source, 1, source.end)
    report = await proved(open_file(write(tmp_path / "back.tgj", cluster.frames, notes=file.info.notes)))
    assert not report.ok


async def test_a_byte_changed_in_the_file_is_found_with_its_place(tmp_path: Path) -> None:
    source = history_in(tmp_path, a_secretive_run())
    file = await redacted(tmp_path / "redacted.tgj", source, 1, source.end)
    data = bytearray(file.path.read_bytes())
    data[len(data) // 2] ^= 1
    file.path.write_bytes(data)
    with pytest.raises(ArchiveDamagedError, match="segment"):
        await proved(file)


def test_redacting_twice_changes_nothing_more_and_state_and_events_agree() -> None:
    cluster = a_secretive_run()
    plain, clean = State(), State()
    for recorded in cluster.frames:
        frame = redact_frame(recorded.frame)
        assert redact_frame(frame) == frame
        evolve(plain, recorded)
        evolve(clean, Recorded(recorded.seq, recorded.subject, frame))
        made = redact_state(plain)
        assert made.specs == clean.specs
        assert [job.spec_digest for job in made.jobs.values()] == [job.spec_digest for job in clean.jobs.values()]
        assert CANARY not in repr(vars(made))
        assert made.seq == plain.seq


def test_a_redacted_event_can_be_read_by_anybody() -> None:
    for recorded in a_secretive_run().frames:
        for event in recorded.frame.events:
            again = msgspec.json.decode(msgspec.json.encode(redact(event)), type=type(event))
            assert again == redact(event)


def a_run_with_passes_cut_for_their_size() -> Cluster:
    """So many jobs fail at once, with such long words, that one pass cannot hold it all."""
    cluster = Cluster()
    cluster.node("n1", 100_000, memory=100_000)
    jobs = [cluster.submit(spec(100, memory=10)) for _ in range(90)]
    cluster.settle()
    for job in jobs:
        for member in cluster.members(job):
            cluster.node_fact(job, member, e.SandboxStarted, level="trusted")
    cluster.settle()
    for job in jobs:
        for member in cluster.members(job):
            cluster.node_fact(job, member, e.SandboxExited, outcome="failed", exit_code=1, detail="x" * 4000)
    cluster.settle()
    return cluster


async def test_a_pass_that_ended_for_its_size_verifies_without_the_texts_that_filled_it(tmp_path: Path) -> None:
    cluster = a_run_with_passes_cut_for_their_size()
    cut_passes = {r.seq for r in cluster.frames if isinstance(r.frame.events[0], e.DecisionPass) and is_cut(r.frame)}
    assert cut_passes
    source = history_in(tmp_path, cluster)
    file = await redacted(tmp_path / "redacted.tgj", source, 1, source.end)
    assert file.redacted is not None
    assert file.redacted.cut_passes == cut_passes
    report = await proved(file)
    assert report.ok, report.difference
    again = await redacted(tmp_path / "again.tgj", file, 1, file.end)
    assert again.redacted == file.redacted
    assert (await proved(again)).ok


async def test_a_decision_left_out_of_a_pass_that_was_not_cut_is_found(tmp_path: Path) -> None:
    source = history_in(tmp_path, a_secretive_run())
    file = await redacted(tmp_path / "redacted.tgj", source, 1, source.end)
    frames = [recorded async for recorded in file.read(0, file.end)]
    index = next(i for i, r in enumerate(frames) if len(r.frame.events) > 2)
    head, *decisions = frames[index].frame.events
    assert isinstance(head, e.DecisionPass)
    fewer = (msgspec.structs.replace(head, decisions=len(decisions) - 1), *decisions[:-1])
    frames[index] = Recorded(frames[index].seq, frames[index].subject, Frame(frames[index].frame.writer, fewer))
    report = await proved(open_file(write(tmp_path / "fewer.tgj", frames, notes=file.info.notes)))
    assert not report.ok
