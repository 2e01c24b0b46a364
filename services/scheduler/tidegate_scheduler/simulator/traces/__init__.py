"""Recorded workloads of others: each reader makes a `Workload` of one format, for the nodes that are given."""
