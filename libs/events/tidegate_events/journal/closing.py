"""Going on from one generation to the next: closing it, opening the next one, and later sealing what was closed.

Closing takes the subjects away and waits until nothing is under way. A majority of the copies is enough for that: a
copy that lacks some frames takes them from the others when it is back. Sealing is the bus's own flag for a stream that
refuses everything. A copy that learns of it before it has every frame would refuse the rest and stay shorter, so it is
set when all copies are whole, whenever that is; nobody waits for it, and nothing depends on it.

What keeps a frame from landing in a closed generation after the next one began:

- The end is asked for by a write that the leader must refuse. It waits in the leader's queue behind every append that
  came before it, and the refusal counts those that are proposed and not stored yet. When the leader then says that it
  has stored so many, nothing is under way any more. No time is guessed.
- A leader answers (since nats-server 2.11) only when it has applied all that was committed before its election. The
  same one is asked before and after, and both times it says that its subjects are gone, so it listens to no append.
- Configurations travel beside the frames, not among them. So a server that was away since before the closing could,
  in the moment of its return, have every frame, not know of the closing yet, and be elected because the leader is lost
  just then; a writer that has not noticed the roll could then reach it. Nothing that a client can send excludes this.
  Therefore history ends, for every reader and for every read-back, where the next generation begins (`listed`), and a
  closed stream that goes beyond is found here and by each look of the keeper, which then refuses to go on.
"""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from typing import Any

import msgspec
from nats.aio.client import Client

from tidegate_events import subjects
from tidegate_events.journal.base import JournalError, JournalUnavailableError
from tidegate_events.journal.generations import Generation, create, described, existing, forked, stream_config
from tidegate_events.journal.jetstream import API_TIMEOUT_SECONDS, NO_ANSWER, STREAM_MISSING_CODE, ApiError, JetStream
from tidegate_events.subjects import JOURNAL_SUBJECTS, journal_stream

REST_WAIT_SECONDS = 0.02
REST_SECONDS_MAX = 5.0
STAYS_SECONDS = 10.0
WHOLE_SECONDS = 5.0
SILENT_SECONDS_MAX = 3.0

WRONG_LAST_SEQUENCE_CODE = 10071
FULL_CODE = 10077
NO_SEQUENCE = 2**63 - 1
_WRONG_LAST_SEQUENCE = re.compile(r"wrong last sequence: ([0-9]+)\Z")


async def close(client: Client, number: int) -> Generation:
    """Take a generation's subjects away for good, and return it with its last sequence when nothing can come any more.

    JournalUnavailableError says that it is closed and its leader away; to close it again goes on from there.
    """
    js = JetStream(client)
    info = await existing(js, journal_stream(number))
    if not described(number, info).closed:
        await _update(js, {**info["config"], "subjects": [subjects.closed(number)]})
    return await _rested(client, js, number)


async def open_next(client: Client, number: int, *, max_bytes: int, replicas: int = 1) -> Generation:
    """Open the generation after the closed one of `number`; return it, also where it is open already.

    Raises JournalForkedError where the closed one goes beyond the beginning of the next.
    """
    js = JetStream(client)
    if not described(number, await existing(js, journal_stream(number))).closed:
        raise JournalError(f"{journal_stream(number)} still takes appends: close it before the next one is opened")
    if await js.info(journal_stream(number + 1)) is None:
        end = (await _rested(client, js, number)).last_seq
        config = stream_config(number + 1, max_bytes=max_bytes, replicas=replicas, first_seq=end + 1)
        await create(js, {**config, "subjects": [subjects.opening(number + 1)]})
    opened = described(number + 1, await _begun(js, number + 1))
    info = await existing(js, journal_stream(number))
    before = described(number, info)
    if before.last_seq >= opened.first_seq:
        raise forked(before, opened)
    if before.last_seq + 1 != opened.first_seq:
        raise JournalError(f"{opened.stream} begins at {opened.first_seq}, {before.stream} ends at {before.last_seq}")
    if before.limit_bytes != -1 and not before.sealed:
        # What cannot grow needs no limit, which would only reserve room. Not earlier: copies with different limits
        # would differ in what they take.
        await _update(js, {**info["config"], "max_bytes": -1})
    return opened


async def _begun(js: JetStream, number: int) -> dict[str, Any]:
    """Give a generation the journal's subjects when it is certain to stay, and return what its leader says of it.

    A server that was away since before the last closing learns of both streams at once when it is back, finds that they
    want the same subjects, and refuses the new one; and the servers take back a stream that one of them refuses within
    5 s of its creation, with all it holds. So it takes appends when every server has it, each of which knew of the
    closing then; or, where one is away, when it is too old to be taken back.
    """
    stream, loop = journal_stream(number), asyncio.get_running_loop()
    deadline = loop.time() + STAYS_SECONDS + REST_SECONDS_MAX
    while loop.time() < deadline:
        info = await existing(js, stream)
        if described(number, info).live or described(number, info).closed:
            return info
        if not behind(info) or _age_seconds(info) > STAYS_SECONDS:
            await _update(js, {**info["config"], "subjects": list(JOURNAL_SUBJECTS)})
            return await existing(js, stream)
        await asyncio.sleep(REST_WAIT_SECONDS)
    raise JournalUnavailableError(f"{stream} is created, and not yet sure to stay; {', '.join(behind(info))} lack it")


