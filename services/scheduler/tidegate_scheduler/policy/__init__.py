"""The policies, each a pipeline of pure stages over one snapshot, and which of them a history names (`registry`).

No stage may do I/O, read a clock, draw a random number or decide by a float: the same state and time give the same
decisions on every machine. `settle` is what all policies do alike.
"""
