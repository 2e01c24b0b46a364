"""Generations: the journal as a chain of streams, of which the last takes appends and the others never change.

The stream of the live generation has the journal's subjects. Closing it takes them away for good; its messages keep
theirs. The next generation begins at the next sequence (JetStream's `first_seq`), so sequences never restart and no
position needs a generation's number. How one goes on to the next is in `closing`.

Each step may be repeated, whatever was done before: a keeper that died between any two of them begins again. Trimming
deletes a closed stream; the caller has archived it before. The last frame of each subject is kept in a stream beside,
so that its writer still finds it.
"""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Any

import msgspec
import nats.errors
from nats.aio.client import Client

from tidegate_events import subjects
from tidegate_events.journal.archive import ArchiveDirectory, read_archive
from tidegate_events.journal.base import JournalError, JournalForkedError, JournalUnavailableError, Raw
from tidegate_events.journal.jetstream import (
    NO_ANSWER,
    STREAM_EXISTS_CODE,
    STREAM_MISSING_CODE,
    SUBJECTS_OVERLAP_CODE,
    WRONG_LAST_SEQUENCE_CODES,
    ApiError,
    JetStream,
    raw_of,
)
from tidegate_events.subjects import HEADS_STREAM, HEADS_SUBJECTS, JOURNAL_SUBJECTS, generation_of, journal_stream

__all__ = [
    "Generation",
    "generations",
    "head_of",
    "journal_stream",
    "open_archived",
    "open_first",
    "publish_head",
    "trim",
]

DUPLICATE_WINDOW_SECONDS = 120
HEAD_COPY_SECONDS = 5.0
HEAD_TRIES_MAX = 5
SEQ_HEADER = "Tidegate-Seq"

_SEQ_HEADER = re.compile(rb"^Tidegate-Seq: *([0-9]+)\r$", re.MULTILINE)


class Generation(msgspec.Struct, frozen=True):
    """A generation that is still a stream. An empty one has `last_seq == first_seq - 1`; a limit of -1 is none.

    `opening`: it has taken nothing yet, and counts as not there. `live`: it takes appends. `closed`: its subjects were
    taken away, for good. `sealed`: the bus refuses every change of it; that comes some time after it was closed. Where
    the next one is there, `last_seq` lies before that one's first; `surplus` counts what the stream holds beyond,
    which is not history and must not be.
    """

    number: int
    first_seq: int
    last_seq: int
    used_bytes: int
    limit_bytes: int
    live: bool
    closed: bool
    sealed: bool = False
    surplus: int = 0
    opening: bool = False

    @property
    def stream(self) -> str:
        """Return the stream's name."""
        return journal_stream(self.number)


def stream_config(generation: int = 1, *, max_bytes: int, replicas: int = 1, first_seq: int = 1) -> dict[str, Any]:
    """Return a live generation's configuration: append-only, fixed order, refusing when full.

    Not compressed: a replica of nats-server 2.15.1 may compress the block that it still appends to, and after a kill it
    cannot read that any more (`s2: unsupported input`), so it has all of its copy to fetch again, if anybody has one.
    """
    config = {
        "name": journal_stream(generation),
        "subjects": list(JOURNAL_SUBJECTS),
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_bytes": max_bytes,
        "max_msgs": -1,
        "max_age": 0,
        "max_consumers": -1,
        "num_replicas": replicas,
        "duplicate_window": DUPLICATE_WINDOW_SECONDS * 1_000_000_000,
        "deny_delete": True,
        "deny_purge": True,
        "compression": "none",
    }
    return config if first_seq == 1 else {**config, "first_seq": first_seq}


async def generations(client: Client) -> tuple[Generation, ...]:
    """Return the generations that are streams, oldest first. Raises JournalUnavailableError."""
    return await listed(JetStream(client), {})


