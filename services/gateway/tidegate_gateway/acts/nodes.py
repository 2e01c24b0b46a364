"""What may be asked of a node: that its jobs leave by a time and nothing new comes, and that it takes jobs again.

Of one that is lost: that nothing is kept of it any more.
"""

from __future__ import annotations

from functools import partial

from tidegate_events import events as e

from tidegate_gateway.acts.base import Asked, CannotError, EventMaker, UnknownError, WrongError
from tidegate_gateway.submission.bounds import YEAR_SECONDS
from tidegate_gateway.submission.problems import listed_names
from tidegate_gateway.view.model import Node
from tidegate_gateway.view.projection import View

NS_PER_SECOND = 1_000_000_000
DEADLINE_PAST_SECONDS_MAX = 60
"""A deadline so long ago is a mistake; one of a moment ago is a request that took its time."""


def known_node(view: View, name: str) -> Node:
    """Return the node. Raises UnknownError."""
    if (node := view.nodes.get(name)) is None:
        raise UnknownError("node", name, "one of " + listed_names(view.nodes) if view.nodes else "a node that joined")
    return node


def drain(view: View, name: str, asked: Asked, deadline_ns: int, now_ns: int) -> EventMaker | None:
    """Ask the node's jobs to leave by `deadline_ns`, and keep new ones away."""
    node = known_node(view, name)
    if node.drain is not None and node.drain.deadline_ns == deadline_ns:
        return None
    low_ns, high_ns = now_ns - DEADLINE_PAST_SECONDS_MAX * NS_PER_SECOND, now_ns + YEAR_SECONDS * NS_PER_SECOND
    if not low_ns <= deadline_ns <= high_ns:
        accepted = f"Unix nanoseconds from now ({now_ns}) to a year from now"
        raise WrongError("deadline_ns", "is past, or more than a year away", accepted)
    return partial(e.NodeDrainRequested, node=name, deadline_ns=deadline_ns, actor=asked.actor, note=asked.note)


def resume(view: View, name: str, asked: Asked) -> EventMaker | None:
    """Take drain and cordon back."""
    node = known_node(view, name)
    if node.drain is not None or node.cordoned:
        return partial(e.NodeResumeRequested, node=name, actor=asked.actor, note=asked.note)
    if node.resumed:
        return None
    raise CannotError("not_drained", f"node {name} is neither drained nor cordoned", "a node that is", node=name)


def forget(view: View, name: str, asked: Asked) -> EventMaker:
    """Keep nothing of a lost node any more."""
    node = known_node(view, name)
    if node.state != "lost":
        raise CannotError("not_lost", f"node {name} is {node.state}", "a node that is lost", node=name)
    return partial(e.NodeForgetRequested, node=name, actor=asked.actor, note=asked.note)
