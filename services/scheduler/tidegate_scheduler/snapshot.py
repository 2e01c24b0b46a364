"""Snapshots: the scheduler's whole state after one sequence, as bytes that prove themselves, and where they are kept.

State survives by folding the journal; snapshots only make that fast, so nothing may trust one. What is read is compared
with its own digest, then the state's digest is computed anew from every entity and compared with the one it had when it
was saved. A snapshot by other code (another core, other fields) is passed over, not guessed at.

In bytes: a line with the digest of all that follows, a line of JSON that says what it is, and compressed JSON. They lie
in a JetStream object store, where an object gets its name only when it is whole.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import msgspec
import nats.errors
import structlog
import zstandard
from blake3 import blake3
from nats.aio.client import Client
from nats.js.api import ObjectInfo, ObjectMeta, StorageType
from nats.js.errors import APIError, NotFoundError
from nats.js.object_store import ObjectStore
from tidegate_events.journal.base import JournalUnavailableError
from tidegate_events.spec import JobSpec, member_floor

from tidegate_scheduler.state import Finished, Header, Job, Maintenance, Node, Queue, State
from tidegate_scheduler.version import CORE_VERSION

MAGIC = b"tidegate-snapshot-1"
SNAPSHOT_BYTES_MAX = 1 << 30
HEAD_BYTES_MAX = 64 * 1024
COMPRESSION_LEVEL = 3

BUCKET = "SNAPSHOTS"
BUCKET_BYTES_MAX = 512 * 1024**2
KEPT_DEFAULT = 3
ASK_SECONDS_MAX = 5.0
SET_ASIDE_HEADER = "Tidegate-Set-Aside"

# Error codes of the JetStream API (server/errors.json of nats-server 2.15).
_FULL_CODES = frozenset({10077, 10047, 10023})

log = structlog.get_logger()


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


def decode_snapshot(data: bytes) -> State:
    """Return the state. Raises SnapshotError: DamagedSnapshotError, or OtherCodeError for one of other code."""
    info, packed = _open(data)
    if (info.core, info.schema) != (CORE_VERSION, schema()):
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


class Kept(msgspec.Struct, frozen=True):
    """A snapshot in the store. `set_aside` says why it is not used, where it was found to be bad."""

    name: str
    info: SnapshotInfo
    size_bytes: int
    set_aside: str = ""

    @property
    def own(self) -> bool:
        """Say whether this code can read it."""
        return (self.info.core, self.info.schema) == (CORE_VERSION, schema())


class Found(msgspec.Struct, frozen=True):
    """A snapshot that was read and proved."""

    info: SnapshotInfo
    state: State


def snapshot_name(seq: int) -> str:
    """Return the name of the snapshot after `seq`."""
    return f"state-{seq:016d}"


class SnapshotStore:
    """The snapshots of one journal. Everybody reads; `keeps` is for the keeper alone, who may also write and mark."""

    def __init__(self, client: Client, *, keeps: bool = False) -> None:
        self._client = client
        self._js = client.jetstream(timeout=ASK_SECONDS_MAX)
        self._objects = ObjectStore(BUCKET, f"OBJ_{BUCKET}", self._js)
        self._keeps = keeps

    async def ensure(self, *, max_bytes: int = BUCKET_BYTES_MAX, replicas: int = 1) -> None:
        """Create the bucket where it is missing; one that exists is left as it is. Raises JournalUnavailableError."""
        with _asked("to be there"):
            try:
                await self._js.stream_info(f"OBJ_{BUCKET}")
            except NotFoundError:
                await self._js.create_object_store(
                    BUCKET, max_bytes=max_bytes, storage=StorageType.FILE, replicas=replicas
                )

    async def save(self, state: State, chain: str = "") -> Kept:
        """Write the state, read it back, decode it; return what is now kept under its name.

        Raises SnapshotError where what was read is not what was written, JournalUnavailableError where it cannot be
        written. Saving the same state again replaces it by itself.
        """
        data = encode_snapshot(state, chain)
        info = read_info(data)
        name = snapshot_name(info.seq)
        with _asked(f"to keep {name}"):
            await self._put(name, info, data)
        again = await asyncio.to_thread(decode_snapshot, await self.load(name))
        if (again.seq, again.digest()) != (info.seq, info.state_digest):
            raise DamagedSnapshotError(f"snapshot {name} came back with the state after {again.seq}, {again.digest()}")
        return Kept(name, info, len(data))

    async def load(self, name: str) -> bytes:
        """Return the bytes under `name`, as they lie there. Raises DamagedSnapshotError, JournalUnavailableError."""
        parts, after = [], 0
        with _asked(f"for {name}"):
            try:
                known = await self._objects.get_info(name)
                for _ in range(known.chunks or 0):
                    chunk = await self._js.get_msg(
                        f"OBJ_{BUCKET}", seq=after + 1, subject=f"$O.{BUCKET}.C.{known.nuid}", next=True
                    )
                    parts.append(chunk.data or b"")
                    after = chunk.seq or 0
            except NotFoundError as error:
                raise DamagedSnapshotError(f"snapshot {name} is not whole: {error!r}") from error
        return b"".join(parts)

    async def newest(self, at_most: int | None = None) -> State | None:
        """Return the state of what `find` finds."""
        found = await self.find(at_most)
        return None if found is None else found.state

    async def find(self, at_most: int | None = None) -> Found | None:
        """Return the newest usable snapshot that does not lie after `at_most`; None for none.

        A bad one is logged with why, and set aside by the keeper; one by other code is logged and left to that code.
        Raises JournalUnavailableError.
        """
        for kept in sorted(await self.kept(), key=lambda each: -each.info.seq):
            if kept.set_aside or (at_most is not None and kept.info.seq > at_most):
                continue
            try:
                state = await asyncio.to_thread(_proved, await self.load(kept.name), kept)
            except OtherCodeError as error:
                log.warning("snapshot_of_other_code", snapshot=kept.name, why=str(error))
            except DamagedSnapshotError as error:
                log.error("snapshot_set_aside", snapshot=kept.name, why=str(error))
                if self._keeps:
                    await self._set_aside(kept, str(error))
            else:
                return Found(kept.info, state)
        return None

    async def kept(self) -> list[Kept]:
        """Return what is in the store, oldest first; nothing where there is none. Raises JournalUnavailableError."""
        return [kept for each in await self._metas() if (kept := _as_kept(each)) is not None]

    async def prune(self, keep: int = KEPT_DEFAULT, *, needed: Container[str] = ()) -> list[str]:
        """Delete all but the newest `keep`, of each kind apart: usable, of other code, set aside; return their names.

        Those `needed` stay.

        So no kind can push out another. What a killed writer left without a name goes too.
        """
        kept = await self.kept()
        aside = [each for each in kept if each.set_aside]
        own = [each for each in kept if not each.set_aside and each.own]
        others = [each for each in kept if not each.set_aside and not each.own]
        old = [
            each.name
            for kind in (own, others, aside)
            for each in kind[: max(0, len(kind) - keep)]
            if each.name not in needed
        ]
        with _asked("to delete old snapshots"):
            for name in old:
                await self._js.purge_stream(f"OBJ_{BUCKET}", subject=_meta_subject(name))
            await self._drop_nameless()
        return old

    async def _put(self, name: str, info: SnapshotInfo, data: bytes) -> None:
        meta = ObjectMeta(name=name, description=msgspec.json.encode(info).decode())
        try:
            await self._objects.put(name, data, meta)
        except APIError as error:
            if error.err_code not in _FULL_CODES:
                raise
            log.warning("snapshots_full", snapshot=name, size_bytes=len(data))
            await self.prune(keep=1)
            await self._objects.put(name, data, meta)

    async def _set_aside(self, kept: Kept, why: str) -> None:
        meta = ObjectMeta(
            name=kept.name,
            description=msgspec.json.encode(kept.info).decode(),
            headers={SET_ASIDE_HEADER: [why]},
        )
        with _asked(f"to set {kept.name} aside"):
            await self._objects.update_meta(kept.name, meta)

    async def _metas(self) -> list[ObjectInfo]:
        """Return the description of each object, by name."""
        metas = []
        with _asked("what it holds"):
            for subject in await self._subjects("M"):
                try:
                    message = await self._js.get_last_msg(f"OBJ_{BUCKET}", subject)
                except NotFoundError:
                    continue  # the keeper deleted it meanwhile
                metas.append(ObjectInfo.from_response(msgspec.json.decode(message.data or b"{}")))
        return sorted((meta for meta in metas if not meta.deleted), key=lambda meta: meta.name)

    async def _subjects(self, kind: str) -> Iterable[str]:
        try:
            info = await self._js.stream_info(f"OBJ_{BUCKET}", subjects_filter=f"$O.{BUCKET}.{kind}.>")
        except NotFoundError:
            return ()
        return info.state.subjects or ()

    async def _drop_nameless(self) -> None:
        """Delete the chunks that no name leads to."""
        named = {f"$O.{BUCKET}.C.{meta.nuid}" for meta in await self._metas()}
        for subject in set(await self._subjects("C")) - named:
            await self._js.purge_stream(f"OBJ_{BUCKET}", subject=subject)


@contextmanager
def _asked(what: str) -> Iterator[None]:
    """Turn what the bus refuses or does not answer into JournalUnavailableError."""
    try:
        yield
    except (nats.errors.Error, TimeoutError) as error:
        raise JournalUnavailableError(
            f"the bucket {BUCKET}, asked {what}, refused or did not answer: {error!r}"
        ) from error


def _as_kept(meta: ObjectInfo) -> Kept | None:
    """Return the entry; None for an object that is no snapshot."""
    try:
        info = _info.decode(meta.description or "")
    except msgspec.MsgspecError:
        log.warning("not_a_snapshot", object=meta.name)
        return None
    why = (meta.headers or {}).get(SET_ASIDE_HEADER, [""])
    return Kept(meta.name, info, meta.size or 0, why[0] if isinstance(why, list) else str(why))


def _proved(data: bytes, kept: Kept) -> State:
    """Return the state in `data`, which must be what its name and its description say, for those chose it."""
    state = decode_snapshot(data)
    if (info := read_info(data)) != kept.info or snapshot_name(state.seq) != kept.name:
        raise DamagedSnapshotError(f"its name or its description is of another one: it holds {info}")
    return state


def _meta_subject(name: str) -> str:
    return f"$O.{BUCKET}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"
