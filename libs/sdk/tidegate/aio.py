"""The in-job API for asyncio: the same names as in tidegate, as coroutines and async context managers.

Calls that may wait (for the agent, for a disk, for a stop vote) do so in a thread of their own, so the event loop
goes on. `report` never waits and stays a plain call.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, AsyncIterator, Callable, Dict, Mapping, NoReturn, Optional, TypeVar

import tidegate
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.saver import PendingSave
from tidegate.gpu_lease import GpuLease
from tidegate.grant import Grant
from tidegate.job import Job
from tidegate.member import Member
from tidegate.phasing import Phasing
from tidegate.seeds import Seeds

T = TypeVar("T")


class AsyncCheckpoint:
    """A checkpoint to continue from; see tidegate.Checkpoint."""

    def __init__(self, checkpoint: Checkpoint, run: "_Runner") -> None:
        self._checkpoint = checkpoint
        self._run = run
        self.id = checkpoint.id
        self.step = checkpoint.step
        self.attempt = checkpoint.attempt
        self.layers = checkpoint.layers

    async def load(self, *names: str, map_location: Optional[Any] = None) -> Dict[str, Any]:
        """Return the named layers by name."""
        return await self._run(lambda: self._checkpoint.load(*names, map_location=map_location))

    @asynccontextmanager
    async def as_directory(self) -> AsyncIterator[Path]:
        """Verify every file and give the directory that holds them."""
        context = self._checkpoint.as_directory()
        directory = await self._run(context.__enter__)
        try:
            yield directory
        finally:
            await self._run(lambda: context.__exit__(None, None, None))


class AsyncPendingSave:
    """A save under way."""

    def __init__(self, pending: PendingSave, run: "_Runner") -> None:
        self._pending = pending
        self._run = run
        self.step = pending.step

    @property
    def done(self) -> bool:
        """Return whether it has ended, durable or failed."""
        return self._pending.done

    async def wait(self, timeout_seconds: Optional[float] = None) -> AsyncCheckpoint:
        """Return the durable checkpoint; raises SaveFailedError when the write failed."""
        done = await self._run(lambda: self._pending.wait(timeout_seconds))
        return AsyncCheckpoint(done, self._run)


class AsyncGpuLease:
    """The devices of phases; see tidegate.GpuLease. `async with lease as grant:` around each use of them."""

    def __init__(self, lease: GpuLease) -> None:
        self._lease = lease

    @property
    def grant(self) -> Optional[Grant]:
        """Return what the devices are now; None while there are none."""
        return self._lease.grant

    async def __aenter__(self) -> Optional[Grant]:
        # In a thread that waits for nothing else: the wait may be as long as that for a phase.
        taking = asyncio.get_running_loop().run_in_executor(None, self._lease.acquire)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(self._give_up)
            raise

    async def __aexit__(self, *raised: object) -> None:
        self._lease.free()

    def _give_up(self, taking: "asyncio.Future[Optional[Grant]]") -> None:
        if not taking.cancelled() and taking.exception() is None:
            self._lease.free()


def _in_loop(loop: asyncio.AbstractEventLoop, hook: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return a function for other threads that runs the hook in the loop, and returns or raises when it does."""

    async def run(given: Any) -> object:
        done = hook(given)
        return await done if inspect.isawaitable(done) else done

    return lambda given: asyncio.run_coroutine_threadsafe(run(given), loop).result()


