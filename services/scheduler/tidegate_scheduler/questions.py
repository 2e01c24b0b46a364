"""What the leader is asked on the bus: why a job waits, the queue, counts of it, dry runs, and who leads.

Others stay silent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from tidegate_events import subjects
from tidegate_events.clock import Clock
from tidegate_events.events import Reason
from tidegate_events.spec import JobSpec

from tidegate_scheduler.candidate import Candidate
from tidegate_scheduler.dry_run import dry_run
from tidegate_scheduler.explain import count_waiting, explain, queue
from tidegate_scheduler.fold import Fold
from tidegate_scheduler.pass_times import PassTimes

log = structlog.get_logger()


class Leader(msgspec.Struct, frozen=True):
    """The answer to "who leads?"."""

    instance: str
    epoch: int
    since_ns: int


class _Trial(msgspec.Struct, frozen=True):
    """The question of a dry run."""

    spec: JobSpec


_trials = msgspec.json.Decoder(_Trial)


class Questions:
    """Answers while the candidate has a term; `waiting` and `passes` are filled by whoever decides."""

    def __init__(self, client: Client, fold: Fold, clock: Clock, candidate: Candidate) -> None:
        self._client = client
        self._fold = fold
        self._clock = clock
        self._candidate = candidate
        self._subscriptions: list[Subscription] = []
        self.waiting: Mapping[str, Reason] = {}
        self.passes = PassTimes()

    async def begin(self) -> None:
        """Take questions."""
        for what, answer in (
            ("explain", self._explain),
            ("queue", self._queue),
            ("waiting", self._waiting),
            ("dry-run", self._dry_run),
            ("leader", self._leader),
        ):
            subject = subjects.ask_scheduler(what)
            self._subscriptions.append(await self._client.subscribe(subject, cb=self._answering(answer)))

    async def end(self) -> None:
        """Take no more questions: they are the next leader's."""
        while self._subscriptions:
            try:
                await self._subscriptions.pop().unsubscribe()
            except nats.errors.Error as error:  # the connection is closed: it takes no questions any more
                log.info("unsubscribed_by_the_end", error=repr(error))

    def _answering(self, answer: Callable[[Msg], object]) -> Callable[[Msg], Awaitable[None]]:
        async def respond(message: Msg) -> None:
            if self._candidate.term is None:
                return  # who was stopped for a while finds old questions, and knows too little
            with self._candidate.computing():
                data = msgspec.json.encode(answer(message))
            await message.respond(data)

        return respond

    def _explain(self, message: Msg) -> object:
        try:
            job = msgspec.json.decode(message.data, type=dict[str, str]).get("job", "")
        except msgspec.MsgspecError as error:
            return {"error": f'send {{"job": "<id>"}}: {error}'}
        return explain(self._fold.state, self.waiting, job, self._clock.now_ns())

    def _queue(self, _message: Msg) -> object:
        return queue(self._fold.state, self.waiting, self._clock.now_ns())

    def _dry_run(self, message: Msg) -> object:
        try:
            spec = _trials.decode(message.data).spec
        except msgspec.MsgspecError as error:
            return {"error": f'send {{"spec": <the specification of a job>}}: {error}'}
        return dry_run(self._fold.state, spec, self._clock.now_ns())

    def _waiting(self, _message: Msg) -> object:
        return {"waiting": count_waiting(self._fold.state, self.waiting, self._clock.now_ns()), "passes": self.passes}

    def _leader(self, _message: Msg) -> object:
        term = self._candidate.term
        return Leader(term.instance, term.epoch, term.since_ns) if term is not None else None