async def listed(js: JetStream, known: dict[int, Generation]) -> tuple[Generation, ...]:
    """Return the generations, without one that was created and did not begin.

    `known` learns those that are over, whose frames never change: they are not asked again, so what is taken from it
    may have been sealed since.
    """
    numbers = sorted(number for name in await js.names() if (number := generation_of(name)) is not None)
    for number in set(known) - set(numbers):
        known.pop(number, None)
    found: list[Generation] = []
    for number in reversed(numbers):
        if (generation := known.get(number)) is None:
            info = await js.info(journal_stream(number))
            if info is None:
                continue  # trimmed a moment ago
            if (generation := described(number, info)).opening:
                continue  # nothing was ever taken by it
            if found and found[-1].number == number + 1:
                end = found[-1].first_seq - 1
                surplus = max(0, generation.last_seq - end)
                generation = msgspec.structs.replace(
                    generation, last_seq=generation.last_seq - surplus, surplus=surplus
                )
                if generation.closed and generation.last_seq == end:
                    known[number] = generation
        found.append(generation)
    return tuple(reversed(found))


async def open_first(client: Client, *, max_bytes: int, replicas: int = 1) -> Generation:
    """Open the first generation where there is none at all; return the newest one, left as it is."""
    js = JetStream(client)
    if there := await listed(js, {}):
        return there[-1]
    await create(js, stream_config(max_bytes=max_bytes, replicas=replicas))
    if not (there := await listed(js, {})):
        raise JournalError("the first generation was opened and is gone: somebody deletes the journal's streams")
    return there[-1]


async def open_archived(
    client: Client, archive: ArchiveDirectory, *, max_bytes: int, replicas: int = 1
) -> Generation | None:
    """Open the generation after the newest archived one where there is no stream at all: after an import.

    The last frame of each subject is kept beside first, so that its writer finds it. None where nothing is archived.
    """
    js = JetStream(client)
    if there := await listed(js, {}):
        return there[-1]
    if not (archived := archive.list()):
        return None
    newest = archived[-1]
    number, first_seq = newest.generation + 1, newest.info.last_seq + 1
    heads = await asyncio.to_thread(
        lambda: {frame.subject: frame for each in archived for frame in read_archive(each.path)}
    )
    await create(js, _heads_config(replicas))
    for head in heads.values():
        await publish_head(client, js, head)
    await create(js, stream_config(number, max_bytes=max_bytes, replicas=replicas, first_seq=first_seq))
    return described(number, await existing(js, journal_stream(number)))


def forked(closed: Generation, following: Generation) -> JournalForkedError:
    """Return the error for a closed stream that goes beyond the beginning of the next one."""
    return JournalForkedError(
        f"{closed.stream} was closed and holds sequences up to {closed.last_seq + closed.surplus}, and the next "
        f"generation begins at {following.first_seq}: what lies beyond was taken by a server that did not know of the "
        "closing. It is not in history; its writers may believe that it is. Nothing is archived or trimmed before "
        "somebody has looked"
    )


async def trim(client: Client, number: int) -> None:
    """Delete a closed generation's stream, which is in the archive; nothing happens where it is gone already.

    The oldest goes first and the last one never, so that what is left has no gap.
    """
    js = JetStream(client)
    there = {generation.number: generation for generation in await listed(js, {})}
    if (old := there.get(number)) is None:
        return
    if not old.closed or number + 1 not in there:
        raise JournalError(f"{old.stream} is not trimmed: it must be closed, and the next one open")
    if old.surplus:
        raise forked(old, there[number + 1])
    if (oldest := min(there)) != number:
        raise JournalError(f"{old.stream} is not trimmed: {journal_stream(oldest)} is older and goes first")
    await _keep_heads(client, js, old)
    try:
        await js.call(f"STREAM.DELETE.{old.stream}")
    except ApiError as error:
        if error.code != STREAM_MISSING_CODE:
            raise


async def head_of(js: JetStream, subject: str) -> Raw | None:
    """Return the last frame on `subject` of the generations that were trimmed, None where they had none."""
    message = await js.message(HEADS_STREAM, {"last_by_subj": subjects.head(subject)})
    if message is None:
        return None
    return Raw(_seq_of(message), subject, raw_of(message).data)


