"""What any rules must obey, whoever they place: every baseline sees the cluster through this, before it decides."""

from __future__ import annotations

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.simulator.baselines.cluster import Cluster, Rank
from tidegate_scheduler.simulator.baselines.refusing import refuse
from tidegate_scheduler.simulator.baselines.sending_away import send_away


def cluster_of(draft: Draft, rank: Rank) -> Cluster:
    """Return what is seen of the draft's state, up to date, once that is decided which is no matter of the rules."""
    found = draft.state.derived
    if not isinstance(found, Cluster) or found.rank is not rank:
        found = draft.state.derived = Cluster(draft.state, rank)
    found.refresh(draft)
    send_away(draft, found)
    refuse(draft, found)
    return found