def _age_seconds(info: dict[str, Any]) -> float:
    """Return how old the stream is by the servers' own clocks; less than nothing where they do not say."""
    created, now = (info.get(name) for name in ("created", "ts"))
    if not (created and now):
        return -1.0
    return (datetime.fromisoformat(now) - datetime.fromisoformat(created)).total_seconds()


async def _rested(client: Client, js: JetStream, number: int) -> Generation:
    """Return a closed generation when its leader has stored all that it ever let in."""
    stream, loop = journal_stream(number), asyncio.get_running_loop()
    deadline = loop.time() + REST_SECONDS_MAX
    while loop.time() < deadline:
        before = await existing(js, stream)
        if described(number, before).sealed:
            return described(number, before)
        end = await _end_asked_in_line(client, number)
        if end is None and before["config"].get("max_bytes", -1) != -1:
            # Every append is through by now, so that it takes more cannot make a copy take what another refuses.
            await _update(js, {**before["config"], "max_bytes": -1})
        after = await existing(js, stream)
        same_leader = _leader(before) == _leader(after)
        closed = described(number, before).closed and described(number, after).closed
        if same_leader and closed and described(number, after).last_seq == end:
            return described(number, after)
        await asyncio.sleep(REST_WAIT_SECONDS)
    raise JournalUnavailableError(
        f"{stream} is closed, and came to no rest within {REST_SECONDS_MAX:g} s: {_leader(after)} leads it, "
        f"has stored {described(number, after).last_seq} of {end}, and says closed={closed}"
    )


async def _end_asked_in_line(client: Client, number: int) -> int | None:
    """Return the last sequence of a closed generation and of what is under way to it: a refused write names it.

    None where it was refused for want of room, which in a cluster is looked at first.
    """
    stream = journal_stream(number)
    headers = {"Nats-Expected-Stream": stream, "Nats-Expected-Last-Sequence": str(NO_SEQUENCE)}
    try:
        answer = await client.request(subjects.closed(number), b"", timeout=API_TIMEOUT_SECONDS, headers=headers)
    except NO_ANSWER as error:
        raise JournalUnavailableError(f"{stream} is closed, and nobody leads it now") from error
    refusal = msgspec.json.decode(answer.data).get("error") or {}
    if refusal.get("code") == 503:
        raise JournalUnavailableError(f"{stream} is closed, and cannot be asked now: {refusal.get('description')}")
    if refusal.get("err_code") == FULL_CODE:
        return None
    match = _WRONG_LAST_SEQUENCE.match(refusal.get("description", ""))
    if refusal.get("err_code") != WRONG_LAST_SEQUENCE_CODE or match is None:
        raise JournalError(f"{stream} was asked for its end and should have named it in a refusal: {refusal}")
    return int(match[1])


class Sealer:
    """Seals closed generations when every copy was whole for a while; each look is quick, and waits for nothing."""

    def __init__(self, client: Client) -> None:
        self._js = JetStream(client)
        self._whole_since: dict[int, tuple[str, float]] = {}

    async def seal(self, number: int) -> bool:
        """Seal a closed generation if it may be done; say whether it is sealed. One that is gone stays so.

        A copy that has acknowledged a frame has it in its log and will apply it: that it did is nowhere to be read, so
        it is given WHOLE_SECONDS under one leader, in which it must be heard of all the time.
        """
        info = await self._js.info(journal_stream(number))
        if info is None or not (there := described(number, info)).closed:
            return False
        if there.sealed:
            return True
        if not self._whole_for_long(number, info):
            return False
        try:
            await _update(self._js, {**info["config"], "max_bytes": -1, "sealed": True})
        except ApiError as error:
            if error.code != STREAM_MISSING_CODE:
                raise
            return False  # trimmed a moment ago
        return True

    def _whole_for_long(self, number: int, info: dict[str, Any]) -> bool:
        if not _replicas(info):
            return True
        now, leader = asyncio.get_running_loop().time(), _leader(info)
        known = self._whole_since.pop(number, (leader, now))
        if behind(info):
            return False
        since = known[1] if known[0] == leader else now
        self._whole_since[number] = (leader, since)
        return now - since >= WHOLE_SECONDS


def behind(info: dict[str, Any]) -> list[str]:
    """Return the servers whose copy lacks something, or that were not heard of lately, as the stream's leader sees it.

    For some seconds a leader calls a dead server current: only the time since it was heard of tells.
    """
    return [
        each["name"]
        for each in _replicas(info)
        if not each.get("current")
        or each.get("lag")
        or each.get("offline")
        or not 0 < each.get("active", 0) < SILENT_SECONDS_MAX * 1e9
    ]


def _replicas(info: dict[str, Any]) -> list[dict[str, Any]]:
    return (info.get("cluster") or {}).get("replicas") or []


def _leader(info: dict[str, Any]) -> str:
    return str((info.get("cluster") or {}).get("leader") or "")


async def _update(js: JetStream, config: dict[str, Any]) -> None:
    await js.call(f"STREAM.UPDATE.{config['name']}", config)