class _Runner:
    """Runs blocking calls in one thread, in order: calls of should_stop() must not overtake each other."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="tidegate-aio")

    async def __call__(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


class AsyncJob:
    """The job that this process is part of; see tidegate.Job."""

    def __init__(self, job: Job, run: _Runner) -> None:
        self._job = job
        self._run = run
        self._phases = ThreadPoolExecutor(2, thread_name_prefix="tidegate-aio-phase")

    def __getattr__(self, name: str) -> Any:
        if name in _PROPERTIES:
            return getattr(self._job, name)
        raise AttributeError(f"an async job has no attribute {name!r}")

    @property
    def seeds(self) -> Seeds:
        """Return the seeds of this process."""
        return self._job.seeds

    async def replicas_of(self, component: str) -> int:
        """Return how many processes a component of this member has now, where its number may be scaled."""
        return self._job.replicas_of(component)

    async def latest_checkpoint(self) -> Optional[AsyncCheckpoint]:
        """Return the checkpoint to continue from, verified, or None to begin afresh."""
        checkpoint = await self._run(self._job.latest_checkpoint)
        return None if checkpoint is None else AsyncCheckpoint(checkpoint, self._run)

    async def restore(self, **choice: Any) -> Optional[Dict[str, Any]]:
        """Return layers of the checkpoint to continue from; the arguments are those of tidegate.Job.restore."""
        return await self._run(lambda: self._job.restore(**choice))

    @asynccontextmanager
    async def phase(self, name: str, timeout: Optional[float] = None) -> AsyncIterator[Grant]:
        """The process is in this phase until the block ends; see tidegate.Job.phase. Other calls go on meanwhile."""
        given_up = threading.Event()
        context = self._job._in_phase(name, timeout, given_up)
        # In a thread of its own: the wait may be long, and the calls of other tasks are not to stand behind it.
        entering = asyncio.get_running_loop().run_in_executor(self._phases, context.__enter__)
        try:
            grant = await asyncio.shield(entering)
        except asyncio.CancelledError:
            given_up.set()
            await asyncio.wait({entering})
            if entering.exception() is None:
                await self._run(lambda: context.__exit__(None, None, None))
            raise
        try:
            yield grant
        finally:
            await self._run(lambda: context.__exit__(None, None, None))

    async def on_hand_back(self, callback: Callable[[float], object]) -> None:
        """Have `callback(seconds_left)` called by the event loop, once for each recall of what this phase was lent."""
        if not callable(callback):
            self._job.on_hand_back(callback)  # which says what is accepted
        loop = asyncio.get_running_loop()
        self._job.on_hand_back(lambda seconds_left: loop.call_soon_threadsafe(callback, seconds_left))

    async def on_gpu(self, release: Callable[[float], object], reclaim: Callable[[Grant], object]) -> AsyncGpuLease:
        """Have the devices of phases moved on and off by hooks; see tidegate.Job.on_gpu.

        They are functions or coroutine functions, and run in the event loop; `async with lease:` keeps them out.
        """
        loop = asyncio.get_running_loop()
        hooks = []
        for hook in (release, reclaim):
            hooks.append(_in_loop(loop, hook) if callable(hook) else hook)  # on_gpu says what is accepted
        return AsyncGpuLease(self._job.on_gpu(hooks[0], hooks[1]))

    def should_hand_back(self) -> bool:
        """Return True while the phase is to be left; never waits."""
        return self._job.should_hand_back()

    def report(self, metrics: Mapping[str, Any], step: Optional[int] = None, progress: Optional[float] = None) -> None:
        """Report numbers; never waits."""
        self._job.report(metrics, step, progress)

    async def publish(self, kind: str, **payload: Any) -> None:
        """Publish an event of your own."""
        await self._run(lambda: self._job.publish(kind, **payload))

    async def should_stop(self) -> bool:
        """Return True when the job is to save and leave."""
        if not self._job.stop_ordered:
            return self._job.should_stop()
        return await self._run(self._job.should_stop)

    async def save(self, **layers: Any) -> AsyncPendingSave:
        """Save layers; the arguments are those of tidegate.Job.save."""
        pending = await self._run(lambda: self._job.save(**layers))
        return AsyncPendingSave(pending, self._run)

    @asynccontextmanager
    async def checkpoint(self, step: Optional[int] = None) -> AsyncIterator[Path]:
        """A checkpoint of files, committed when the block ends."""
        context = self._job.checkpoint(step)
        directory = await self._run(context.__enter__)
        try:
            yield directory
        except BaseException as error:
            raised = error
            await self._run(lambda: context.__exit__(type(raised), raised, raised.__traceback__))
            raise
        await self._run(lambda: context.__exit__(None, None, None))

    async def wait_saves(self) -> None:
        """Wait until every save is durable."""
        await self._run(self._job.wait_saves)

    async def exit_suspended(self) -> NoReturn:
        """Acknowledge the stop and exit with code 75."""
        await self._run(self._job.acknowledge_suspension)
        raise SystemExit(tidegate.protocol.EXIT_SUSPENDED)

    async def finish(self, result: Optional[Mapping[str, Any]] = None) -> bool:
        """Say that the work is complete, with a small result."""
        return await self._run(lambda: self._job.finish(result))

    async def close(self) -> None:
        """Leave without a statement."""
        await self._run(self._job.close)


_PROPERTIES = frozenset(
    name
    for owner in (Member, Phasing, Job)
    for name, value in vars(owner).items()
    if isinstance(value, property) and not name.startswith("_")
)


async def init(stop_group: Optional[str] = None) -> AsyncJob:
    """Return the job that this process is part of; see tidegate.init."""
    run = _Runner()
    return AsyncJob(await run(lambda: tidegate.init(stop_group)), run)
