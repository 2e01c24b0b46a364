"""Answers questions about what jobs wrote, live or long gone, from the bounded log files that outlive sandboxes.

A piece holds only bytes the job wrote, so that offset plus length is the next offset. Where the bound dropped bytes in
the middle, a question inside the gap is answered from behind it, and `truncated` says so.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tidegate_executor.attempts.state import AttemptState, sandbox_id
from tidegate_executor.sandbox.logs import read_log
from tidegate_executor.sandbox.shim.output import existing_segments, segment_name

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
    kept = _kept(directory, f"{component}.{replica}")
    size = kept[-1][1] if kept else 0
    wanted = min(max(offset if offset >= 0 else size + offset, 0), OFFSET_MAX)
    start = wanted
    room = min(max(limit, 1), PIECE_BYTES_MAX)
    data = b""
    for begin, end in kept:
        if wanted >= end:
            continue
        start = max(wanted, begin)
        data = read_log(str(directory), component, replica, start, min(room, end - start)).data
        break
    return {
        "data": base64.b64encode(data).decode(),
        "offset": start,
        "size": size,
        "truncated": start > wanted,
    }


def _kept(directory: Path, name: str) -> list[tuple[int, int]]:
    """Return the kept ranges of the stream, adjacent files joined."""
    try:
        starts = sorted(existing_segments(str(directory), name))
    except FileNotFoundError:
        return []
    ranges: list[tuple[int, int]] = []
    for start in starts:
        try:
            end = start + os.stat(directory / segment_name(name, start)).st_size
        except FileNotFoundError:
            continue  # dropped by the shim meanwhile
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    return ranges


def _error(text: str) -> bytes:
    return msgspec.json.encode({"error": text})
