"""The journal's generations as the keeper handles them: what there is, and each step of going on to the next one."""

from __future__ import annotations

from nats.aio.client import Client
from tidegate_events.contract import may_say
from tidegate_events.events import GenerationOpened
from tidegate_events.frame import decode
from tidegate_events.journal import closing
from tidegate_events.journal import generations as steps
from tidegate_events.journal.base import JournalError
from tidegate_events.journal.generations import Generation
from tidegate_events.journal.jetstream import STREAM_MISSING_CODE, ApiError, JetStream, raw_of
from tidegate_events.subjects import fact, speaks_for

KEEPER_FACTS = fact("keeper", "any").removesuffix("any") + "*"
FACTS_PER_GENERATION_MAX = 1000
ROOM_STREAM = "JOURNAL_ROOM"
ROOM_SUBJECT = "tg.room"


class JournalStreams:
    """The streams of one account. Every step may be repeated."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._js = JetStream(client)
        self._sealer = closing.Sealer(client)

    async def generations(self) -> tuple[Generation, ...]:
        """Return those that are streams, oldest first."""
        return await steps.generations(self._client)

    async def check_room(self, live: Generation, max_bytes: int) -> None:
        """Raise JournalError where the bus has no room for another generation beside the live one.

        Only the server knows what it has promised to whom, so it is asked for that much, which is given back at once.
        A generation that is closed with no room for the next one would stop every writer, though it is not full.
        """
        config = {
            "name": ROOM_STREAM,
            "subjects": [ROOM_SUBJECT],
            "storage": "file",
            "max_bytes": max_bytes,
            "num_replicas": await self._replicas(live.number),
        }
        await self._give_back_room()
        try:
            await self._js.call(f"STREAM.CREATE.{ROOM_STREAM}", config)
        except ApiError as error:
            raise JournalError(f"the bus has no room for another {max_bytes} bytes: {error}") from error
        await self._give_back_room()

    async def _give_back_room(self) -> None:
        try:
            await self._js.call(f"STREAM.DELETE.{ROOM_STREAM}")
        except ApiError as error:
            if error.code != STREAM_MISSING_CODE:
                raise

    async def close(self, number: int) -> Generation:
        """Close a generation for ever."""
        return await closing.close(self._client, number)

    async def seal(self, number: int) -> bool:
        """Seal a closed generation if all its copies are whole; say whether it is sealed."""
        return await self._sealer.seal(number)

    async def open_next(self, number: int, *, max_bytes: int) -> Generation:
        """Open the generation after `number`, with as many replicas as that has."""
        replicas = await self._replicas(number)
        return await closing.open_next(self._client, number, max_bytes=max_bytes, replicas=replicas)

    async def _replicas(self, number: int) -> int:
        info = await self._js.info(steps.journal_stream(number))
        return 1 if info is None else int(info["config"].get("num_replicas", 1))

    async def trim(self, number: int) -> None:
        """Delete a closed generation's stream."""
        await steps.trim(self._client, number)

    async def opening(self, generation: Generation) -> GenerationOpened | None:
        """Return what was said when the generation opened; None where nothing was said yet.

        It lies in the generation itself, or in a later one where that was full before it could be said.
        """
        for there in await self.generations():
            if there.number >= generation.number and (found := await self._opening_in(there, generation.number)):
                return found
        return None

    async def _opening_in(self, generation: Generation, number: int) -> GenerationOpened | None:
        after = generation.first_seq - 1
        for _ in range(FACTS_PER_GENERATION_MAX):
            message = await self._js.message(generation.stream, {"seq": after + 1, "next_by_subj": KEEPER_FACTS})
            if message is None:
                return None
            found = raw_of(message)
            frame = decode(found.data)
            for event in frame.events if speaks_for(found.subject, frame.writer) else ():
                if not isinstance(event, GenerationOpened) or not may_say(frame.writer, event):
                    continue
                if event.generation == number:
                    return event
            after = found.seq
        raise JournalError(f"{generation.stream} holds {FACTS_PER_GENERATION_MAX} facts of keepers: one is expected")
