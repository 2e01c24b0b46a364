"""Answers questions about what jobs wrote, live or long gone, from the bounded log files that outlive sandboxes.

A piece holds only bytes the job wrote, so that offset plus length is the next offset. Where the bound dropped bytes in
the middle, a question inside the gap is answered from behind it, and `truncated` says so.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tidegate_executor.attempts.state import AttemptState, sandbox_id
from tidegate_executor.retention import LOG_BYTES_MAX, LOGS_KEPT_MAX
from tidegate_executor.sandbox.logs import read_kept

PIECE_BYTES_MAX = 256 * 1024
OFFSET_MAX = 1 << 53


class LogQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked; `attempt` 0 means the newest one here, an empty component the main one."""

    job: str
    attempt: int = 0
    rank: int = 0
    component: str = ""
    replica: int = 0
    offset: int = 0
    limit: int = PIECE_BYTES_MAX


class Known(Protocol):
    """What the answerer must know of attempts."""

    def find(self, sandbox: str) -> AttemptState | None:
        """Return the attempt's state."""
        ...

    def newest(self, job: str, rank: int) -> AttemptState | None:
        """Return the job's newest attempt here."""
        ...

    def main_component(self, sandbox: str) -> str | None:
        """Return the name of its main component."""
        ...


_decoder = msgspec.json.Decoder(LogQuestion)


def answer(data: bytes, known: Known, logs: Path) -> bytes:
    """Return the JSON answer to a question; `error` in it says why there is none. Blocks on small reads."""
    try:
        question = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        return _error(f"the question cannot be read: {error}")
    if question.attempt:
        state = known.find(sandbox_id(question.job, question.attempt, question.rank))
    else:
        state = known.newest(question.job, question.rank)
    if state is None:
        return _error(f"job {question.job} attempt {question.attempt or 'any'} rank {question.rank} was never here")
    component = question.component or known.main_component(state.id) or ""
    if not any(replica.name == f"{component}.{question.replica}" for replica in state.replicas):
        have = ", ".join(replica.name for replica in state.replicas)
        return _error(f"there is no {component}.{question.replica}; there are: {have}")
    if not (logs / state.id).is_dir():
        return _error(_why_none(state))
    return msgspec.json.encode(
        {
            **piece(logs / state.id, (component, question.replica), question.offset, question.limit),
            "components": list(dict.fromkeys(replica.component for replica in state.replicas)),
            "replicas": [{"component": replica.component, "replica": replica.replica} for replica in state.replicas],
        }
    )


def piece(directory: Path, of: tuple[str, int], offset: int, limit: int) -> dict[str, Any]:
    """Return up to `limit` bytes of a replica's output from `offset` (negative: from the end)."""
    component, replica = of
    room = min(max(limit, 1), PIECE_BYTES_MAX)
    found = read_kept(str(directory), component, replica, max(min(offset, OFFSET_MAX), -OFFSET_MAX), room)
    return {
        "data": base64.b64encode(found.data).decode(),
        "offset": found.offset,
        "size": found.size,
        "truncated": found.offset > found.wanted,
    }


def _why_none(state: AttemptState) -> str:
    if state.ended_ns:
        kept = f"{LOGS_KEPT_MAX} sandboxes and {LOG_BYTES_MAX // 1024**3} GiB"
        return f"{state.id} wrote no log, or it was removed: this node keeps the newest logs of at most {kept}"
    return f"{state.id} has not begun to run, so there is no log yet"


def _error(text: str) -> bytes:
    return msgspec.json.encode({"error": text})
