"""Other policies, one small module each, for comparison on the same input: they place and preempt, the rest is core.

Each has `rules(workload)`. What several of them do alike is in `room` (one node), `cluster` (all of them, kept up with
the state), `seating` (where a gang goes), `in_turn` (who is asked in which order, and nobody leaves) and `ranked` (who
ranks lower leaves). What any rules must obey is in `obeying`: who leaves (`sending_away`), who may not be placed and
where (`barring`, `domains`), and what is refused (`refusing`). They hold what a job needs at most for as long as it
runs; they lend nothing.
"""
