"""Every policy that a recorded history may name, so that it is decided again by the one that decided it then.

A changed policy gets a new version here and in `version.POLICY_VERSION`; the old one stays, as long as histories that
name it are to be replayed. `tests/golden/journals` fails where a policy changes under its old number.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic import outlook as elastic_outlook
from tidegate_scheduler.policy.elastic import pipeline as elastic
from tidegate_scheduler.policy.first import outlook as first_outlook
from tidegate_scheduler.policy.first import pipeline as first
from tidegate_scheduler.policy.outlook import Outlook
from tidegate_scheduler.state import State


class UnknownPolicyError(Exception):
    """The history names a policy that this code does not have."""


class Policy(msgspec.Struct, frozen=True):
    """One policy: to decide, and to answer what explanations ask about a state at a time."""

    decide: Callable[[Draft], None]
    outlook: Callable[[State, int], Outlook]


_FIRST = Policy(first.decide, first_outlook.FirstOutlook)
POLICIES: dict[int, Policy] = {
    0: _FIRST,  # a state whose journal has named no policy yet
    1: _FIRST,
    2: Policy(elastic.decide, elastic_outlook.ElasticOutlook),
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


def outlook(state: State, now_ns: int) -> Outlook:
    """Return what explanations ask of the policy that the state names. Raises UnknownPolicyError."""
    return find(state.header.policy).outlook(state, max(now_ns, state.header.now_ns))
