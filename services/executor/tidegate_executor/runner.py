"""Carries one attempt through: makes its sandbox, starts its processes, does what the plan says, reports the end.

It decides nothing: `attempts/` does. When it is cancelled (the agent ends) the sandbox runs on, and a runner of the
next incarnation takes over from the state on disk.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable

import msgspec
import structlog
from tidegate_events import trace
from tidegate_events.events import AnyEvent, Reason
from tidegate_events.orders import SandboxOrder
from tidegate_events.spec import Component

from tidegate_executor import conclusion, granting, prechecks, preparation, refused_calls, resizing
from tidegate_executor.attempt_memory import AttemptMemory
from tidegate_executor.attempts import entry, facts, planning, scaling, transitions
from tidegate_executor.attempts.state import AttemptState, Replica
from tidegate_executor.channel.handler import Sandbox as ChannelPlace
from tidegate_executor.channel.server import ChannelServer
from tidegate_executor.context import Context
from tidegate_executor.job_voice import JobVoice
from tidegate_executor.sandbox.base import (
    CommandNotStartableError,
    InfrastructureError,
    RequestRefusedError,
    Sandbox,
    SandboxLostError,
    SandboxStoppingError,
)

LOOK_SECONDS_MAX = 5.0  # the plan is looked at again at least this often, whatever was missed
DOUBT_SECONDS_MAX = 2.0  # how long the history may take to say whether a start before a crash was carried out
GANG_START_SECONDS_MAX = 900.0  # for the other members to stand; the scheduler gives the attempt up sooner
END_MARGIN_SECONDS = 0.05

log = structlog.get_logger()
_replace = msgspec.structs.replace


class AttemptRunner:
    """One attempt. The `sandbox` given is the one found at the agent's start, None for a new attempt.

    Its own `sandbox` is there while something may run in it.
    """

    def __init__(self, context: Context, memory: AttemptMemory, sandbox: Sandbox | None = None) -> None:
        self._context = context
        self.memory = memory
        self._found = sandbox
        self._sandbox = sandbox
        self._spec = memory.order.spec
        self._voice = JobVoice(context, memory)
        self.sandbox: Sandbox | None = None
        self._prepared: preparation.Prepared | None = None
        self._preparing: asyncio.Timeout | None = None
        self._ends_at = float("inf")
        if sandbox is not None:
            memory.state = entry.restarted(memory.state, context.clock.now_ns())
        state = memory.state
        self._gang = context.gangs.take(memory.order)
        self._server = ChannelServer(
            ChannelPlace(state.job, state.attempt, state.rank),
            {component.name: scaling.most(component) for component in self._spec.components},
            self._voice,
            stop_group=self._gang.stops,
            resume=self._voice.newest,
        )
        self._server.tell_replicas(scaling.counts(state, self._spec))
        self._log = log.bind(sandbox=state.id, job=state.job, tenant=state.tenant, trace_id=trace.trace_id(state.job))

    def offer(self, order: SandboxOrder, at_seq: int) -> None:
        """Take a newer order for this attempt, made from the journal up to `at_seq`."""
        self.memory.change(transitions.on_order(self.memory.state, order, at_seq))
        preparing = self._preparing
        if self.memory.state.stop is not None and preparing is not None and not preparing.expired():
            preparing.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        """Return when the attempt is over and reported."""
        try:
            with self._context.starts.one():
                sandbox = self._found or await self._make()
            if sandbox is None:
                return
            self._sandbox = sandbox
            if self._found is not None:
                self._open_channel()
            self.sandbox = sandbox
            await self._attend(sandbox)
        finally:
            self.sandbox = None
            self._server.close()
            self._context.gangs.give_back(self.memory.state.job, self.memory.state.attempt)

    async def give_up(self, error: Exception) -> None:
        """End what runs and report the member as lost: the agent met a fault of its own at it."""
        self._log.error("attempt_given_up", why=repr(error))
        if self.memory.state.is_over:
            return
        self.memory.change(transitions.fail(self.memory.state, "infrastructure", f"a fault of the agent: {error!r}"))
        if self._sandbox is not None:
            await self._sandbox.destroy()
        await self._conclude_unstarted(None)

    # ---- making ----

    async def _make(self) -> Sandbox | None:
        """Return the new sandbox; None when the member was refused or lost, which is reported then."""
        await self.memory.commit_first()
        try:
            self._prepared = await self._prepare_unless_stopped()
            if self._prepared is not None:
                now_ns, digest = self._context.clock.now_ns(), self._prepared.image_digest
                self.memory.change(transitions.prepared(self.memory.state, now_ns, digest))
            if self._prepared is None or self.memory.state.stop is not None:
                await self._conclude_unstarted(None)
                return None
            self._open_channel()
            await self._put_checkpoint_back(before=True)
            sandbox = await self._context.backends[self.memory.state.level].create(self._prepared.spec)
        except preparation.RefusedError as refusal:
            await self._reject(refusal.reason)
        except RequestRefusedError as error:
            await self._reject(Reason(code="SandboxRefused", detail=str(error)[:1000]))
        except (InfrastructureError, OSError) as error:
            await self._conclude_unstarted(str(error))
        else:
            self._context.warm.asked(self.memory.state.level, self._prepared.image_digest, self._prepared.spec)
            return sandbox
        return None

    async def _prepare_unless_stopped(self) -> preparation.Prepared | None:
        """Fetch and make what the sandbox needs; a stop ends that at once, however long it would have taken."""
        try:
            async with asyncio.timeout(None) as self._preparing:
                if self.memory.state.stop is not None:
                    return None
                prepared = await preparation.prepare(self._context, self.memory.order, self.memory.state)
                await preparation.secrets_of(self._context, self.memory.order)
                return prepared
        except (TimeoutError, preparation.RefusedError) as error:
            if self.memory.state.stop is None:
                raise
            self._log.info("preparation_ended", why=str(error) or "it is to stop")
            return None
        finally:
            self._preparing = None

    async def _put_checkpoint_back(self, *, before: bool) -> None:
        """Before the sandbox is made where the directory is a mount, after it where it lies in the sandbox's state."""
        prepared = self._prepared
        if prepared is None or prepared.declared is None:
            return
        mounted = any(mount.source == str(prepared.declared) for mount in prepared.spec.mounts)
        if mounted == before:
            await asyncio.to_thread(preparation.put_checkpoint_back, prepared, self.memory.order)

    def _open_channel(self) -> None:
        state = self.memory.state
        directory = preparation.channel_directory(self._context, state.id)
        directory.mkdir(exist_ok=True, mode=0o711)
        uid = self._context.backends[state.level].host_uid(state.uid_slot)
        self._server.open(directory / preparation.SOCKET_NAME, (uid, uid) if uid is not None else None)

    async def _reject(self, reason: Reason) -> None:
        now_ns = self._context.clock.now_ns()
        order, node = self.memory.order, self._context.node
        events: list[AnyEvent] = []
        if reason.code == "CheckpointDamaged" and order.resume is not None:
            events.append(facts.checkpoint_unusable(self.memory.state, order.resume, reason.detail, now_ns))
        events.append(facts.rejected(order, node, reason, now_ns))
        self._log.warning("placement_rejected", code=reason.code, detail=reason.detail)
        await self.memory.commit(events, state=_replace(self.memory.state, stage="rejected", ended_ns=now_ns))
        await asyncio.to_thread(preparation.clean, self._context, self.memory.state.id)

    async def _conclude_unstarted(self, broken: str | None) -> None:
        """Report the end of a member of which nothing ran: by a stop, or because the node could not make it."""
        if broken is not None:
            self.memory.change(transitions.fail(self.memory.state, "infrastructure", broken))
        await conclusion.report(self._context, self.memory, (), self._log)
        await asyncio.to_thread(preparation.clean, self._context, self.memory.state.id)

    # ---- attending ----

    async def _attend(self, sandbox: Sandbox) -> None:
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self._server.run())]
            tasks.create_task(self._follow(sandbox))
            if self._found is None:
                beside.append(tasks.create_task(self._check()))
                await self._start_afresh(sandbox)
            else:
                await self._settle_doubts(sandbox)
            await self._loop(sandbox, tasks)
            for task in beside:
                task.cancel()
        await conclusion.remove(self._context, self.memory, sandbox, self._log)

    async def _check(self) -> None:
        """Look at what the member needs of the node while it starts; what is missing ends it."""
        assert self._prepared is not None, "a new sandbox was made from it"
        prepared, gpus = self._prepared, bool(self.memory.order.gpu_indices)
        subject = prechecks.Subject(digest=prepared.image_digest, env=prepared.image_env, gpus=gpus)
        try:
            await prechecks.run(self._context, subject)
        except prechecks.PrecheckFailedError as error:
            self._log.error("precheck_failed", why=str(error))
            self._fail(str(error))

    async def _start_afresh(self, sandbox: Sandbox) -> None:
        try:
            await self._put_checkpoint_back(before=False)
        except (preparation.RefusedError, OSError) as error:
            self._fail(str(error))
            return
        await self._begin(sandbox, self.memory.state.replicas)

    async def _begin(self, sandbox: Sandbox, replicas: Iterable[Replica]) -> None:
        """Start them when every member of the gang stands; a stop ends the wait, and then nothing of it ever ran."""
        memory, loop = self.memory, asyncio.get_running_loop()
        deadline = loop.time() + GANG_START_SECONDS_MAX
        self._gang.stands(memory.state.rank, memory.changed)
        while not self._gang.may_begin and memory.state.stop is None and not memory.state.sandbox_over:
            memory.changed.clear()
            if (left := deadline - loop.time()) <= 0:
                self._fail(f"not started: {self._gang.awaited} was not ready within {GANG_START_SECONDS_MAX:.0f} s")
                return
            await _wait(memory.changed, left)
        if self._gang.may_begin:
            memory.change(_replace(memory.state, begun=True))
            await self._start(sandbox, replicas)

    def _fail(self, detail: str) -> None:
        now_ns = self._context.clock.now_ns()
        self.memory.change(transitions.fail(self.memory.state, "infrastructure", detail, at_ns=now_ns))

    async def _settle_doubts(self, sandbox: Sandbox) -> None:
        """Find out about starts that were ordered before a crash: the history says, or they were not carried out."""

        def doubtful() -> list[Replica]:
            return [replica for replica in self.memory.state.replicas if replica.status == "starting"]

        loop = asyncio.get_running_loop()
        deadline = loop.time() + DOUBT_SECONDS_MAX
        while doubtful() and not self.memory.state.sandbox_over and (left := deadline - loop.time()) > 0:
            self.memory.changed.clear()
            await _wait(self.memory.changed, left)
        if self.memory.state.begun or len(doubtful()) < len(self.memory.state.replicas):
            self._gang.has_begun()
        if doubtful() and not self.memory.state.sandbox_over:
            self._log.info("starts_repeated", replicas=[replica.name for replica in doubtful()])
            await self._begin(sandbox, doubtful())

    async def _follow(self, sandbox: Sandbox) -> None:
        memory = self.memory
        while not memory.state.sandbox_over:
            try:
                async for recorded in sandbox.events(memory.state.history_offset):
                    event = recorded.event
                    memory.change(transitions.on_history(memory.state, event, recorded.next_offset, self._spec))
                    refused_calls.tell(self._log, event, self._spec.isolation)
            except SandboxLostError as error:
                lost = transitions.fail(memory.state, "infrastructure", str(error))
                memory.change(_replace(lost, sandbox_over=True))
            except InfrastructureError as error:  # something of it still runs: its room is not free before it does not
                self._log.error("remains_not_ended", why=str(error))
                await asyncio.sleep(LOOK_SECONDS_MAX)

    async def _loop(self, sandbox: Sandbox, tasks: asyncio.TaskGroup) -> None:
        memory = self.memory
        while not memory.state.is_over:
            memory.changed.clear()
            now_ns = self._context.clock.now_ns()
            todo = planning.plan(memory.state, self._spec, now_ns)
            for action in todo.actions:
                await self._do(action, sandbox, tasks)
            self._server.resume = self._voice.newest
            self._server.tell_replicas(scaling.counts(memory.state, self._spec))
            if memory.state.order_seq:  # first, so that nobody enters a phase with the recall of the one before
                self._server.tell_hand_back(memory.state.hand_back_ns)
            await granting.note_answers(memory)
            self._server.tell_grants(granting.answers(memory.state, memory.order))
            left = LOOK_SECONDS_MAX
            if todo.wake_ns:
                left = min(left, max(0.0, (todo.wake_ns - self._context.clock.now_ns()) / 1e9))
            if not memory.state.is_over:
                await _wait(memory.changed, left)

    async def _do(self, action: planning.Action, sandbox: Sandbox, tasks: asyncio.TaskGroup) -> None:
        if isinstance(action, planning.ReportStarted):
            await resizing.report_started(self._context, self.memory, sandbox, self._log)
        elif isinstance(action, planning.Start):
            names = [replica.name for replica in action.replicas]
            self._log.info("components_restarted", replicas=names)
            await self.memory.commit(state=transitions.order_starts(self.memory.state, names))
            await self._start(sandbox, action.replicas)
        elif isinstance(action, planning.Grow):
            self._log.info("simulators_added", replicas=[replica.name for replica in action.replicas])
            await self.memory.commit(state=scaling.add(self.memory.state, action.replicas))
            await self._start(sandbox, action.replicas)
        elif isinstance(action, planning.Shrink):
            self._log.info("simulators_leave", replicas=[replica.name for replica in action.replicas])
            leaving = scaling.leave(self.memory.state, action.replicas, self._context.clock.now_ns())
            await self.memory.commit(state=leaving)
            await self._signal(sandbox, action.replicas, signal.SIGTERM)
        elif isinstance(action, planning.Kill):
            await self._signal(sandbox, action.replicas, signal.SIGKILL)
        elif isinstance(action, planning.Resize):
            await resizing.resize(self._context, self.memory, sandbox, action.quotas, self._log)
        elif isinstance(action, planning.AskToLeave):
            self._ask_to_leave(action)
        elif isinstance(action, planning.EndSandbox):
            self._end(sandbox, action.grace_seconds, tasks)
        elif isinstance(action, planning.SayPhase):
            await granting.say_phase(self._context, self.memory, self._log)
        elif isinstance(action, planning.SayAsk):
            await granting.say_ask(self._context, self.memory, action.phase, self._log)
        elif isinstance(action, planning.ForgetAway):
            await granting.forget_away(self._context, self.memory, self._log)
        else:
            await self._conclude()

    async def _start(self, sandbox: Sandbox, replicas: Iterable[Replica]) -> None:
        """Start each in the listed order; a stop, or the first that cannot be started, ends that."""
        components = {component.name: component for component in self._spec.components}
        for replica in replicas:
            state = self.memory.state
            if state.failure is not None or state.stop is not None:
                return
            try:
                await self._start_one(sandbox, components[replica.component], replica.replica)
            except SandboxStoppingError:
                return  # an earlier incarnation was told to end it: its history says how
            except (CommandNotStartableError, RequestRefusedError) as error:
                now_ns = self._context.clock.now_ns()
                self.memory.change(transitions.not_startable(self.memory.state, replica, str(error), now_ns))
            except (InfrastructureError, preparation.RefusedError, OSError) as error:
                self._fail(str(error))

    async def _signal(self, sandbox: Sandbox, replicas: Iterable[Replica], number: signal.Signals) -> None:
        for replica in replicas:
            try:
                await sandbox.signal(replica.component, replica.replica, number)
            except (InfrastructureError, RequestRefusedError) as error:  # the plan looks again
                self._log.warning("simulator_not_signalled", replica=replica.name, why=str(error))

    async def _start_one(self, sandbox: Sandbox, component: Component, number: int) -> None:
        order, state = granting.with_devices(self.memory.order, self.memory.state), self.memory.state
        if self._prepared is None:
            self._prepared = await preparation.prepare(self._context, order, state)
        if self._found is not None:
            running = {(each.component, each.replica) for each in (await sandbox.stats()).replicas}
            if (component.name, number) in running:
                return
        quota = next(quota for quota in state.quotas_asked if quota.component == component.name)
        process = preparation.process_of(order, component, number, self._prepared, preparation.limits_of(quota))
        secrets = await preparation.secrets_of(self._context, order)
        await sandbox.start(_replace(process, secret_env=secrets))

    def _ask_to_leave(self, request: planning.AskToLeave) -> None:
        """Ask the processes of every member of the job here: they stop at the same call, or a gang would hang."""
        state = self.memory.state
        if state.stop is None and state.failure is not None:
            self._gang.anomaly = self._gang.anomaly or state.failure
        self._server.stop(request.reason, request.deadline_ns, here_only=state.stop is None)

    async def _conclude(self) -> None:
        if self._sandbox is not None and (full := await self._sandbox.disk_full()):
            self.memory.change(_replace(self.memory.state, disk_full=full))
        if (failure := self._gang.anomaly) is not None:
            self.memory.change(transitions.peer_failed(self.memory.state, self._spec, failure))
        await conclusion.conclude(self._context, self.memory, (self._server, self._prepared), self._log)

    def _end(self, sandbox: Sandbox, grace_seconds: float, tasks: asyncio.TaskGroup) -> None:
        """Have the shim end the sandbox; asked again only to make it sooner."""
        ends_at = asyncio.get_running_loop().time() + grace_seconds
        if ends_at < self._ends_at - END_MARGIN_SECONDS:
            self._ends_at = ends_at
            self.memory.change(transitions.ending(self.memory.state))
            tasks.create_task(self._stop(sandbox, grace_seconds))

    async def _stop(self, sandbox: Sandbox, grace_seconds: float) -> None:
        self._log.info("sandbox_ending", grace_seconds=grace_seconds)
        try:
            await sandbox.stop(grace_seconds)
        except InfrastructureError as error:
            self._log.warning("sandbox_stop_failed", why=str(error))
            self._ends_at = float("inf")  # the plan asks again


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def new_state(order: SandboxOrder, now_ns: int, *, image_digest: str, uid_slot: int) -> AttemptState:
    """Return the first state of an attempt on this node."""
    return transitions.accept(order, now_ns, level=order.spec.isolation, image_digest=image_digest, uid_slot=uid_slot)
