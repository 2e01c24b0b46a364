"""Policy 2, elastic: a pipeline of small pure stages over tables that follow the state, so a pass costs what changed.

The stages, in their order: settle (what happened to running attempts), leave (what operators and nodes ask), cordon
(nodes that keep failing jobs), queue (who is asked first), fit (where it finds room), preempt (who leaves for it),
defragment (who moves for it), reserve (what is kept for the blocked, and who may use it meanwhile), prefetch (which
image should be where next), resize (how each node's CPU is shared), replicas (how many simulators there are).
"""
