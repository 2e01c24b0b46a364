"""Chaos: a stack under load whose processes are killed and stopped at random, and the reckoning afterwards."""
