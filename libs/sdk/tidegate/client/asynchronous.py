"""The asynchronous client: runs the flows of `core` over httpx; its methods are those of `Client`, awaited."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import TracebackType
from typing import Any, AsyncIterator, Callable, Collection, List, Mapping, Optional, Sequence, Type, TypeVar, Union

from tidegate.client import core, operating, submission
from tidegate.client.core import Document, EventFilter, LogChunk, LogSelection
from tidegate.client.flow import Call, Emit, Flow, NoReply, Pause, Reply, Stream
from tidegate.client.http import Connection
from tidegate.client.operating import KEPT, Amounts, Kept
from tidegate.client.packing import Archive
from tidegate.client.submission import OnUpload, SpecLike, Submission

T = TypeVar("T")


class AsyncClient:
    """Talks to a gateway: `url`, else TIDEGATE_URL, else the local stack. Usable as an async context manager."""

    def __init__(self, url: Optional[str] = None, *, transport: Any = None) -> None:
        self._connection = Connection(url)
        self._http = self._connection.async_client(transport)

    @property
    def url(self) -> str:
        """Return the gateway's base URL."""
        return self._connection.url

    async def submit(
        self,
        spec: SpecLike,
        workdir: Union[str, Path, None] = None,
        idempotency_key: Optional[str] = None,
        overrides: Optional[Mapping[str, Any]] = None,
        on_upload: Optional[OnUpload] = None,
    ) -> Submission:
        """Submit a job; see `Client.submit`. Packing runs in a thread."""
        prepared = await asyncio.to_thread(submission.prepare, spec, workdir, idempotency_key, overrides)
        try:
            return await self._run(submission.submit(prepared, on_upload))
        finally:
            prepared.close()

    async def dry_run(
        self,
        spec: SpecLike,
        workdir: Union[str, Path, None] = None,
        overrides: Optional[Mapping[str, Any]] = None,
    ) -> Document:
        """Return what would become of a job; see `Client.dry_run`."""
        prepared = await asyncio.to_thread(submission.prepare, spec, workdir, None, overrides)
        try:
            return await self._run(submission.dry_run(prepared))
        finally:
            prepared.close()

    async def job(self, job_id: str) -> Document:
        """Return one job in detail, with its attempts and its timeline."""
        return await self._run(core.job(job_id))

    async def jobs(
        self, tenant: Optional[str] = None, states: Collection[str] = (), limit: int = core.JOBS_DEFAULT
    ) -> List[Document]:
        """Return the newest jobs, newest first, of one tenant and in these states where given."""
        return await self._run(core.jobs(tenant, states, limit))

    async def timeline(self, job_id: str) -> Document:
        """Return the job's events in order."""
        return await self._run(core.part(job_id, "timeline"))

    async def explain(self, job_id: str) -> Document:
        """Return why the job waits."""
        return await self._run(core.part(job_id, "explain"))

    async def wait(
        self,
        job_id: str,
        states: Collection[str] = core.ENDED_STATES,
        timeout_seconds: Optional[float] = None,
        on_seen: Callable[[Document], None] = lambda job: None,
    ) -> Document:
        """Return the job when it is in one of `states`; see `Client.wait`."""
        return await self._run(core.wait(job_id, states, timeout_seconds, time.monotonic, on_seen))

    async def cancel(self, job_id: str) -> Document:
        """Ask for the job to end. Raises Conflict where it ended otherwise."""
        return await self._run(core.cancel(job_id))

    async def hold(self, job_id: str, reason: str = "") -> Document:
        """Keep the job from being placed (again). Raises Conflict where it has ended."""
        return await self._run(operating.ask_job(job_id, "hold", reason))

    async def release(self, job_id: str, reason: str = "") -> Document:
        """Take a hold back. Raises Conflict where the job is not held."""
        return await self._run(operating.ask_job(job_id, "release", reason))

    async def suspend(self, job_id: str, reason: str) -> Document:
        """Have the job save and leave, and hold it. Raises Conflict where it does not run."""
        return await self._run(operating.ask_job(job_id, "suspend", reason))

    async def resume(self, job_id: str, reason: str = "") -> Document:
        """Let a held or suspended job run again. Raises Conflict for any other."""
        return await self._run(operating.ask_job(job_id, "resume", reason))

    async def requeue(self, job_id: str, reason: str) -> Document:
        """Have the job save, leave and wait for another attempt. Raises Conflict where it does not run."""
        return await self._run(operating.ask_job(job_id, "requeue", reason))

    async def set_priority(self, job_id: str, priority: int, reason: str = "") -> Document:
        """Give the job another priority. Raises ValidationError above what the tenant may use."""
        return await self._run(operating.ask_job(job_id, "priority", reason, priority=priority))

    async def set_limit(self, job_id: str, time_limit_seconds: Optional[int], reason: str = "") -> Document:
        """Give the job another time limit, None for none."""
        return await self._run(operating.ask_job(job_id, "limit", reason, time_limit_seconds=time_limit_seconds))

    async def drain_node(self, node: str, deadline_ns: int, reason: str) -> Document:
        """Have the node's jobs leave by `deadline_ns`, and nothing new placed there. Raises NotFound."""
        return await self._run(operating.drain(node, deadline_ns, reason))

    async def resume_node(self, node: str, reason: str = "") -> Document:
        """End drain and cordon of the node. Raises NotFound and Conflict."""
        return await self._run(operating.resume_node(node, reason))

    async def forget_node(self, node: str, reason: str = "") -> Document:
        """Have nothing kept of a lost node any more. Raises NotFound and Conflict."""
        return await self._run(operating.forget_node(node, reason))

    async def queues(self) -> List[Document]:
        """Return each tenant's queue with what the tenant uses."""
        return await self._run(operating.queues())

    async def create_queue(
        self,
        tenant: str,
        *,
        weight: int = 1,
        guaranteed: Optional[Amounts] = None,
        ceiling: Optional[Amounts] = None,
        reason: str = "",
    ) -> Document:
        """Give a tenant's queue its settings. Raises Conflict where it has others."""
        settings = {"weight": weight, "guaranteed": guaranteed, "ceiling": ceiling}
        return await self._run(operating.create_queue(tenant, settings, reason))

    async def set_queue(
        self,
        tenant: str,
        *,
        weight: Union[int, Kept] = KEPT,
        guaranteed: Union[Amounts, Kept, None] = KEPT,
        ceiling: Union[Amounts, Kept, None] = KEPT,
        reason: str = "",
    ) -> Document:
        """Change what is given of a queue's settings; None takes an amount away. Raises NotFound."""
        settings = {"weight": weight, "guaranteed": guaranteed, "ceiling": ceiling}
        return await self._run(operating.set_queue(tenant, settings, reason))

    async def stop_queue(self, tenant: str, reason: str) -> Document:
        """Keep all of the tenant's jobs from being placed. Raises NotFound."""
        return await self._run(operating.switch_queue(tenant, "stop", reason))

    async def start_queue(self, tenant: str, reason: str = "") -> Document:
        """End `stop_queue`. Raises NotFound."""
        return await self._run(operating.switch_queue(tenant, "start", reason))

    async def maintenance(self, everything: bool = False) -> List[Document]:
        """Return the maintenance windows that lie ahead or go on, or all that are known."""
        return await self._run(operating.maintenance(everything))

    async def plan_maintenance(
        self, name: str, nodes: Sequence[str], start_ns: int, end_ns: int, reason: str = ""
    ) -> Document:
        """Plan that nothing runs on the nodes from start to end. Raises Conflict where the name stands for another."""
        return await self._run(operating.plan_maintenance(name, nodes, (start_ns, end_ns), reason))

    async def cancel_maintenance(self, name: str, reason: str = "") -> Document:
        """Take a window back, or end one that has begun. Raises NotFound and Conflict."""
        return await self._run(operating.cancel_maintenance(name, reason))

    def logs(
        self, job_id: str, selection: Optional[LogSelection] = None, *, follow: bool = False
    ) -> AsyncIterator[LogChunk]:
        """Yield a log in pieces; with `follow` go on, over suspensions and new attempts, until the job ended."""
        chosen = selection or LogSelection()
        return self._stream(core.follow_log(job_id, chosen, time.monotonic) if follow else core.log(job_id, chosen))

    def events(
        self,
        chosen: Optional[EventFilter] = None,
        *,
        after: Optional[str] = None,
        follow: bool = False,
        on_page: Callable[[Document], None] = lambda page: None,
    ) -> AsyncIterator[Document]:
        """Yield events in the journal's order, after a cursor where given; with `follow` for ever.

        `on_page` is told each page of the gateway, and so how far the reading is.
        """
        which = chosen or EventFilter()
        return self._stream(
            core.follow_events(which, after, time.monotonic) if follow else core.events(which, after, on_page)
        )

    async def newest_events(self, count: int, chosen: Optional[EventFilter] = None) -> Document:
        """Return the page of the newest `count` events (1000 at most), in order; go on from its `cursor`."""
        return await self._run(core.newest_events(chosen or EventFilter(), count))

    async def queue(self, tenant: Optional[str] = None, limit: int = core.QUEUE_MAX) -> Document:
        """Return who waits, first in line first, with reasons and known starts."""
        params = {"limit": str(limit), **({"tenant": tenant} if tenant is not None else {})}
        return await self._run(core.document("/v1/queue", params))

    async def top(self, limit: int = core.TOP_DEFAULT) -> Document:
        """Return one snapshot of nodes, running jobs and the line."""
        return await self._run(core.document("/v1/top", {"limit": str(limit)}))

    async def nodes(self) -> List[Document]:
        """Return the nodes."""
        nodes: List[Document] = (await self._run(core.document("/v1/nodes")))["nodes"]
        return nodes

    async def checkpoints(self, job_id: str) -> List[Document]:
        """Return the job's checkpoints, newest first."""
        found: List[Document] = (await self._run(core.document("/v1/checkpoints", {"job": job_id})))["checkpoints"]
        return found

    async def rollback(self, job_id: str, layers: Sequence[str], checkpoint_id: str, reason: str = "") -> Document:
        """Have the job resume with these layers as they were in an older checkpoint; return the new one.

        Raises NotFound where they are not there, Unavailable while no shared tier holds both checkpoints.
        """
        fields = {"layers": list(layers), "checkpoint_id": checkpoint_id}
        return await self._run(operating.ask_job(job_id, "rollback", reason, **fields))

    async def restore(self, job_id: str, layers: Sequence[str], checkpoint_id: Optional[str] = None) -> Document:
        """Return the plan to restore `layers` of the newest (or the named) checkpoint."""
        return await self._run(core.restore(job_id, layers, checkpoint_id))

    async def trace(self, trace_id: str) -> Document:
        """Return a trace; see `Client.trace`."""
        return await self._run(core.trace(trace_id))

    async def status(self) -> Document:
        """Return how the cluster is."""
        return await self._run(core.document("/v1/status"))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    async def _run(self, flow: Flow[T]) -> T:
        answer: Union[Reply, NoReply, None] = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as done:
                value: T = done.value
                return value
            answer = await self._perform(step)

    async def _stream(self, stream: Stream) -> AsyncIterator[Any]:
        answer: Union[Reply, NoReply, None] = None
        while True:
            try:
                step = stream.send(answer)
            except StopIteration:
                return
            if isinstance(step, Emit):
                yield step.value
                answer = None
            else:
                answer = await self._perform(step)

    async def _perform(self, step: Union[Call, Pause]) -> Union[Reply, NoReply, None]:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        arguments = self._connection.arguments(step)
        if step.archive is not None:
            arguments["content"] = _chunks(step.archive, step.on_sent)
        try:
            return self._connection.reply(await self._http.request(**arguments))
        except self._connection.transport_errors as error:
            return self._connection.no_reply(error)


async def _chunks(archive: Archive, on_sent: Optional[Callable[[int], None]]) -> AsyncIterator[bytes]:
    for chunk in archive.chunks(on_sent):
        yield chunk
