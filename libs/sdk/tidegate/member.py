"""Who a process is in its job: what the agent told it at its start, and what never changes."""

from __future__ import annotations

from tidegate.environment import Identity


class Member:
    """The part of a Job that only tells who it is."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    @property
    def id(self) -> str:
        """Return the job's id ("local" without an agent)."""
        return self._identity.job

    @property
    def tenant(self) -> str:
        """Return the tenant the job runs for."""
        return self._identity.tenant

    @property
    def attempt(self) -> int:
        """Return which placement of the job this is."""
        return self._identity.attempt

    @property
    def rank(self) -> int:
        """Return this member's number in the gang."""
        return self._identity.rank

    @property
    def world_size(self) -> int:
        """Return the gang's size."""
        return self._identity.world_size

    @property
    def component(self) -> str:
        """Return the component this process belongs to."""
        return self._identity.component

    @property
    def replica(self) -> int:
        """Return this process's number within its component."""
        return self._identity.replica

    @property
    def replicas(self) -> int:
        """Return how many processes the component has."""
        return self._identity.replicas

    @property
    def seed(self) -> int:
        """Return this process's seed (see tidegate.seeds)."""
        return self._identity.seed

    @property
    def trace_id(self) -> str:
        """Return the job's trace id."""
        return self._identity.trace_id

    @property
    def determinism(self) -> str:
        """Return "strict" or "relaxed", as the job asked."""
        return self._identity.determinism

    @property
    def local(self) -> bool:
        """Return whether there is no agent (a laptop)."""
        return self._identity.socket is None
