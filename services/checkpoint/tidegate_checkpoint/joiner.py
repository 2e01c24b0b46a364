"""Carries saves of gangs on several nodes through: brings parts to a shared tier, joins them, or vetoes the save.

What is to be done follows from the journal (saves.py), so a restart goes on where it stood: a part that was sent is not
sent again, and a root that was made is made once more, the same. Nothing is told before it is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal, cast

import msgspec
import structlog
from tidegate.checkpoint import nodepart, places
from tidegate.checkpoint.root import Root
from tidegate.errors import CheckpointError, CorruptCheckpointError, SaveFailedError, UsageError
from tidegate.tiers import joining
from tidegate.tiers.holding import HotHolding
from tidegate.tiers.job import JobTier
from tidegate.tiers.objects import TierUnavailableError
from tidegate.tiers.tiers import Tiers
from tidegate_events import events as e
from tidegate_events.clock import Clock
from tidegate_events.frame import Frame, Writer
from tidegate_events.joins import Answer, Joined, JoinQuestion, Vetoed, Waiting

from tidegate_checkpoint import saves
from tidegate_checkpoint.fold import Fold
from tidegate_checkpoint.meters import Meters
from tidegate_checkpoint.pen import Pen
from tidegate_checkpoint.questions import decoded, refusal
from tidegate_checkpoint.restore import RefusedError
from tidegate_checkpoint.saves import Part, Save
from tidegate_checkpoint.verdicts import made
from tidegate_checkpoint.verify import InterruptedByStopError, Stopping

LOOK_SECONDS = 0.2
RETRY_SECONDS = 2.0
AT_ONCE = 4
"""How many parts are brought, and saves decided, at a time; of one save one thing after the other."""
DETAIL_CHARS_MAX = 500

log = structlog.get_logger()


class Joiner:
    """`node` is the one whose parts it brings (empty: all nodes'); it decides the saves whose rank 0 is there."""

    def __init__(  # noqa: PLR0917
        self, node: str, tiers: Tiers, fold: Fold, pen: Pen, clock: Clock, stopping: Stopping, meters: Meters
    ) -> None:
        self._node = node
        self._tiers = tiers
        self._fold = fold
        self._pen = pen
        self._clock = clock
        self._busy: set[tuple[str, str]] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._stopping = stopping
        self._meters = meters

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for save in self._fold.catalogue.saves.undecided():
                    key = (save.job, save.key)
                    if key not in self._busy and (work := self._due(save)) is not None:
                        self._busy.add(key)
                        tasks.create_task(self._do(key, work))
                await asyncio.sleep(LOOK_SECONDS)

    def _due(self, save: Save) -> Callable[[], Awaitable[None]] | None:
        """Return what is to be done about a save, None where nothing is."""
        if (reason := saves.veto(save, self._node, self._clock.now_ns())) is not None:
            return lambda: self._veto(save, reason)
        if saves.to_join(save, self._node):
            return lambda: self._join(save)
        if parts := saves.to_promote(save, self._node):
            return lambda: self._promote(save, parts[0])
        return None

    async def _do(self, key: tuple[str, str], work: Callable[[], Awaitable[None]]) -> None:
        try:
            async with self._slots:
                await work()
        except InterruptedByStopError:
            return
        except (CheckpointError, OSError) as error:
            self._meters.upkeep_failed.labels("joining").inc()
            log.warning("joining_waits", job=key[0], save=key[1], why=str(error))
            await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._busy.discard(key)

    def _tier(self, save: Save) -> JobTier | None:
        """Return the nearest tier that nodes share."""
        return next(iter(self._tiers.of_job(save.begun.tenant, save.job)), None)

    # ---- parts ----

    async def _promote(self, save: Save, part: Part) -> None:
        try:
            tier = self._tier(save)
            if tier is None:
                raise SaveFailedError("there is no tier that nodes share: set TIDEGATE_WARM or TIDEGATE_COLD")
            await asyncio.to_thread(self._send, save, part, tier)
        except TierUnavailableError:
            raise
        except CheckpointError as error:
            await self._say_failed(save, part, str(error))
            return

        def frame(writer: Writer, common: dict[str, Any]) -> Frame:
            shared = cast(Literal["warm", "cold"], tier.name)
            promoted = e.CheckpointPartPromoted(
                id=writer.event_id(0), **common, save=save.key, node=part.node, part_id=part.ref.id, tier=shared
            )
            return Frame(writer, (promoted,))

        def is_said() -> bool:
            known = save.parts.get(part.node)
            return self._is_decided(save) or known is None or bool(known.tier)

        await self._pen.write(save.begun, "", frame, is_said)
        if self._is_decided(save) and save.outcome != "joined":
            await asyncio.to_thread(joining.forget, tier, [_named(part)])
        log.info("part_promoted", job=save.job, save=save.key, node=part.node, tier=tier.name)

    def _send(self, save: Save, part: Part, tier: JobTier) -> None:
        """Read a part as it was reported and bring it to the tier. Blocks. It believes nothing that a job wrote."""
        path = self._tiers.hot / save.begun.tenant / save.job
        with self._tiers.staging() as staging:
            try:
                with places.opened(path) as held:
                    root = nodepart.read(held, nodepart.NODE_PARTS, part.ref.directory)
                    _check_reported(root, save, part)
                    joining.promote(root, HotHolding(held), tier, staging, self._on_moved)
            except FileNotFoundError as error:
                raise CorruptCheckpointError(f"the store of job {save.job} on node {part.node} is gone") from error

    def _on_moved(self, size_bytes: int) -> None:
        self._meters.moved_bytes.inc(size_bytes)
        if self._stopping():
            raise InterruptedByStopError

    async def _say_failed(self, save: Save, part: Part, why: str) -> None:
        def frame(writer: Writer, common: dict[str, Any]) -> Frame:
            failed = e.CheckpointPartFailed(
                id=writer.event_id(0),
                **common,
                rank=part.ranks[0],
                node=part.node,
                save=save.key,
                nodes=save.nodes,
                reason=_reason("NotPromoted", why),
                step=save.step,
            )
            return Frame(writer, (failed,))

        log.warning("part_not_promoted", job=save.job, save=save.key, node=part.node, why=why)
        await self._pen.write(save.begun, "", frame, lambda: self._is_decided(save) or save.failure is not None)

    # ---- decisions ----

    async def _join(self, save: Save) -> None:
        parts = [_named(part) for part in save.all_parts]
        try:
            tier = self._tier(save)
            if tier is None or {part.tier for part in save.all_parts} != {tier.name}:
                raise SaveFailedError("the parts are not in one tier that this service knows")
            root = await asyncio.to_thread(joining.join, tier, parts)
        except TierUnavailableError:
            raise
        except (CheckpointError, UsageError) as error:
            await self._veto(save, _reason("NotOneCheckpoint", str(error)))
            return
        await self._tell(save, tier, root)

    async def _tell(self, save: Save, tier: JobTier, root: Root) -> None:
        """Say that the root is there; where another one has vetoed the save meanwhile, it is no checkpoint."""
        ref, name = _reference(root), cast(Literal["warm", "cold"], tier.name)
        first = (root.stamp.rank, save.nodes[0])
        await self._pen.write(
            save.begun,
            "",
            lambda writer, common: made(first, ref, name, writer, common, save.key),
            lambda: self._is_decided(save),
        )
        if save.outcome == "vetoed":
            await asyncio.to_thread(tier.remove_root, root.name)
        await self._forget(save, tier)
        log.info("checkpoint_joined", job=save.job, save=save.key, checkpoint=root.id, outcome=save.outcome)

    async def _made_before(self, save: Save) -> tuple[JobTier, Root] | None:
        """Return the root that a joiner made who ended before it could say so: it is there, whatever came after."""
        tier = self._tier(save)
        if tier is None or not save.ready:
            return None
        try:
            root = await asyncio.to_thread(joining.made, tier, [_named(part) for part in save.all_parts])
        except TierUnavailableError:
            raise
        except (CheckpointError, UsageError):
            return None  # what is no checkpoint was not made one
        return (tier, root) if root is not None else None

    async def _veto(self, save: Save, reason: e.Reason) -> None:
        if (before := await self._made_before(save)) is not None:
            await self._tell(save, *before)
            return

        def frame(writer: Writer, common: dict[str, Any]) -> Frame:
            failed = e.CheckpointFailed(
                id=writer.event_id(0), **common, stage="save", reason=reason, step=save.step, save=save.key
            )
            return Frame(writer, (failed,))

        await self._pen.write(save.begun, "", frame, lambda: self._is_decided(save))
        log.warning("checkpoint_vetoed", job=save.job, save=save.key, code=reason.code, why=reason.detail)
        if (tier := self._tier(save)) is not None:
            await self._forget(save, tier)

    async def _forget(self, save: Save, tier: JobTier) -> None:
        """Keep the parts in the tier no longer; where it does not answer, they go by their age."""
        try:
            await asyncio.to_thread(joining.forget, tier, [_named(part) for part in save.all_parts])
        except TierUnavailableError as error:
            log.warning("parts_not_forgotten", job=save.job, save=save.key, why=str(error))

    def _is_decided(self, save: Save) -> bool:
        return saves.is_decided(self._fold.catalogue.saves, save)

    # ---- answers ----

    async def answer(self, data: bytes) -> bytes:
        """Say what became of a part, as far as the journal was read."""
        try:
            question = decoded(data, JoinQuestion)
        except RefusedError as error:
            return refusal(error)
        return msgspec.json.encode(said(self._fold.catalogue.saves.find(question.job, question.save), question.part_id))


def said(save: Save | None, part_id: str) -> Answer:
    """Return what is known of a save to who stored that part of it."""
    if save is None or not save.outcome:
        return Waiting()
    if save.vetoed is not None:
        return Vetoed(save.vetoed.detail or save.vetoed.code)
    assert save.joined is not None
    if all(part.ref.id != part_id for part in save.parts.values()):
        return Vetoed("another part of this node is in the checkpoint: it was stored before this process began again")
    ref, tier = save.joined.checkpoint, cast(Literal["warm", "cold"], save.joined.tier)
    return Joined(checkpoint_id=ref.id, directory=ref.directory, tier=tier)


def _named(part: Part) -> joining.Part:
    return joining.Part(part.ref.directory, part.ref.id, part.ranks)


def _check_reported(root: Root, save: Save, part: Part) -> None:
    if root.id != part.ref.id:
        raise CorruptCheckpointError(f"part {root.name} on node {part.node} is another one than was reported")
    whose = (root.stamp.job, root.stamp.attempt, root.step)
    if whose != (save.job, save.begun.attempt, save.step):
        raise CorruptCheckpointError(f"part {root.name} says that its job, attempt and step are {whose}")


def _reference(root: Root) -> e.CheckpointRef:
    layers = tuple(e.LayerRef(name=each.name, digest=each.manifest, size_bytes=each.bytes) for each in root.layers)
    return e.CheckpointRef(
        id=root.id, step=root.step, attempt=root.stamp.attempt, directory=root.name, layers=layers, lost=root.lost
    )


def _reason(code: str, detail: str) -> e.Reason:
    return e.Reason(code=code, detail=detail.encode("ascii", "backslashreplace").decode()[:DETAIL_CHARS_MAX])
