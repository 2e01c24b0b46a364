"""The agent as a process: reconciles first, then joins, then obeys; and keeps going while the bus is away.

Order matters. What an earlier incarnation left is followed before anything else; NodeJoined is in the journal before
an order is obeyed; exits that happened meanwhile are either before NodeJoined in the spool, or the sandbox is listed
as held. When the process ends, for whatever reason, sandboxes run on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from tidegate_events import orders, subjects
from tidegate_events.bus import BusUnreachableError, connect
from tidegate_events.cancellation import honour_cancellation
from tidegate_events.clock import Clock
from tidegate_events.joins import JOIN_SUBJECT
from tidegate_events.journal.base import JournalUnavailableError
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.process import say_ready

from tidegate_executor import attempt_memory, backends, capacity, devices, lock, log_queries, sdk_copy
from tidegate_executor.admission import Offer, offerable
from tidegate_executor.agent import NodeAgent
from tidegate_executor.context import Context
from tidegate_executor.gang.exchange import GangExchange
from tidegate_executor.image_shelf import ImageShelf
from tidegate_executor.joins import JoinWatch
from tidegate_executor.sampling.node import NodeReader
from tidegate_executor.sampling.reports import ProcessReports
from tidegate_executor.sampling.sampler import Sampler
from tidegate_executor.sampling.stamp import Stamp
from tidegate_executor.sandbox.base import SandboxBackend
from tidegate_executor.sandbox.launch import zygotes
from tidegate_executor.settings import Settings
from tidegate_executor.spool.incarnation import next_incarnation, recorded_incarnation
from tidegate_executor.spool.publisher import FactPublisher
from tidegate_executor.spool.spool import Spool
from tidegate_executor.starts import Starts
from tidegate_executor.user_stream import NatsUserStream
from tidegate_executor.warm_pool import WarmPool
from tidegate_executor.workdirs import Workdirs

HEARTBEAT_SECONDS = 1.0
TIDY_SECONDS = 60.0
LOCK_SECONDS_MAX = 10.0  # for a predecessor that is just ending
RETRY_SECONDS = 1.0
ASK_SECONDS_MAX = 2.0

log = structlog.get_logger()


async def serve(settings: Settings, clock: Clock) -> None:
    """Run the agent until it is cancelled."""
    paths = settings.paths
    paths.ensure()
    await asyncio.to_thread(lock.hold, paths.lock, LOCK_SECONDS_MAX)
    available = backends.make(await asyncio.to_thread(backends.record, settings))
    levels = await backends.offered_levels(settings, available)
    found = await backends.find_all(available)
    await backends.clear_strays(available)
    async with asyncio.TaskGroup() as tasks:
        bus: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        tasks.create_task(_connect(settings, bus))
        incarnation = await _incarnation(settings, bus)
        log.info("agent_starting", node=settings.node, incarnation=incarnation, sandboxes=sorted(found))
        spool = Spool(paths.spool, paths.attempts, node=settings.node, epoch=incarnation)
        remembered = attempt_memory.recall(await asyncio.to_thread(spool.open))
        tasks.create_task(spool.run_flusher())
        context = await _context(settings, clock, spool, available)
        agent = NodeAgent(context, incarnation, tasks)
        await agent.reconcile(remembered, found)
        tasks.create_task(context.images.measure())  # by now it is known which images members run on: they stay
        # Joining waits until the images are measured, for a minute perhaps; the node must not count as lost meanwhile.
        beat = orders.Heartbeat(node=settings.node, incarnation=incarnation, at_ns=0)
        tasks.create_task(_beat(bus, beat, clock))
        detected = await asyncio.to_thread(capacity.detect, settings)
        gpu_levels = await asyncio.to_thread(devices.gpu_levels, settings, [gpu.index for gpu in detected.gpus])
        offered = offerable(detected, levels, gpu_levels)
        if detected.gpus != offered.gpus:
            log.warning("gpus_not_offered", gpus=len(detected.gpus), why="no offered level passes a GPU to a sandbox")
        shelf = context.images
        offer = Offer(
            capacity=offered,
            levels=levels,
            gpu_levels=gpu_levels,
            images=await shelf.here(),
            fetches_images=shelf.fetches_others,
        )
        await agent.join(offer)
        client = await bus
        tasks.create_task(_publish_facts(settings, spool, client, incarnation))
        tasks.create_task(spool.run_user(NatsUserStream(client).store))
        await spool.drained()
        log.info("node_joined", incarnation=incarnation)
        await _attend(tasks, context, agent, client)


async def _connect(settings: Settings, bus: asyncio.Future[Client]) -> None:
    """Connect, however long it takes: what runs here is followed meanwhile."""
    while True:
        try:
            bus.set_result(await connect(settings.bus))
        except BusUnreachableError as error:
            log.warning("bus_away", why=str(error))
        else:
            return


async def _incarnation(settings: Settings, bus: asyncio.Future[Client]) -> int:
    """Return this start's incarnation; only on a new data directory the bus is needed for it."""
    path, subject = settings.paths.incarnation, subjects.fact("node", settings.node)
    before = await asyncio.to_thread(recorded_incarnation, path)
    while before is None:
        honour_cancellation()
        try:
            last = await NatsJournal(await bus).last(subject)
        except JournalUnavailableError as error:
            log.warning("journal_away", why=str(error))
            await asyncio.sleep(RETRY_SECONDS)
        else:
            before = last.frame.writer.epoch if last else 0
    return await asyncio.to_thread(next_incarnation, path, before)


