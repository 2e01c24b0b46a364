"""Policy v1, a pipeline of pure stages over one snapshot: settle, queue, fit, preempt, resize.

No stage may do I/O, read a clock, draw a random number or decide by a float: the same state and time give the same
decisions on every machine.
"""
