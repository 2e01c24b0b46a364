"""The CPU model that a strict job keeps: that of the nodes of the first attempt of which it is known."""

from __future__ import annotations

from tidegate_scheduler.state import Job, State


def keep_model(state: State, job: Job) -> None:
    """Keep the CPU model of its nodes for a strict job that has none yet, where that is known: policy 2 goes by it.

    All members of a gang are on nodes of one model. One that policy 1 put on several keeps that of its lowest rank.
    """
    if not state.elastic or job.cpu_model or state.specs[job.id].determinism != "strict":
        return
    for member in job.members:
        node = state.nodes.get(member.node)
        if member.active and node is not None and node.cpu_model:
            job.cpu_model = node.cpu_model
            state.touch(f"job/{job.id}")
            return


def keep_models(state: State) -> None:
    """Keep the models of all that run when policy 2 begins; nodes whose model is not known tell it when they join."""
    for job in state.jobs.values():
        keep_model(state, job)
