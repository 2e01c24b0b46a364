"""What is known of a job's checkpoints: the newest ones, and on which node the newest lies."""

from __future__ import annotations

from tidegate_events import events as e

from tidegate_scheduler.state import CHECKPOINTS_KEPT, State


def on_checkpoint_saved(state: State, event: e.CheckpointSaved, _at: str) -> None:
    """Keep a checkpoint that rank 0 committed; the newest lies where rank 0 runs, if it is in that node's own tier."""
    job = state.jobs.get(event.job)
    if job is None or event.rank != 0 or any(known.id == event.checkpoint.id for known in job.checkpoints):
        return
    kept = [*job.checkpoints, event.checkpoint]
    kept.sort(key=lambda checkpoint: (checkpoint.attempt, checkpoint.step))
    job.checkpoints = kept[-CHECKPOINTS_KEPT:]
    if state.elastic and job.newest_checkpoint is event.checkpoint:
        job.saved_ns = max(event.at_ns, state.header.now_ns)
        job.saved_on = event.node if event.tier == "hot" else ""
    state.touch(f"job/{job.id}")


def on_checkpoint_failed(state: State, event: e.CheckpointFailed, _at: str) -> None:
    """Keep a checkpoint no longer that could not be read back; an earlier one of its attempt lies on the same node."""
    job = state.jobs.get(event.job)
    if job is None or not event.checkpoint_id:
        return
    before = job.newest_checkpoint
    job.checkpoints = [known for known in job.checkpoints if known.id != event.checkpoint_id]
    newest = job.newest_checkpoint
    if newest is not before:
        job.saved_ns = 0
        if newest is None or before is None or newest.attempt != before.attempt:
            job.saved_on = ""
    state.touch(f"job/{job.id}")
