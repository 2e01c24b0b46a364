"""What nodes offer, and when that last changed: whom the cluster cannot hold it may be able to hold a moment later."""

from __future__ import annotations

from collections import Counter

from tidegate_scheduler.policy.parameters import SECOND_NS, as_parameters
from tidegate_scheduler.state import Node, State

CHANGES_FOR_MAX = 10
"""Where what nodes offer goes on changing, a job waits for so many times as long as after one change, at most."""


def note_change(state: State, at_ns: int) -> None:
    """Note that there is a node more, or that one offers less or is gone.

    Others may join too, and what a node lost may come back: an agent that restarts while a device is reset joins
    without it. Changes of which each comes soon after the one before are one series, for which nobody waits longer than
    CHANGES_FOR_MAX says; when it has gone on for so long, who waited for it was rejected, and the next begins another.
    """
    if not state.elastic:
        return
    header = state.header
    after_ns = as_parameters(header.parameters).inadmissible_after_seconds * SECOND_NS
    # Its writer's clock may be behind the scheduler's time, in which the bound is counted.
    at_ns = max(at_ns, header.now_ns)
    paused = abs(at_ns - header.offers_changed_ns) > after_ns  # who could be rejected was; or a clock was wrong
    if paused or header.now_ns >= header.offers_changing_ns + CHANGES_FOR_MAX * after_ns:
        header.offers_changing_ns = at_ns
    header.offers_changed_ns = at_ns
    state.touch("header")


def offers_less(node: Node, before: Node) -> bool:
    """Say whether the node offers less than before, of anything that decides whether it could hold a job when empty.

    One that stands elsewhere in the network, or has another CPU model, is missing where it was. That it is away is no
    matter: it is counted as it was until it is forgotten.
    """
    capacity, had = node.capacity, before.capacity
    return (
        capacity.cpu_millis < had.cpu_millis
        or capacity.memory_mib < had.memory_mib
        or bool(_devices(before) - _devices(node))
        or not set(before.levels) <= set(node.levels)
        or not _gpu_levels(before) <= _gpu_levels(node)
        or (node.rack, node.switch, node.cpu_model) != (before.rack, before.switch, before.cpu_model)
        or (before.fetches_images and not node.fetches_images)
        or has_less_images(node, before.images, before.unavailable)
    )


def has_less_images(node: Node, images: dict[str, str], unavailable: list[str]) -> bool:
    """Say whether the node lacks one of the images, or cannot get one more than those that it could not."""
    there = {*node.images, *node.images.values()}
    return not {*images, *images.values()} <= there or not set(node.unavailable) <= set(unavailable)


def _gpu_levels(node: Node) -> set[str]:
    return set(node.levels if node.gpu_levels is None else node.gpu_levels)


def _devices(node: Node) -> Counter[tuple[str, int]]:
    return Counter((gpu.model, gpu.memory_mib) for gpu in node.gpus)
