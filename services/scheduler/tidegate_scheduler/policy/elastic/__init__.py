"""Policy 2, elastic: a pipeline of small pure stages over tables that follow the state, so a pass costs what changed.

The stages, in their order: settle (what happened to running attempts), leave (what operators and nodes ask), queue (who
is asked first), fit (where it finds room), preempt (who leaves for it), reserve (what is kept for the blocked, and who
may use it meanwhile), resize (how each node's CPU is shared).
"""
