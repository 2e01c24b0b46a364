"""The scheduler's core in virtual time: the same `evolve`, the same `decide`, and a cluster that is a model."""
