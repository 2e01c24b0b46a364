"""What the leader is asked on the bus: why a job waits, the queue, counts of it, dry runs, and who leads.

Others stay silent. Each kind of question may take only so much of the leader's time: who asks beyond that is told at
once that it is busy, and when to ask again. Who leads is always answered.
"""

from __future__ import annotations

import asyncio
import time
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

from tidegate_scheduler.allowance import Allowance
from tidegate_scheduler.candidate import Candidate
from tidegate_scheduler.dry_run import dry_run
from tidegate_scheduler.explain import count_waiting, explain, queue
from tidegate_scheduler.fold import Fold
from tidegate_scheduler.pass_times import PassTimes

SHARES = {"explain": 0.1, "queue": 0.1, "waiting": 0.1, "dry-run": 0.1}
"""Of the leader's time, by kind of question."""

SAVED_SECONDS_MAX = 0.5
BUSY_LOG_SECONDS = 10.0

log = structlog.get_logger()


class Busy(msgspec.Struct, frozen=True):
    """When to ask again."""

    retry_seconds: int


class Refusal(msgspec.Struct, frozen=True):
    """The answer to a question that is one too many."""

    error: str
    busy: Busy


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
    """Answers while the candidate has a term; `waiting`, `passes` and `wakes` are filled by whoever decides."""

    def __init__(self, client: Client, fold: Fold, clock: Clock, candidate: Candidate) -> None:
        self._client = client
        self._fold = fold
        self._clock = clock
        self._candidate = candidate
        self._subscriptions: list[Subscription] = []
        self.waiting: Mapping[str, Reason] = {}
        self.passes = PassTimes()
        self.wakes = PassTimes()
        self._allowances = {what: Allowance(share, SAVED_SECONDS_MAX) for what, share in SHARES.items()}
        self._refused = 0
        self._refusals_logged_at = float("-inf")

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
            self._subscriptions.append(await self._client.subscribe(subject, cb=self._answering(what, answer)))

    async def end(self) -> None:
        """Take no more questions: they are the next leader's."""
        while self._subscriptions:
            try:
                await self._subscriptions.pop().unsubscribe()
            except nats.errors.Error as error:  # the connection is closed: it takes no questions any more
                log.info("unsubscribed_by_the_end", error=repr(error))

    def _answering(self, what: str, answer: Callable[[Msg], object]) -> Callable[[Msg], Awaitable[None]]:
        allowance = self._allowances.get(what)

        async def respond(message: Msg) -> None:
            if self._candidate.term is None:
                return  # who was stopped for a while finds old questions, and knows too little
            wait_seconds = 0 if allowance is None else allowance.wait_seconds(asyncio.get_running_loop().time())
            if wait_seconds:
                await message.respond(self._refuse(what, wait_seconds))
                return
            began = time.thread_time()
            with self._candidate.computing():
                data = msgspec.json.encode(answer(message))
            if allowance is not None:
                allowance.spend(time.thread_time() - began)
            await message.respond(data)

        return respond

    def _refuse(self, what: str, retry_seconds: int) -> bytes:
        """Return that this is one question too many, and say so in the log now and then."""
        self._refused += 1
        now = asyncio.get_running_loop().time()
        if now - self._refusals_logged_at >= BUSY_LOG_SECONDS:
            log.warning("questions_refused", what=what, refused=self._refused, share=SHARES[what])
            self._refused, self._refusals_logged_at = 0, now
        error = f"the scheduler has answered as many {what} questions as it may: ask again in {retry_seconds} s"
        return msgspec.json.encode(Refusal(error, Busy(retry_seconds)))

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
        waiting = count_waiting(self._fold.state, self.waiting, self._clock.now_ns())
        return {"waiting": waiting, "passes": self.passes, "wakes": self.wakes}

    def _leader(self, _message: Msg) -> object:
        term = self._candidate.term
        return Leader(term.instance, term.epoch, term.since_ns) if term is not None else None
