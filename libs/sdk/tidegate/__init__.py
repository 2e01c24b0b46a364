"""What a training job imports to run under Tidegate: `job = tidegate.init()`.

Only the standard library is imported here; the HTTP client and the command line need the extra `tidegate[cli]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate import seeds
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.saver import PendingSave
from tidegate.checkpoint.shard import Shard
from tidegate.errors import (
    AgentUnreachableError,
    AlreadyFinishedError,
    CheckpointError,
    CorruptCheckpointError,
    DevicesNotFreedError,
    EnvironmentInvalidError,
    FrameError,
    InvalidNameError,
    InvalidPayloadError,
    InvalidReportError,
    JobClosedError,
    MessageRefusedError,
    MissingExtraError,
    NestedPhaseError,
    NotInitialisedError,
    NotStoppingError,
    PhaseRefusedError,
    PhaseTimeoutError,
    ProtocolMismatchError,
    PublishRateError,
    ReservedKindError,
    SaveFailedError,
    TidegateError,
    UnknownLayerError,
    UnsupportedObjectError,
    UsageError,
)
from tidegate.gpu_lease import GpuLease
from tidegate.grant import Grant
from tidegate.job import Job
from tidegate.session import current, init
from tidegate.version import VERSION as __version__

if TYPE_CHECKING:
    from tidegate.client import Client

__all__ = [
    "init",
    "current",
    "Job",
    "Checkpoint",
    "PendingSave",
    "Shard",
    "Grant",
    "GpuLease",
    "Client",
    "seeds",
    "__version__",
    "TidegateError",
    "UsageError",
    "AgentUnreachableError",
    "AlreadyFinishedError",
    "CheckpointError",
    "CorruptCheckpointError",
    "DevicesNotFreedError",
    "EnvironmentInvalidError",
    "FrameError",
    "InvalidNameError",
    "InvalidPayloadError",
    "InvalidReportError",
    "JobClosedError",
    "MessageRefusedError",
    "MissingExtraError",
    "NestedPhaseError",
    "NotStoppingError",
    "NotInitialisedError",
    "PhaseRefusedError",
    "PhaseTimeoutError",
    "ProtocolMismatchError",
    "PublishRateError",
    "ReservedKindError",
    "SaveFailedError",
    "UnknownLayerError",
    "UnsupportedObjectError",
]


def __getattr__(name: str) -> Any:
    if name != "Client":
        raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
    try:
        from tidegate.client import Client  # noqa: PLC0415 - only on use: it needs more than a job has
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"tidegate.Client needs {error.name}, which is not installed: pip install 'tidegate[cli]'"
        ) from error
    return Client
