"""Tells processes what became of the parts they stored of checkpoints of several nodes: asks until it is decided.

Nothing is remembered over a restart: a process says on each connection what it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog
from tidegate.errors import CheckpointError
from tidegate_events.joins import Answer, Joined, JoinQuestion, Vetoed, Waiting, decode_answer

from tidegate_executor import checkpoints
from tidegate_executor.channel.handler import Send
from tidegate_executor.settings import Settings

LOOK_SECONDS = 0.25
AWAITED_PER_JOB_MAX = 32
"""Of one node; a process beyond that is not told, and gives up by itself. Its saves come one after the other."""
ASKED_AT_ONCE = 8

Ask = Callable[[bytes], Awaitable[bytes | None]]
"""Asks the checkpoint service; None where nobody answered."""

log = structlog.get_logger()


class Awaited(msgspec.Struct, frozen=True):
    """A process, and the part of which it waits to be told."""

    tenant: str
    job: str
    client: str
    save: str
    part: str


class JoinWatch:
    """One per agent."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._awaited: dict[Awaited, Send] = {}
        self._changed = asyncio.Event()

    def add(self, awaited: Awaited, send: Send) -> None:
        """Have a process told, by `send`, as soon as it is decided."""
        if sum(each.job == awaited.job for each in self._awaited) >= AWAITED_PER_JOB_MAX:
            log.error("join_not_awaited", job=awaited.job, save=awaited.save, awaited=AWAITED_PER_JOB_MAX)
            return
        self._awaited[awaited] = send
        self._changed.set()

    def drop(self, job: str, client: str) -> None:
        """A process is gone: it says again what it waits for when it comes back."""
        for awaited in [each for each in self._awaited if (each.job, each.client) == (job, client)]:
            del self._awaited[awaited]

    async def run(self, ask: Ask) -> None:
        """Ask and tell until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._awaited:
                waiting = list(self._awaited)
                for start in range(0, len(waiting), ASKED_AT_ONCE):
                    some = waiting[start : start + ASKED_AT_ONCE]
                    await asyncio.gather(*(self._look(awaited, ask) for awaited in some))
                await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, awaited: Awaited, ask: Ask) -> None:
        question = JoinQuestion(job=awaited.job, save=awaited.save, part_id=awaited.part)
        data = await ask(msgspec.json.encode(question))
        if data is None:
            return
        try:
            answer = decode_answer(data)
        except msgspec.MsgspecError as error:
            log.error("join_answer_unreadable", job=awaited.job, why=str(error))
            return
        if isinstance(answer, Waiting):
            return
        message = await self._message(awaited, answer)
        if message is not None and (send := self._awaited.pop(awaited, None)) is not None:
            send({"kind": "joined", "save": awaited.save, "part": awaited.part, **message})

    async def _message(self, awaited: Awaited, answer: Answer) -> dict[str, Any] | None:
        if isinstance(answer, Vetoed):
            return {"failed": answer.why}
        assert isinstance(answer, Joined)
        try:
            await asyncio.to_thread(checkpoints.copy_joined, self._settings, awaited.tenant, awaited.job, answer)
        except (CheckpointError, OSError) as error:
            # It is a checkpoint all the same: it is looked for again until the process gives up.
            log.warning("joined_root_not_copied", job=awaited.job, checkpoint=answer.checkpoint_id, why=str(error))
            return None
        return {"root": answer.directory, "id": answer.checkpoint_id, "tier": answer.tier}
