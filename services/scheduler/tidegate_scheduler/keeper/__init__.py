"""The keeper: saves the scheduler's state, and moves the journal from one generation to the next before it is full."""