async def _context(settings: Settings, clock: Clock, spool: Spool, available: dict[str, SandboxBackend]) -> Context:
    workdirs = Workdirs(settings.paths.workdirs, settings.gateway_url)
    await asyncio.to_thread(workdirs.open)
    starts = Starts()
    return Context(
        settings=settings,
        paths=settings.paths,
        clock=clock,
        spool=spool,
        backends=available,
        workdirs=workdirs,
        sdk_dir=await asyncio.to_thread(sdk_copy.install, settings.paths.sdk),
        reports=ProcessReports(),
        starts=starts,
        images=ImageShelf(settings, starts),
        warm=WarmPool(available, settings, starts),
        gangs=GangExchange(settings.node),
        joins=JoinWatch(settings),
    )


async def _publish_facts(settings: Settings, spool: Spool, client: Client, incarnation: int) -> None:
    subject = subjects.fact("node", settings.node)
    publisher = FactPublisher(NatsJournal(client), subject, epoch=incarnation)
    await spool.run_facts(publisher.send)


async def _attend(tasks: asyncio.TaskGroup, context: Context, agent: NodeAgent, client: Client) -> None:
    node = context.node

    async def on_orders(message: Msg) -> None:
        try:
            decoded = orders.decode_orders(message.data)
        except msgspec.MsgspecError as error:
            log.error("orders_unreadable", why=str(error))
        else:
            await agent.on_orders(decoded)

    async def on_logs(message: Msg) -> None:
        await message.respond(log_queries.answer(message.data, agent, context.paths.logs))

    async def on_gang(message: Msg) -> None:
        context.gangs.on_message(message.subject, message.data, agent.begun)

    await _serve_subject(tasks, client, subjects.gang_to(node), on_gang)
    tasks.create_task(context.gangs.run(lambda subject, data: _publish(client, subject, data)))
    tasks.create_task(context.joins.run(lambda data: _ask(client, JOIN_SUBJECT, data)))
    await _serve_subject(tasks, client, subjects.order(node), on_orders)
    await _serve_subject(tasks, client, subjects.ask_node(node, "logs"), on_logs)
    sampler = Sampler(
        Stamp(node=node, incarnation=agent.incarnation),
        context.clock,
        context.reports,
        agent.sandboxes,
        NodeReader(
            context.paths.root, counted=lambda: context.images.counters() | context.warm.counters() | zygotes.counters()
        ),
    )
    tasks.create_task(sampler.run(lambda data: _publish(client, subjects.telemetry(node), data)))
    tasks.create_task(_tidy(agent))
    tasks.create_task(agent.prefetch())
    tasks.create_task(context.warm.run())
    tasks.create_task(agent.tell_images())
    tasks.create_task(context.images.convert_own())
    say_ready()


async def _serve_subject(
    tasks: asyncio.TaskGroup, client: Client, subject: str, handle: Callable[[Msg], Awaitable[None]]
) -> None:
    subscription = await client.subscribe(subject)

    async def run() -> None:
        async for message in subscription.messages:
            try:
                await handle(message)
            except nats.errors.Error as error:  # the bus went away under an answer: whoever asked asks again
                log.warning("bus_call_failed", subject=subject, why=repr(error))

    tasks.create_task(run())


async def _beat(bus: asyncio.Future[Client], beat: orders.Heartbeat, clock: Clock) -> None:
    client = await bus
    while True:
        now = msgspec.structs.replace(beat, at_ns=clock.now_ns())
        await _publish(client, subjects.live(beat.node), orders.encode(now))
        await asyncio.sleep(HEARTBEAT_SECONDS)


async def _publish(client: Client, subject: str, data: bytes) -> None:
    """Publish what is worth nothing later: dropped while the bus is away."""
    if not client.is_connected:
        return
    try:
        await client.publish(subject, data)
    except nats.errors.Error as error:
        log.debug("not_published", subject=subject, why=repr(error))


async def _ask(client: Client, subject: str, data: bytes) -> bytes | None:
    """Ask, and return the answer; None where none came: whoever asks does so again."""
    try:
        return (await client.request(subject, data, timeout=ASK_SECONDS_MAX)).data
    except (nats.errors.Error, TimeoutError) as error:
        log.debug("not_answered", subject=subject, why=repr(error))
        return None


async def _tidy(agent: NodeAgent) -> None:
    while True:
        await asyncio.sleep(TIDY_SECONDS)
        await agent.tidy()
