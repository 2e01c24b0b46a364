"""Versions that a recorded history names, so that it is replayed by the code that can."""

CORE_VERSION = "1.0"
POLICY_VERSION = 2
