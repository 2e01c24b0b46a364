"""The sole owner of what runs on this node: takes orders, keeps the books, runs one runner per attempt.

It never acts twice on one (job, attempt, rank): whatever it has once taken, refused or ended stays known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec
import structlog
from tidegate_events.events import HeldSandbox, NodeJoined, Reason
from tidegate_events.orders import FORGOTTEN_INCARNATION, NodeOrders, SandboxOrder

from tidegate_executor import admission, conclusion, image_news, preparation, retention, runner
from tidegate_executor.admission import Claim, Offer
from tidegate_executor.attempt_memory import ORDER_SUFFIX, AttemptMemory
from tidegate_executor.attempts import facts, transitions
from tidegate_executor.attempts.state import AttemptState, sandbox_id
from tidegate_executor.context import Context
from tidegate_executor.images import find
from tidegate_executor.prefetching import Prefetcher
from tidegate_executor.runner import AttemptRunner
from tidegate_executor.sandbox.base import FoundSandbox, InfrastructureError, Sandbox

log = structlog.get_logger()
_replace = msgspec.structs.replace
JOIN_INTERVAL_NS = 5_000_000_000
"""Between two times that it joins."""


class NodeAgent:
    """See the module. `tasks` runs the attempts; `incarnation` is that of this start."""

    def __init__(self, context: Context, incarnation: int, tasks: asyncio.TaskGroup) -> None:
        self._context = context
        self.incarnation = incarnation
        self._tasks = tasks
        self._runners: dict[str, AttemptRunner] = {}
        self._ended: dict[str, tuple[AttemptState, str | None]] = {}
        self._newest_orders = (0, 0)
        self._offer: Offer | None = None
        self._joined_ns = 0
        self._told = image_news.Images()
        self._prefetcher = Prefetcher(context.images, context.starts)
        context.images.in_use = self._images_in_use
        context.images.leaving = context.warm.leave
        context.warm.claimed = self._uid_slots

    # ---- what there is ----

    def find(self, sandbox: str) -> AttemptState | None:
        """Return what is known of an attempt."""
        if sandbox in self._runners:
            return self._runners[sandbox].memory.state
        ended = self._ended.get(sandbox)
        return ended[0] if ended else None

    def newest(self, job: str, rank: int) -> AttemptState | None:
        """Return the newest attempt of a job's member here."""
        known = [attempt_runner.memory.state for attempt_runner in self._runners.values()]
        known += [state for state, _ in self._ended.values()]
        of_member = [state for state in known if (state.job, state.rank) == (job, rank)]
        return max(of_member, key=lambda state: state.attempt, default=None)

    def begun(self, job: str, attempt: int) -> bool | None:
        """Say of an attempt whose members here have all ended whether it had begun; None where none was known."""
        ended = [state for state, _ in self._ended.values() if (state.job, state.attempt) == (job, attempt)]
        return any(state.begun for state in ended) if ended else None

    def main_component(self, sandbox: str) -> str | None:
        """Return the name of an attempt's main component."""
        if sandbox in self._runners:
            return self._runners[sandbox].memory.order.spec.main_component.name
        ended = self._ended.get(sandbox)
        return ended[1] if ended else None

    @property
    def running(self) -> list[str]:
        """Return the sandboxes that are not over."""
        return sorted(self._runners)

    def sandboxes(self) -> list[tuple[AttemptState, Sandbox]]:
        """Return the sandboxes in which something may run, each with what is known of its attempt."""
        return [
            (each.memory.state, each.sandbox)
            for each in self._runners.values()
            if each.sandbox is not None and not each.memory.state.is_over
        ]

    def _claims(self) -> list[Claim]:
        return [
            admission.claim_of(
                each.memory.order,
                each.memory.state.uid_slot,
                each.memory.state.gpu_indices,
                tuple(phase for phase in (each.memory.state.phase.journaled, each.memory.state.granted) if phase),
            )
            for each in self._runners.values()
            if not each.memory.state.is_over
        ]

    # ---- starting ----

    async def reconcile(
        self, remembered: Mapping[str, tuple[AttemptState, SandboxOrder | None]], found: Mapping[str, FoundSandbox]
    ) -> None:
        """Take up what an earlier incarnation left: follow what lives, report what is gone as lost, remove the rest."""
        for key, (state, order) in remembered.items():
            if state.is_over or order is None:
                self._ended[key] = (state, order.spec.main_component.name if order else None)
                continue
            memory = AttemptMemory(self._context.spool, order, state)
            here = found.get(key)
            if here is not None and here.condition != "lost":
                self._run(memory, here.sandbox)
            else:
                await self._lose(memory, here)
        for key, leftover in found.items():
            if key not in self._runners:
                await self._destroy(leftover.sandbox)
        # An earlier incarnation may have been killed after the end of a sandbox, before what lay beside it was removed.
        for name in await asyncio.to_thread(preparation.leftovers, self._context) - set(self._runners):
            await asyncio.to_thread(preparation.clean, self._context, name)

    async def _lose(self, memory: AttemptMemory, here: FoundSandbox | None) -> None:
        why = "its sandbox broke down" if here is not None else "its sandbox is gone"
        if here is not None:
            await self._destroy(here.sandbox)  # first: its room is free when nothing of it runs any more
        memory.change(
            transitions.fail(memory.state, "infrastructure", f"{why}, found at the start of the node's agent")
        )
        attempt_log = log.bind(sandbox=memory.state.id, job=memory.state.job)
        await conclusion.report_lost(self._context, memory, attempt_log)
        self._ended[memory.state.id] = (memory.state, memory.order.spec.main_component.name)
        await asyncio.to_thread(preparation.clean, self._context, memory.state.id)

    async def _destroy(self, sandbox: Sandbox) -> None:
        try:
            await sandbox.destroy()
        except (InfrastructureError, OSError) as error:
            log.error("leftover_not_removed", sandbox=sandbox.id, why=str(error))

    async def join(self, offer: Offer) -> None:
        """Put NodeJoined on disk, with what is held at that moment; facts put earlier come before it."""
        self._offer = offer
        self._joined_ns = self._context.clock.now_ns()
        capacity = offer.capacity
        held = [each.memory.state for each in self._runners.values() if not each.memory.state.is_over]
        joined = NodeJoined(
            id="",
            at_ns=self._context.clock.now_ns(),
            node=self._context.node,
            incarnation=self.incarnation,
            capacity=capacity.resources,
            levels=tuple(sorted(offer.levels)),
            images={name: image.digest for name, image in offer.images.items()},
            gpus=capacity.gpus,
            cpu_model=capacity.cpu_model,
            isa=capacity.isa,
            sandboxes=tuple(HeldSandbox(job=s.job, attempt=s.attempt, rank=s.rank) for s in held),
            rack=self._context.settings.rack,
            switch=self._context.settings.switch,
            address=self._context.settings.address,
            fetches_images=offer.fetches_images,
            gpu_levels=admission.gpu_levels(offer),
        )
        sizes = self._context.images.news().size_bytes
        self._told = image_news.Images(digests=joined.images, size_bytes=sizes)
        self._context.images.changed.set()  # what could not be had is said anew to one who has forgotten it
        log.info("node_joining", incarnation=self.incarnation, held=len(held), levels=joined.levels)
        await self._context.spool.put([joined])

    async def _join_again(self) -> None:
        """Join as a node that the scheduler has forgotten; where it has not, that says nothing new to it."""
        now_ns = self._context.clock.now_ns()
        if self._offer is not None and now_ns - self._joined_ns >= JOIN_INTERVAL_NS:
            log.warning("joins_again", why="the scheduler keeps nothing of this node any more")
            await self.join(self._offer)

    # ---- images ----

    async def prefetch(self) -> None:
        """Follow the hints of the orders until cancelled."""
        await self._prefetcher.run()

    async def tell_images(self) -> None:
        """Say which images came and left whenever that has changed, until cancelled."""
        shelf = self._context.images
        while True:
            await shelf.changed.wait()
            shelf.changed.clear()
            now = shelf.news()
            stamp = (self._context.node, self.incarnation, self._context.clock.now_ns())
            if events := image_news.since(self._told, now, stamp):
                await self._context.spool.put(events)
            self._told = now

    def _uid_slots(self) -> set[int]:
        return {claim.uid_slot for claim in self._claims()}

    def _images_in_use(self) -> set[str]:
        """Return the images that members here run on or are made ready with, as they named them."""
        memories = [each.memory for each in self._runners.values()]
        return {memory.order.spec.image for memory in memories} | {memory.state.image_digest for memory in memories}

    # ---- orders ----

    async def on_orders(self, orders: NodeOrders) -> None:
        """Carry out the desired state; older and foreign orders are ignored, what is not mentioned is left alone."""
        if orders.node == self._context.node and orders.incarnation == FORGOTTEN_INCARNATION:
            await self._join_again()
            return
        version = (orders.epoch, orders.at_seq)
        if orders.node != self._context.node or orders.incarnation != self.incarnation:
            log.debug("orders_ignored", incarnation=orders.incarnation)
            return
        if version < self._newest_orders:
            return
        self._newest_orders = version
        self._prefetcher.hint(orders.prefetch)
        news = []
        for order in orders.sandboxes:
            key = sandbox_id(order.job, order.attempt, order.rank)
            if key in self._runners:
                self._runners[key].offer(order, orders.at_seq)
            elif key not in self._ended:
                news.append(order)
        for order in news:  # last: devices that others gave back are free by then
            await self._on_new(order, orders.at_seq)

    async def _on_new(self, order: SandboxOrder, at_seq: int) -> None:
        assert self._offer is not None, "orders come after NodeJoined"
        now_ns = self._context.clock.now_ns()
        claims = self._claims()
        image = find(self._offer.images, order.spec.image)
        state = runner.new_state(
            order,
            now_ns,
            image_digest=image.digest if image else "",
            uid_slot=admission.free_uid_slot(order.job, claims),
        )
        memory = AttemptMemory(self._context.spool, order, state)
        if order.desired != "run":
            memory.change(transitions.on_order(state, order, at_seq))
            await self._end_unknown(memory)
        elif (reason := admission.refusal(order, self._offer, claims)) is not None:
            await self._refuse(memory, reason, now_ns)
        else:
            log.info("placement_taken", sandbox=state.id, job=order.job, isolation=state.level)
            alone = not any(claim.job == order.job for claim in claims)  # else it shares a user with others of its job
            if image is not None and alone:
                slot = self._context.warm.promise(state.level, image, state.id, devices=bool(order.gpu_indices))
                state = memory.state = _replace(state, uid_slot=state.uid_slot if slot is None else slot)
            memory.change(transitions.on_order(state, order, at_seq))
            self._run(memory, None)

    async def _end_unknown(self, memory: AttemptMemory) -> None:
        """A stop for what never came here: nothing of it runs, and the scheduler waits to hear that."""
        attempt_log = log.bind(sandbox=memory.state.id, job=memory.state.job)
        await memory.commit_first()
        await conclusion.report(self._context, memory, (), attempt_log)
        self._remember(memory)

    async def _refuse(self, memory: AttemptMemory, reason: Reason, now_ns: int) -> None:
        log.warning("placement_rejected", sandbox=memory.state.id, code=reason.code, detail=reason.detail)
        fact = facts.rejected(memory.order, self._context.node, reason, now_ns)
        await memory.commit([fact], state=_replace(memory.state, stage="rejected", ended_ns=now_ns))
        self._remember(memory)

    def _run(self, memory: AttemptMemory, sandbox: Sandbox | None) -> None:
        attempt_runner = AttemptRunner(self._context, memory, sandbox)
        self._runners[memory.state.id] = attempt_runner
        self._tasks.create_task(self._attend(attempt_runner))

    async def _attend(self, attempt_runner: AttemptRunner) -> None:
        # The task is this attempt's own: whatever it logs, deep down too, is about it.
        structlog.contextvars.bind_contextvars(sandbox=attempt_runner.memory.state.id)
        try:
            await attempt_runner.run()
        except Exception as error:
            if self._context.spool.broken or _is_of_the_node(error):
                raise  # the agent ends, and its sandboxes run on: the next start may find the node in a better state
            # One member must not take the node's other ones along, nor again at each start of the agent.
            log.exception("attempt_fault")
            await attempt_runner.give_up(error)
        self._context.warm.withdraw(attempt_runner.memory.state.level, attempt_runner.memory.state.id)
        del self._runners[attempt_runner.memory.state.id]
        self._remember(attempt_runner.memory)

    def _remember(self, memory: AttemptMemory) -> None:
        self._ended[memory.state.id] = (memory.state, memory.order.spec.main_component.name)

    async def tidy(self) -> None:
        """Keep the memory of ended attempts, their logs and the cached workdirs within bounds."""
        forgotten = retention.beyond_bound([state for state, _ in self._ended.values()])
        if forgotten:
            for name in forgotten:
                del self._ended[name]
            await self._context.spool.put(
                states={key: None for name in forgotten for key in (name, name + ORDER_SUFFIX)}
            )
        await asyncio.to_thread(retention.trim_logs, self._context.paths.logs, set(self._runners))
        await asyncio.to_thread(self._context.workdirs.trim, _workdirs_in_use(self._runners.values()))
        await self._context.images.trim()


def _workdirs_in_use(runners: Iterable[AttemptRunner]) -> set[str]:
    return {each.memory.order.spec.workdir.removeprefix("sha256:") for each in runners}


def _is_of_the_node(error: BaseException) -> bool:
    """Say whether the system refused something (descriptors, disk), which is no member's fault."""
    if isinstance(error, BaseExceptionGroup):
        return any(_is_of_the_node(each) for each in error.exceptions)
    return isinstance(error, OSError)
