"""The history of a cluster as an operator reads it: listed, explained, proved, carried away. It changes nothing."""

from tidegate_scheduler.history.verification import Difference, Verification, verify

__all__ = ["Difference", "Verification", "verify"]
