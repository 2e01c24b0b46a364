"""Says in the journal when a job turns slower than it declared, and when it is fast enough again.

What was said is read back from the journal: after a restart the state goes on from there, so nothing is said twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec
import structlog
from tidegate_events import subjects, trace
from tidegate_events.clock import Clock
from tidegate_events.events import AnyEvent, StepRateLow, StepRateRecovered
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Conflict, Journal, JournalFullError, JournalUnavailableError

from tidegate_metrics.job_track import JobTrack
from tidegate_metrics.journal_metrics import JournalMetrics
from tidegate_metrics.rates import RateState, Signal, Thresholds, advance
from tidegate_metrics.windows import WindowRate

AWAY_WAIT_SECONDS = 1.0
FULL_WAIT_SECONDS = 10.0
WAITING_MAX = 1024
"""Signals that wait for the journal; more are left out, and given again when the job turns once more."""

log = structlog.get_logger()


class Verdict(msgspec.Struct, frozen=True):
    """A signal to give about one attempt."""

    signal: Signal
    job: str
    attempt: int
    rate_millis: int
    target_millis: int


class RateWatch:
    """Judges the windows of every job that declared a target. Pure: it reads the fold, and is told what was heard."""

    def __init__(self, journal: JournalMetrics, thresholds: Thresholds) -> None:
        self._journal = journal
        self._thresholds = thresholds
        self._states: dict[tuple[str, int], RateState] = {}

    def judge(self, rates: Iterable[WindowRate], heard_ns: Callable[[str], int]) -> list[Verdict]:
        """Return the signals that these windows give; `heard_ns` says when a node was last heard."""
        verdicts = []
        for (job_id, attempt, _), windows in sorted(_by_window(rates).items()):
            job = self._journal.jobs.get(job_id)
            if job is None or not _is_judged(job, attempt, windows[0]):
                continue
            mains = [w for w in windows if w.key.rank == 0 and w.key.component == job.main_component]
            if mains and (verdict := self._advance(job, _rate_of(mains, heard_ns))) is not None:
                verdicts.append(verdict)
        self._states = {key: state for key, state in self._states.items() if self._is_current(key)}
        return verdicts

    def _advance(self, job: JobTrack, rate_millis: int | None) -> Verdict | None:
        assert job.target_steps_per_second is not None
        key, target = (job.id, job.attempt), job.target_steps_per_second * 1000
        state = self._states.get(key, RateState(job.rate_low))
        self._states[key], signal = advance(state, rate_millis, target, self._thresholds)
        if signal is None or rate_millis is None:
            return None
        return Verdict(signal, job.id, job.attempt, rate_millis, target)

    def _is_current(self, key: tuple[str, int]) -> bool:
        job = self._journal.jobs.get(key[0])
        return job is not None and job.attempt == key[1]


def _by_window(rates: Iterable[WindowRate]) -> dict[tuple[str, int, int], list[WindowRate]]:
    found: dict[tuple[str, int, int], list[WindowRate]] = {}
    for rate in rates:
        found.setdefault((rate.key.job, rate.key.attempt, rate.start_ns), []).append(rate)
    return found


def _is_judged(job: JobTrack, attempt: int, window: WindowRate) -> bool:
    """Say whether the job ran all through the window, and declared a target."""
    running = job.stage == "running" and job.attempt == attempt and 0 < job.started_ns <= window.start_ns
    return running and job.target_steps_per_second is not None


def _rate_of(windows: list[WindowRate], heard_ns: Callable[[str], int]) -> int | None:
    """Return the rate of the main component's processes together; None where that of one cannot be known.

    A process that says nothing stands still only if its node was heard after the window began to end.
    """
    total = 0
    for window in windows:
        middle_ns = (window.start_ns + window.end_ns) // 2
        if window.rate_millis is None or (window.silent and heard_ns(window.node) < middle_ns):
            return None
        total += window.rate_millis
    return total


class SignalWriter:
    """The service's pen. `epoch` tells its processes apart: the time at which this one began."""

    def __init__(
        self, journal: Journal, fold: JournalMetrics, clock: Clock, instance: str, window_seconds: int
    ) -> None:
        self._journal = journal
        self._fold = fold
        self._clock = clock
        self._instance = instance
        self._window_seconds = window_seconds
        self._subject = subjects.fact("metrics", instance)
        self._epoch = clock.now_ns()
        self._writer_seq = 0
        self._waiting: asyncio.Queue[Verdict] = asyncio.Queue(WAITING_MAX)

    def offer(self, verdict: Verdict) -> None:
        """Queue a signal."""
        try:
            self._waiting.put_nowait(verdict)
        except asyncio.QueueFull:
            log.error("signal_left_out", job=verdict.job, signal=verdict.signal, waiting=WAITING_MAX)

    async def run(self) -> None:
        """Write every signal that is offered, in order, waiting out any outage."""
        while True:
            verdict = await self._waiting.get()
            frame = self._frame(verdict)
            if frame is not None:
                await self._append(frame, verdict)

    def _frame(self, verdict: Verdict) -> Frame | None:
        job = self._fold.jobs.get(verdict.job)
        if job is None or job.attempt != verdict.attempt:
            return None  # it ended meanwhile: nobody wants to know
        self._writer_seq += 1
        writer = Writer("metrics", self._instance, self._epoch, self._writer_seq)
        kind = StepRateLow if verdict.signal == "low" else StepRateRecovered
        event: AnyEvent = kind(
            id=writer.event_id(0),
            at_ns=self._clock.now_ns(),
            tenant=job.tenant,
            job=job.id,
            traceparent=job.traceparent,
            attempt=verdict.attempt,
            rate_millis=verdict.rate_millis,
            target_millis=verdict.target_millis,
            window_seconds=self._window_seconds,
        )
        return Frame(writer, (event,))

    async def _append(self, frame: Frame, verdict: Verdict) -> None:
        about = {"job": verdict.job, "trace_id": trace.trace_id(verdict.job), "attempt": verdict.attempt}
        while True:
            try:
                answer = await self._journal.append(self._subject, frame)
            except JournalUnavailableError as error:
                log.warning("signal_waits", why=str(error), **about)
                await asyncio.sleep(AWAY_WAIT_SECONDS)
            except JournalFullError as error:
                log.error("signal_waits", why=str(error), remedy="begin a new journal generation", **about)
                await asyncio.sleep(FULL_WAIT_SECONDS)
            else:
                assert not isinstance(answer, Conflict), "an append without a guard has no conflict"
                log.info(
                    f"step_rate_{verdict.signal}",
                    rate_millis=verdict.rate_millis,
                    target_millis=verdict.target_millis,
                    **about,
                )
                return
