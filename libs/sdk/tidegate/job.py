"""The job as training code sees it."""

from __future__ import annotations

import itertools
import math
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, FrozenSet, Iterator, Mapping, NoReturn, Optional, Sequence, Union

from tidegate import gang_saves, protocol, validation
from tidegate.checkpoint.directory import DirectorySave
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.occasions import Occasions
from tidegate.checkpoint.root import Stamp
from tidegate.checkpoint.saver import Done, PendingSave, Saver
from tidegate.checkpoint.store import CheckpointStore, Committed, Found
from tidegate.environment import Identity
from tidegate.errors import (
    AlreadyFinishedError,
    NotStoppingError,
    PublishRateError,
    SaveFailedError,
    UsageError,
)
from tidegate.link.base import Link, Resume
from tidegate.pace import Pace
from tidegate.phasing import Phasing
from tidegate.recall import Recall
from tidegate.seeds import Seeds
from tidegate.stop import StopGate
from tidegate.validation import STEP_MAX

SUSPEND_SECONDS_MAX = 10.0
"""How long exit_suspended() waits for the agent: the exit code says the same."""
FINISH_SECONDS_MAX = 60.0
CLOSE_SECONDS_MAX = 10.0
PUBLISH_SECONDS_MAX = 30.0


class Job(Phasing):
    """The job that this process is part of. Made by `tidegate.init()`; safe to use from several threads."""

    def __init__(self, identity: Identity, link: Link, gate: StopGate, recall: Recall) -> None:
        super().__init__(identity, link, gate, recall)
        self._stamp = Stamp(
            job=identity.job,
            attempt=identity.attempt,
            rank=identity.rank,
            component=identity.component,
            replica=identity.replica,
            world_size=identity.world_size,
            seed=identity.seed,
        )
        self._report = link.report
        self._report_numbers = itertools.count(1)
        self._metric_names: FrozenSet[str] = frozenset()
        self._store = CheckpointStore(identity.checkpoints, self._stamp)
        occasions = Occasions(gang_saves.on_node(identity, link))
        self._saver = Saver(self._store, self._on_saved, self._on_save_failed, occasions)
        self._publishing = Pace(protocol.PUBLISHES_PER_SECOND, protocol.PUBLISHES_BURST)
        self._resume = Resume(False, None)
        self._restored: Optional[Checkpoint] = None
        self._last_saved: Optional[Done] = None
        self.seeds = Seeds(identity.seed)

    def _open(self) -> None:
        """Connect and prepare the checkpoint directory; called by init()."""
        self._store.open()
        self._resume = self._link.start()

    def __repr__(self) -> str:
        identity = self._identity
        return f"<tidegate job {identity.job} attempt {identity.attempt} rank {identity.rank} {identity.component}>"

    def replicas_of(self, component: str) -> int:
        """Return how many processes a component of this member has now, where its number may be scaled.

        For this process's own component that is `replicas` where it is not scaled.
        """
        counts = {self.component: self.replicas, **self._link.replicas}
        if component not in counts:
            raise UsageError(
                f"component {component!r} was refused: its number is not scaled; known are {', '.join(sorted(counts))}"
            )
        return counts[component]

    @property
    def stop_reason(self) -> Optional[str]:
        """Return why a stop was ordered, None while none was."""
        return self._gate.reason

    @property
    def stop_ordered(self) -> bool:
        """Return whether a stop was ordered; should_stop() says when all ranks follow it together."""
        return self._gate.reason is not None

    @property
    def stop_seconds_left(self) -> Optional[float]:
        """Return the time until the stop's deadline, None while none was ordered."""
        return self._gate.seconds_left

    @property
    def dropped_reports(self) -> int:
        """Return how many reports were lost because the agent was away."""
        return self._link.dropped_reports

    # Words ------------------------------------------------------------------------------------------------------

    def report(self, metrics: Mapping[str, Any], step: Optional[int] = None, progress: Optional[float] = None) -> None:
        """Report numbers. Cheap: calls within 250 ms are merged, the newest value of each metric is sent."""
        # At every step of a fast loop, so the usual case (the same names as before, all floats) makes no other call.
        if self._ended is not None:
            self._check_open("report")
        if step is not None:
            if step.__class__ is not int or step < 0 or step > STEP_MAX:
                step = validation.step(step)
            self._step = step
        if progress is not None and (progress.__class__ is not float or not 0.0 <= progress <= 1.0):
            progress = validation.progress(progress)
        if not isinstance(metrics, dict) or metrics.keys() != self._metric_names:
            metrics = validation.metrics(metrics)
            self._link.report_names_change()
            self._metric_names = frozenset(metrics)
        else:
            for value in metrics.values():
                if value.__class__ is not float:
                    metrics = validation.metrics(metrics)
                    break
        self._report((metrics, self._step, progress, next(self._report_numbers)))

    def publish(self, kind: str, **payload: Any) -> None:
        """Publish an event of your own, up to 16 KiB of JSON; waits where 20 a second are exceeded for long."""
        self._check_open("publish")
        message = {
            "kind": "publish",
            "at_ns": time.time_ns(),
            "event": validation.event_kind(kind),
            "payload": validation.payload(payload),
        }
        if not self._publishing.take(PUBLISH_SECONDS_MAX):
            raise PublishRateError(
                f"event {kind!r} was refused: more than {protocol.PUBLISHES_PER_SECOND} a second wait; numbers that "
                "change often belong into report()"
            )
        self._link.control(message)

    def should_stop(self) -> bool:
        """Return True when the job is to save and leave: the same answer for the n-th call on every rank."""
        return self._gate.should_stop()

    # Checkpoints ------------------------------------------------------------------------------------------------

    def latest_checkpoint(self) -> Optional[Checkpoint]:
        """Return the checkpoint to continue from, verified, or None to begin afresh.

        It is the one the agent names; without an agent the newest one that verifies. A damaged one is never
        returned: the one before it is, with a warning in the log.
        """
        self._check_open("latest_checkpoint")
        if self._restored is not None:
            return self._restored
        if self._resume.known and self._resume.checkpoint_id is None:
            return None
        found = self._store.find(self._resume.checkpoint_id)
        return None if found is None else self._continue_from(found)

    def restore(
        self,
        layers: Optional[Sequence[str]] = None,
        at: Union[int, str, None] = None,
        tensors: Optional[Sequence[str]] = None,
        map_location: Any = None,
    ) -> Optional[Dict[str, Any]]:
        """Return layers by name (all of them without `layers`) out of the checkpoint to continue from; None to begin
        afresh. With `at`, a step or an id, out of that one, and the job's place does not change.

        With `tensors` (dotted names, or patterns with *) each layer is a dict of just those, and only they are read.
        Every byte is compared with its hash; a damaged checkpoint is passed over for the one before it.
        """
        self._check_open("restore")
        loaded: Dict[str, Any] = {}

        def use(committed: Committed) -> None:
            loaded.update(Checkpoint(committed).load(*(layers or ()), map_location=map_location, tensors=tensors))

        if at is not None:
            use(self._store.named(at))
            return loaded
        if self._restored is not None:
            return self._restored.load(*(layers or ()), map_location=map_location, tensors=tensors)
        if self._resume.known and self._resume.checkpoint_id is None:
            return None
        found = self._store.find(self._resume.checkpoint_id, use)
        if found is None:
            return None
        self._continue_from(found)
        return loaded

    def _continue_from(self, found: Found) -> Checkpoint:
        root = found.committed.root
        self._link.control(
            {
                "kind": "restored",
                "at_ns": time.time_ns(),
                "id": root.id,
                "directory": found.committed.name,
                "step": root.step,
                "skipped": found.skipped,
                "why": found.why,
            }
        )
        self._step = root.step
        self._restored = Checkpoint(found.committed)
        return self._restored

    def save(
        self,
        *,
        model: Any = None,
        optimizer: Any = None,
        experience: Any = None,
        state: Any = None,
        step: Optional[int] = None,
        wait: bool = False,
        together: bool = False,
        metrics: Optional[Mapping[str, Any]] = None,
        **unknown: Any,
    ) -> PendingSave:
        """Save the given layers as one checkpoint; returns once they are copied, with `wait` once it is durable.

        `step` defaults to the last reported one. A failed earlier save is raised here. After a stop was ordered, what
        there is no time for until its deadline is left out: `lost` of the checkpoint names it. `together`: every rank
        saves the same layers at the same step, what it holds alone as `tidegate.Shard`s, and it is one checkpoint of
        all or, where any of them failed, none, on whichever nodes they are. `metrics` stay with the checkpoint:
        retention may keep the best by one of them.
        """
        self._check_open("save")
        given = {"model": model, "optimizer": optimizer, "experience": experience, "state": state}
        chosen = validation.layers(given, unknown)
        at_step = self._step_to_save(step)
        self._saver.raise_failure()
        pending = self._saver.save(
            at_step, chosen, self._stamp_now(metrics), seconds_left=self.stop_seconds_left, together=together, wait=wait
        )
        if wait:
            pending.wait()
        return pending

    @contextmanager
    def checkpoint(self, step: Optional[int] = None) -> Iterator[Path]:
        """A checkpoint of files: write below d/"model", d/"optimizer", d/"experience", d/"state".

        It is committed when the block ends; an exception inside discards it.
        """
        self._check_open("checkpoint")
        at_step = self._step_to_save(step)
        self._saver.wait()
        with DirectorySave(self._store) as saving:
            yield saving.path
            done = self._commit_files(saving, at_step)
        self._on_saved(done)

    def _commit_files(self, saving: DirectorySave, step: int) -> Done:
        try:
            done = saving.commit(step, self._stamp_now())
        except OSError as error:
            self._on_save_failed(step, f"{type(error).__name__}: {error}")
            raise SaveFailedError(f"the checkpoint at step {step} was not written: {error}") from error
        if done is None:
            raise UsageError("a checkpoint without a file was refused: write below d / 'model' or another layer")
        return done

    def wait_saves(self) -> None:
        """Wait until every save is durable; raises SaveFailedError for the first that failed."""
        self._saver.wait()

    def _step_to_save(self, step: Optional[int]) -> int:
        if step is None and self._step is None:
            raise UsageError("a save without a step was refused: pass step=, or report one before")
        return validation.step(self._step if step is None else step)

    def _stamp_now(self, metrics: Optional[Mapping[str, Any]] = None) -> Stamp:
        # What is no number cannot be the best of anything.
        named = sorted(item for item in validation.metrics(metrics or {}).items() if math.isfinite(item[1]))
        return replace(self._stamp, phase=self._phase, metrics=tuple(named))

    def _on_saved(self, done: Done) -> None:
        root = done.committed.root
        layers = [{"name": entry.name, "bytes": entry.bytes, "sha256": entry.manifest} for entry in root.layers]
        self._last_saved = done
        self._link.control(
            {
                "kind": "saved",
                "at_ns": time.time_ns(),
                "id": root.id,
                "directory": root.name,
                "step": root.step,
                "layers": layers,
                "copy_ms": done.copy_ms,
                "write_ms": done.write_ms,
            }
        )

    def _on_save_failed(self, step: int, error: str) -> None:
        text = error.encode(errors="replace").decode()[: protocol.TEXT_CHARS_MAX]
        self._link.control({"kind": "save_failed", "at_ns": time.time_ns(), "step": step, "error": text})

    # The end ----------------------------------------------------------------------------------------------------

    def exit_suspended(self) -> NoReturn:
        """Wait for pending saves, acknowledge the stop, and exit with code 75.

        The code alone is an acknowledgement, so an agent that is away does not keep the process. A failed save is
        raised instead of exiting.
        """
        self.acknowledge_suspension()
        raise SystemExit(protocol.EXIT_SUSPENDED)

    def acknowledge_suspension(self) -> None:
        """Do what exit_suspended() does, except for the exit, which is then the caller's to make (code 75)."""
        self._check_open("exit_suspended")
        if not (self.local or self.stop_ordered):
            raise NotStoppingError(
                "exit_suspended() acknowledges a stop, and none was ordered: ask should_stop() first; "
                "to end the work call finish(), to leave without a statement close()"
            )
        self._saver.wait()
        saved = self._last_saved.committed.root if self._last_saved else None
        seq = self._link.control(
            {
                "kind": "suspended",
                "at_ns": time.time_ns(),
                "checkpoint": saved.id if saved else None,
                "step": saved.step if saved else self._step,
            }
        )
        self._end("exit_suspended()")
        self._link.wait_acknowledged(seq, SUSPEND_SECONDS_MAX)
        self._link.close(0.0)

    def finish(self, result: Optional[Mapping[str, Any]] = None) -> bool:
        """Wait for pending saves and say that the work is complete, with a small result.

        Returns False when the agent did not confirm it in time; exit code 0 then still says complete.
        """
        if self._ended == "finish()":
            raise AlreadyFinishedError("finish() was refused: it was called before; a job is finished once")
        self._check_open("finish")
        checked = validation.result(result)
        self._saver.wait()
        seq = self._link.control({"kind": "finished", "at_ns": time.time_ns(), "result": checked, "step": self._step})
        self._end("finish()")
        confirmed = self._link.wait_acknowledged(seq, FINISH_SECONDS_MAX)
        return self._link.close(CLOSE_SECONDS_MAX if confirmed else 0.0) and confirmed

    def close(self) -> None:
        """Wait for pending saves and leave without a statement; done at exit as well. A failed save is raised."""
        if self._ended is not None:
            return
        self._end("close()")
        try:
            self._saver.wait()
        finally:
            self._link.close(CLOSE_SECONDS_MAX)

    def _end(self, how: str) -> None:
        with self._lock:
            self._check_open(how)
            self._ended = how
        self._recall.close()

    def _forked(self) -> None:
        # The child has no link thread, and the parent's connection is not its own.
        self._ended = "a fork"
