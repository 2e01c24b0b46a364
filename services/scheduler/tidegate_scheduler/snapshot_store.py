"""Where snapshots are kept: a JetStream object store, where an object gets its name only when it is whole."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.js.api import ObjectInfo, ObjectMeta, StorageType
from nats.js.errors import APIError, NotFoundError
from nats.js.object_store import ObjectStore
from tidegate_events.journal.base import JournalUnavailableError

from tidegate_scheduler.snapshot import (
    DamagedSnapshotError,
    OtherCodeError,
    SnapshotInfo,
    decode_snapshot,
    encode_snapshot,
    own,
    read_info,
)
from tidegate_scheduler.state import State

BUCKET = "SNAPSHOTS"
BUCKET_BYTES_MAX = 512 * 1024**2
KEPT_DEFAULT = 3
ASK_SECONDS_MAX = 5.0
SET_ASIDE_HEADER = "Tidegate-Set-Aside"

# Error codes of the JetStream API (server/errors.json of nats-server 2.15).
_FULL_CODES = frozenset({10077, 10047, 10023})

log = structlog.get_logger()
_info = msgspec.json.Decoder(SnapshotInfo)


class Kept(msgspec.Struct, frozen=True):
    """A snapshot in the store. `set_aside` says why it is not used, where it was found to be bad."""

    name: str
    info: SnapshotInfo
    size_bytes: int
    set_aside: str = ""

    @property
    def own(self) -> bool:
        """Say whether this code can read it."""
        return own(self.info)


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
