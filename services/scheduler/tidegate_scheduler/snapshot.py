"""Snapshots: the scheduler's whole state after one sequence, as bytes that prove themselves.

State survives by folding the journal; snapshots only make that fast, so nothing may trust one. What is read is compared
with its own digest, then the state's digest is computed anew from every entity and compared with the one it had when it
was saved. A snapshot by other code (another core, other fields) is passed over, not guessed at.

In bytes: a line with the digest of all that follows, a line of JSON that says what it is, and compressed JSON.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import zstandard
from blake3 import blake3
from tidegate_events.spec import JobSpec, member_floor

from tidegate_scheduler.state import Finished, Header, Job, Maintenance, Node, Queue, State
from tidegate_scheduler.version import CORE_VERSION

MAGIC = b"tidegate-snapshot-1"
SNAPSHOT_BYTES_MAX = 1 << 30
HEAD_BYTES_MAX = 64 * 1024
COMPRESSION_LEVEL = 3


class SnapshotError(Exception):
    """A snapshot cannot be used; an earlier one, or the beginning of the journal, can."""


class DamagedSnapshotError(SnapshotError):
    """The bytes are not what was saved, or the state in them is not the one that was saved."""


class OtherCodeError(SnapshotError):
    """It was saved by another version, whose state has other fields or other rules; that version can use it."""


class SnapshotInfo(msgspec.Struct, frozen=True):
    """What a snapshot is, without reading the state: it follows `seq`, and `schema` tells the fields it was made of.

    `chain` is the digest of every frame up to `seq`, empty where whoever saved it had not read them all.
    """

    seq: int
    state_digest: str
    core: str
    policy: int
    generation: int
    schema: str
    chain: str = ""


class _Body(msgspec.Struct, frozen=True):
    """Every table of the state, in its order (`decide` walks them), without what follows from the rest."""

    seq: int
    decision_seq: int
    header: Header
    jobs: list[Job]
    finished: list[Finished]
    nodes: list[Node]
    writers: dict[str, tuple[int, int]]
    specs: dict[str, JobSpec]
    queues: list[Queue]
    maintenance: list[Maintenance]


_encoder = msgspec.json.Encoder()  # JSON has no largest integer: a job's result may hold any
_body = msgspec.json.Decoder(_Body)
_info = msgspec.json.Decoder(SnapshotInfo)


@cache
def schema() -> str:
    """Return a fingerprint of the state's fields, their types and their defaults; words about them do not count."""
    described = _without_words(msgspec.json.schema(_Body))
    return blake3(msgspec.json.encode(described, order="sorted")).hexdigest()[:32]


def _without_words(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _without_words(v) for k, v in node.items() if not (k == "description" and isinstance(v, str))}
    return [_without_words(each) for each in node] if isinstance(node, list) else node


def encode_snapshot(state: State, chain: str = "") -> bytes:
    """Return the state as bytes; `chain` is the journal's chain of digests up to there, where it is known."""
    info = SnapshotInfo(
        seq=state.seq,
        state_digest=state.digest(),
        core=CORE_VERSION,
        policy=state.header.policy,
        generation=state.header.generation,
        schema=schema(),
        chain=chain,
    )
    body = _Body(
        seq=state.seq,
        decision_seq=state.decision_seq,
        header=state.header,
        jobs=list(state.jobs.values()),
        finished=list(state.finished.values()),
        nodes=list(state.nodes.values()),
        writers=state.writers,
        specs=state.specs,
        queues=list(state.queues.values()),
        maintenance=list(state.maintenance.values()),
    )
    packed = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress(_encoder.encode(body))
    sealed = b"%s\n%s" % (_encoder.encode(info), packed)
    return b"%s %s\n%s" % (MAGIC, blake3(sealed).hexdigest().encode(), sealed)


def read_info(data: bytes) -> SnapshotInfo:
    """Return what the snapshot says it is, its bytes verified. Raises DamagedSnapshotError."""
    return _open(data)[0]


def own(info: SnapshotInfo) -> bool:
    """Say whether this code can read the snapshot."""
    return (info.core, info.schema) == (CORE_VERSION, schema())


def decode_snapshot(data: bytes) -> State:
    """Return the state. Raises SnapshotError: DamagedSnapshotError, or OtherCodeError for one of other code."""
    info, packed = _open(data)
    if not own(info):
        raise OtherCodeError(
            f"the snapshot at {info.seq} is by core {info.core} (state {info.schema}), "
            f"this is core {CORE_VERSION} (state {schema()})"
        )
    try:
        body = _body.decode(zstandard.ZstdDecompressor().decompress(packed, max_output_size=SNAPSHOT_BYTES_MAX))
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedSnapshotError(f"the snapshot at {info.seq} cannot be read: {error}") from error
    state = _restored(body)
    if (state.seq, state.digest()) != (info.seq, info.state_digest):
        raise DamagedSnapshotError(
            f"the snapshot at {info.seq} holds the state after {state.seq} with digest {state.digest()}, "
            f"which should be {info.state_digest}"
        )
    return state


def _open(data: bytes) -> tuple[SnapshotInfo, bytes]:
    """Return the description and the packed state, after comparing the digest over both."""
    first, _, sealed = data.partition(b"\n")
    magic, _, digest = first[:HEAD_BYTES_MAX].partition(b" ")
    if magic != MAGIC:
        raise DamagedSnapshotError(f"not a snapshot: begins {data[:32]!r}, should begin {MAGIC!r}")
    if blake3(sealed).hexdigest().encode() != digest:
        raise DamagedSnapshotError("the snapshot's bytes do not have the digest that they were saved with")
    head, _, packed = sealed.partition(b"\n")
    try:
        return _info.decode(head), packed
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamagedSnapshotError(f"the snapshot's description cannot be read: {error}") from error


def _restored(body: _Body) -> State:
    state = State()
    state.seq, state.decision_seq, state.header = body.seq, body.decision_seq, body.header
    state.jobs = {job.id: job for job in body.jobs}
    state.finished = {finished.id: finished for finished in body.finished}
    state.nodes = {node.name: node for node in body.nodes}
    state.writers = body.writers
    state.specs = body.specs
    state.floors = {job: member_floor(spec) for job, spec in body.specs.items()}
    state.queues = {queue.tenant: queue for queue in body.queues}
    state.maintenance = {planned.name: planned for planned in body.maintenance}
    state.touch_all()
    return state
