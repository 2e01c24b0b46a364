"""The scheduler: a pure core (state, evolve, decide, policy) inside a thin shell, and the replay of its history."""
