"""What is wrong with an input of a simulation: which one, why, and what is accepted."""

from __future__ import annotations


class InputError(Exception):
    """A trace, a list of nodes or a policy cannot be used."""
