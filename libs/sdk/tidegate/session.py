"""The one job of this process: opened by init(), closed at exit, not inherited by a fork."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import traceback
from typing import Optional

from tidegate import protocol
from tidegate.environment import Identity, read_identity
from tidegate.errors import NotInitialisedError, TidegateError
from tidegate.job import Job
from tidegate.link.agent import AgentLink
from tidegate.link.base import Link
from tidegate.link.local import LocalLink
from tidegate.recall import Recall
from tidegate.stop import StopGate

_lock = threading.Lock()
_job: Optional[Job] = None
_hooked = False

_log = logging.getLogger("tidegate")


def init(stop_group: Optional[str] = None) -> Job:
    """Return the job that this process is part of, connected to its agent; local without TIDEGATE_SOCKET.

    Processes of one `stop_group` get the same answers from should_stop(). By default that is this component and
    replica on every rank; replicas that run in lock-step with each other pass a common name.
    """
    global _job  # noqa: PLW0603 - a process is part of one job
    with _lock:
        if _job is None or _job._ended is not None:
            job = open_job(read_identity(os.environ, stop_group))
            _hook()
            _job = job
        return _job


def current() -> Job:
    """Return the job opened by init(), for code that it was not passed to."""
    if _job is None or _job._ended == "a fork":
        raise NotInitialisedError("no job is open in this process: call tidegate.init() first")
    return _job


def open_job(identity: Identity) -> Job:
    """Return a job for an identity, connected."""
    gate, recall = StopGate(), Recall()
    link: Link
    if identity.local_dir is None:
        link = AgentLink(identity, os.urandom(16).hex(), gate, recall)
    else:
        link = LocalLink(identity, identity.local_dir)
    job = Job(identity, link, gate, recall)
    job._open()
    return job


def _hook() -> None:
    global _hooked  # noqa: PLW0603 - once per process
    if not _hooked:
        _hooked = True
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it at the fork
    _lock = threading.Lock()
    if _job is not None:
        _job._forked()


def _at_exit() -> None:
    """Leave; a save that failed unseen must not end as exit code 0, which an atexit function cannot change."""
    if _job is None:
        return
    try:
        _job.close()
    except TidegateError:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(protocol.EXIT_SAVE_FAILED)
