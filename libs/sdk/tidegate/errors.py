"""Every error the SDK raises: what was refused, why, and what to do instead."""

from __future__ import annotations


class TidegateError(Exception):
    """Base of everything this package raises on purpose."""


class UsageError(TidegateError):
    """The calling code must change; trying again will not help."""


class NotInitialisedError(UsageError):
    """No job is open in this process: call `job = tidegate.init()` first."""


class EnvironmentInvalidError(UsageError):
    """A TIDEGATE_* variable does not hold what it should."""


class JobClosedError(UsageError):
    """The job object was used after `finish()`, `close()` or a fork."""


class AlreadyFinishedError(JobClosedError):
    """`finish()` was called twice."""


class NotStoppingError(UsageError):
    """The job acknowledged a stop that nobody ordered."""


class NestedPhaseError(UsageError):
    """A phase was entered while another one of the same job is open."""


class PhaseRefusedError(TidegateError):
    """A phase was not granted: the job is asked to leave, so save and call `exit_suspended()`; or it never can be."""


class PhaseTimeoutError(TidegateError):
    """A phase was not granted within the time that the caller gave; it is not asked for any longer."""


class DevicesNotFreedError(TidegateError):
    """The release hook of `on_gpu` raised, so the phase is not left: its devices may be in use."""


class InvalidNameError(UsageError):
    """A phase, metric, event or group name does not have the accepted form."""


class ReservedKindError(InvalidNameError):
    """A user's event took the name of one of Tidegate's own."""


class InvalidReportError(UsageError):
    """A metric, step or progress value cannot be reported."""


class InvalidPayloadError(UsageError):
    """A payload or result is not plain JSON data or is too large."""


class UnknownLayerError(UsageError):
    """A layer other than model, optimizer, experience and state was named, or the checkpoint lacks it."""


class UnsupportedObjectError(UsageError):
    """A layer holds an object that is not stored; the message names its path."""


class PublishRateError(UsageError):
    """More user events were published than the agent takes."""


class CheckpointError(TidegateError):
    """Base of what can go wrong with a checkpoint."""


class SaveFailedError(CheckpointError):
    """A checkpoint was not written; the one before it is untouched."""


class CorruptCheckpointError(CheckpointError):
    """Stored bytes do not match their hash, or a file is missing or malformed."""


class AgentUnreachableError(TidegateError):
    """The node agent did not answer in the time allowed."""


class MessageRefusedError(TidegateError):
    """The node agent refused a message for good."""


class ProtocolMismatchError(TidegateError):
    """SDK and agent speak no common protocol version."""


class FrameError(TidegateError):
    """A frame is too long or not a JSON object."""


class MissingExtraError(TidegateError, ImportError):
    """A part of the package needs an extra that is not installed."""
