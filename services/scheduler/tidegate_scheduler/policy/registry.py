"""Every policy that a recorded history may name, so that it is decided again by the one that decided it then.

A changed policy gets a new version here and in `version.POLICY_VERSION`; the old one stays, as long as histories that
name it are to be replayed. `tests/golden/journals` fails where a policy changes under its old number.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic import pipeline as elastic
from tidegate_scheduler.policy.first import pipeline


class UnknownPolicyError(Exception):
    """The history names a policy that this code does not have."""


class Policy(msgspec.Struct, frozen=True):
    """The entry points of one policy: to decide, and to explain what a waiting job meets when its turn comes."""

    decide: Callable[[Draft], None]
    turn_of: Callable[[Draft, str], pipeline.Turn]


_FIRST = Policy(pipeline.decide, pipeline.turn_of)
POLICIES: dict[int, Policy] = {
    0: _FIRST,  # a state whose journal has named no policy yet
    1: _FIRST,
    2: Policy(elastic.decide, pipeline.turn_of),
}


def find(version: int) -> Policy:
    """Return the policy of that version. Raises UnknownPolicyError, which says which versions there are."""
    policy = POLICIES.get(version)
    if policy is None:
        known = ", ".join(str(each) for each in sorted(POLICIES) if each)
        raise UnknownPolicyError(
            f"this history is decided by policy {version}, which this version of Tidegate does not have "
            f"(it has {known}): use the version that wrote it, or a newer one"
        )
    return policy
