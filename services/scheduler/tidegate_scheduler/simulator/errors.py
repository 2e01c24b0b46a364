"""What can be wrong with a simulation: an input, or that the rules do not go with the workload."""

from __future__ import annotations


class InputError(Exception):
    """A trace, a list of nodes or a policy cannot be used; says which, why, and what is accepted."""


class SimulationError(Exception):
    """The simulation cannot be made; says why, and what would be accepted."""
