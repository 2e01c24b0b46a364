"""The protocol between a job and its node agent: constants and the framing, shared by both ends.

A frame is a 4-byte big-endian length and that many bytes of JSON (one object with a `kind`). The text for
people is docs/reference/sdk-protocol.md; whoever changes this file changes that one.
"""

from __future__ import annotations

import json
import math
import re
import struct
from typing import Any, Dict, Iterator, List

from tidegate.errors import FrameError

PROTOCOL_MIN = 1
PROTOCOL_MAX = 4
PROTOCOL_ASKS = 2
"""The first version in which phases are asked for and handed back."""
PROTOCOL_NOT_FREED = 3
"""The first version in which a process says that it does not hand back devices."""
PROTOCOL_JOINS = 4
"""The first version in which parts of a checkpoint, of several nodes, are told of and joined."""

FRAME_BYTES_MAX = 64 * 1024
"""Longest JSON body of one frame, both ways. Bulk data never travels on this socket."""

RESULT_BYTES_MAX = 4 * 1024
PAYLOAD_BYTES_MAX = 16 * 1024
PAYLOAD_DEPTH_MAX = 32
METRICS_MAX = 64
"""How many metrics one report may name."""
NAME_CHARS_MAX = 64
TEXT_CHARS_MAX = 2000

EXIT_SUSPENDED = 75
"""Exit code of a process that acknowledged its suspension (EX_TEMPFAIL): enough even when the agent is away."""
EXIT_SAVE_FAILED = 74
"""Exit code of a process whose last save failed and who did not look (EX_IOERR)."""

PHASES_PER_SECOND, PHASES_BURST = 10, 40
"""What the agent accepts from one client. The SDK itself paces below it and merges faster flips."""
ASKS_PER_SECOND, ASKS_BURST = 20, 100
PUBLISHES_PER_SECOND, PUBLISHES_BURST = 20, 100
CONTROLS_PER_SECOND, CONTROLS_BURST = 20, 100
"""saved, save_failed, part_saved, part_failed, not_freed, restored, suspended and finished together."""
REPORTS_PER_SECOND, REPORTS_BURST = 20, 40

DEVICE_VARIABLES = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "TIDEGATE_GPU_MILLIS")
"""What tells a process its devices."""

LAYERS = ("model", "optimizer", "experience", "state")

PHASE_NAME = re.compile(r"^[a-z][a-z0-9_-]{0,31}\Z")
METRIC_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_./:-]{0,63}\Z")
EVENT_KIND = re.compile(r"^[A-Z][A-Za-z0-9]{0,63}\Z")
SAVE = re.compile(r"^[0-9]{12}-[0-9]{1,9}-[0-9a-f]{8}-[0-9]{1,9}\Z")
"""What names a save of a gang on several nodes: step, attempt, whose it is, and its number."""
STOP_GROUP = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,63}\Z")

RESERVED_EVENT_KINDS = frozenset(
    {
        "JobSubmitted",
        "JobRejected",
        "CancelRequested",
        "HoldRequested",
        "ReleaseRequested",
        "SuspendRequested",
        "ResumeRequested",
        "RequeueRequested",
        "JobPriorityChanged",
        "JobLimitChanged",
        "QueueChanged",
        "NodeDrainRequested",
        "NodeResumeRequested",
        "NodeForgetRequested",
        "MaintenancePlanned",
        "MaintenanceCancelled",
        "JobPlaced",
        "PlacementRejected",
        "JobStarted",
        "PhaseChanged",
        "PhaseRequested",
        "ProgressReported",
        "QuotaChanged",
        "QuotaApplied",
        "ShrinkRefused",
        "HandBackRequested",
        "HandBackFailed",
        "PreemptRequested",
        "CheckpointSaved",
        "CheckpointFailed",
        "CheckpointVerified",
        "CheckpointCorrupt",
        "CheckpointLost",
        "CheckpointPartSaved",
        "CheckpointPartFailed",
        "CheckpointPartPromoted",
        "JobSuspended",
        "JobResumed",
        "JobRequeued",
        "JobCompleted",
        "JobFailed",
        "JobCancelled",
        "NodeJoined",
        "NodeImagesChanged",
        "ImageCached",
        "ImageEvicted",
        "ImageUnavailable",
        "NodeUnreachable",
        "NodeReachable",
        "NodeLost",
        "NodeCordoned",
        "NodeForgotten",
        "ImagePrefetchHinted",
        "SandboxStarted",
        "SandboxExited",
        "GenerationOpened",
        "LeaderElected",
        "PolicyChanged",
        "DecisionPass",
        "RoomReserved",
        "StopRequested",
        "StepRateLow",
        "StepRateRecovered",
    }
)
"""Kinds of Tidegate's own journal: a user's event may not take their name, nor one that starts with Tidegate."""

_LENGTH = struct.Struct(">I")


def encode_frame(message: Dict[str, Any]) -> bytes:
    """Return `message` as one frame; raise FrameError when it is longer than FRAME_BYTES_MAX."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(body) > FRAME_BYTES_MAX:
        raise FrameError(
            f"a {message.get('kind')!r} message of {len(body)} bytes was refused: "
            f"a frame holds at most {FRAME_BYTES_MAX} bytes"
        )
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Turns a stream of bytes into messages; holds at most one frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Dict[str, Any]]:
        """Yield each message that `data` completes; raise FrameError on a length or a body that is not valid."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > FRAME_BYTES_MAX:
                raise FrameError(f"a frame of {length} bytes was refused: at most {FRAME_BYTES_MAX} are accepted")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield _decode(body)


def _decode(body: bytes) -> Dict[str, Any]:
    try:
        message = json.loads(body)
    except ValueError as error:
        raise FrameError(f"a frame that is not JSON was refused: {error}") from error
    if not isinstance(message, dict):
        raise FrameError(f"a frame must hold a JSON object, not a {type(message).__name__}")
    return message


def encode_metric(value: float) -> Any:
    """Return a metric as JSON can carry it: numbers as they are, the others as "nan", "inf", "-inf"."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def protocol_versions() -> List[int]:
    """Return [oldest, newest] protocol version this build speaks, as a hello states it."""
    return [PROTOCOL_MIN, PROTOCOL_MAX]


def within_depth(value: Any, depth: int = PAYLOAD_DEPTH_MAX) -> bool:
    """Return whether dicts and lists in `value` are nested at most `depth` deep."""
    if not isinstance(value, (dict, list, tuple)):
        return True
    if depth == 0:
        return False
    inner = value.values() if isinstance(value, dict) else value
    return all(within_depth(item, depth - 1) for item in inner)