async def publish_head(client: Client, js: JetStream, last: Raw) -> None:
    """Keep a subject's last frame beside the journal, unless a later one is kept already.

    Never over a later one: by an older head a deposed leader's guard would hold.
    """
    subject = subjects.head(last.subject)
    for _ in range(HEAD_TRIES_MAX):
        kept = await js.message(HEADS_STREAM, {"last_by_subj": subject})
        if kept is not None and _seq_of(kept) >= last.seq:
            return
        guard = kept["seq"] if kept is not None else 0
        headers = {SEQ_HEADER: str(last.seq), "Nats-Expected-Last-Subject-Sequence": str(guard)}
        try:
            answer = await client.request(subject, last.data, timeout=HEAD_COPY_SECONDS, headers=headers)
        except (*NO_ANSWER, nats.errors.Error) as error:
            raise JournalUnavailableError(f"the last frame on {last.subject} was not kept in {HEADS_STREAM}") from error
        if (refusal := msgspec.json.decode(answer.data).get("error")) is None:
            return
        if refusal.get("err_code") not in WRONG_LAST_SEQUENCE_CODES:
            raise JournalError(f"{HEADS_STREAM} does not take {subject}: {refusal.get('description')}")
    raise JournalUnavailableError(f"others keep writing {subject}: two keepers trim the journal")


def _seq_of(head: dict[str, Any]) -> int:
    match = _SEQ_HEADER.search(base64.b64decode(head.get("hdrs", "")))
    if match is None:
        raise JournalError(f"{HEADS_STREAM} holds {head['subject']} without its sequence: it is not Tidegate's")
    return int(match[1])


def described(number: int, info: dict[str, Any]) -> Generation:
    """Return what the leader's answer says of a generation by itself."""
    config, state = info["config"], info["state"]
    listens_to = set(config.get("subjects") or ())
    return Generation(
        number=number,
        first_seq=int(config.get("first_seq") or 1),
        last_seq=int(state["last_seq"]),
        used_bytes=int(state["bytes"]),
        limit_bytes=int(config.get("max_bytes", -1)),
        live=listens_to == set(JOURNAL_SUBJECTS),
        closed=listens_to == {subjects.closed(number)},
        sealed=bool(config.get("sealed")),
        opening=listens_to == {subjects.opening(number)},
    )


async def existing(js: JetStream, stream: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what the stream's leader says of it. Raises JournalError where there is none."""
    info = await js.info(stream, body)
    if info is None:
        raise JournalError(f"there is no generation {stream}")
    return info


async def create(js: JetStream, config: dict[str, Any]) -> None:
    """Create the stream unless it is there, perhaps with other bounds, or another generation is live meanwhile."""
    try:
        await js.call(f"STREAM.CREATE.{config['name']}", config)
    except ApiError as error:
        if error.code not in {STREAM_EXISTS_CODE, SUBJECTS_OVERLAP_CODE}:
            raise


async def _keep_heads(client: Client, js: JetStream, old: Generation) -> None:
    info = await existing(js, old.stream)
    await create(js, _heads_config(info["config"].get("num_replicas", 1)))
    offset = 0
    while True:
        info = await existing(js, old.stream, {"subjects_filter": ">", "offset": offset})
        counts = info["state"].get("subjects") or {}
        for subject in counts:
            message = await js.message(old.stream, {"last_by_subj": subject})
            if message is None:
                raise JournalError(f"{old.stream} lost the last frame on {subject}, which it had a moment ago")
            await publish_head(client, js, raw_of(message))
        offset += len(counts)
        if not counts or offset >= info.get("total", 0):
            return


def _heads_config(replicas: int) -> dict[str, Any]:
    return {
        "name": HEADS_STREAM,
        "subjects": list(HEADS_SUBJECTS),
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "max_msgs_per_subject": 1,
        "num_replicas": replicas,
    }
