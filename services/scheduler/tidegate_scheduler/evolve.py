"""`evolve`: fold one journal frame into the state, deterministically, voiding by rule what came too late.

A frame that its writer had already written (a late duplicate) changes nothing. A decision changes nothing when its job
moved on since it was taken. The rules are those of the contract table in `tidegate_events.contract`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate_events import events as e
from tidegate_events.contract import may_say
from tidegate_events.journal.base import Recorded
from tidegate_events.subjects import DECISION, speaks_for

from tidegate_scheduler import counting, lifecycle, operations
from tidegate_scheduler.offers import has_less_images, note_change, offers_less
from tidegate_scheduler.seats import UNSEATED_MAX
from tidegate_scheduler.state import HINTS_KEPT, Node, State
from tidegate_scheduler.strict import keep_model, keep_models


def evolve(state: State, recorded: Recorded, told: Callable[[e.AnyEvent], None] | None = None) -> None:
    """Change `state` by the frame at `recorded.seq`, which must be the one after `state.seq`.

    `told` hears of each event that counts right after it was folded, before the next one is.
    """
    if recorded.seq != state.seq + 1:
        raise ValueError(f"frame {recorded.seq} cannot follow {state.seq}: history has no gaps")
    state.seq = recorded.seq
    if recorded.subject == DECISION:
        state.decision_seq = recorded.seq
    writer = recorded.frame.writer
    if not speaks_for(recorded.subject, writer):
        return
    name = f"{writer.service}/{writer.instance}"
    mark = (writer.epoch, writer.writer_seq)
    if mark <= state.writers.get(name, (0, -1)):
        return
    if writer.service == "scheduler" and writer.epoch < state.header.epoch:
        return
    state.writers[name] = mark
    state.touch(f"writer/{name}")
    for index, event in enumerate(recorded.frame.events):
        if may_say(writer, event):
            _RULES[type(event)](state, event, f"{recorded.seq}.{index}")
            if told is not None:
                told(event)
    if len(state.seats.changed) > UNSEATED_MAX:
        state.seats.tidy()


def _on_leader_elected(state: State, event: e.LeaderElected, _at: str) -> None:
    if event.epoch > state.header.epoch:
        state.header.epoch = event.epoch
        state.touch("header")


def _on_generation_opened(state: State, event: e.GenerationOpened, _at: str) -> None:
    if event.generation > state.header.generation:
        state.header.generation = event.generation
        state.touch("header")


def _on_policy_changed(state: State, event: e.PolicyChanged, _at: str) -> None:
    state.header.policy = event.policy
    state.header.parameters = dict(event.parameters)
    state.touch("header")
    keep_models(state)


def _on_decision_pass(state: State, event: e.DecisionPass, _at: str) -> None:
    state.header.now_ns = max(state.header.now_ns, event.now_ns)
    state.touch("header")


def _on_node_joined(state: State, event: e.NodeJoined, _at: str) -> None:
    known = state.nodes.get(event.node)
    if known is not None and event.incarnation <= known.incarnation:
        return
    held = {(s.job, s.attempt, s.rank) for s in event.sandboxes}
    current: set[tuple[str, int, int]] = set()
    for job in state.seats.on(event.node):
        for member in job.members:
            if member.node != event.node or not member.active:
                continue
            key = (job.id, job.attempt, member.rank)
            if key in held:
                current.add(key)
            elif member.status == "started":
                counting.lose_member(state, job, member, "the node came back without it", event.at_ns)
    node = _joined(state, event, [s for s in event.sandboxes if (s.job, s.attempt, s.rank) not in current])
    state.nodes[event.node] = node
    state.touch(f"node/{event.node}")
    for job in state.seats.on(event.node):
        keep_model(state, job)
    if known is None or offers_less(node, known):
        note_change(state, event.at_ns)
    if known is None:
        return
    # An operator's word outlives a restart, and so does what the node is blamed for.
    node.drain_deadline_ns, node.cordoned, node.failures = known.drain_deadline_ns, known.cordoned, known.failures
    for gone in known.zombies:
        state.forget_spec(gone.job)


def _joined(state: State, event: e.NodeJoined, zombies: list[e.HeldSandbox]) -> Node:
    return Node(
        name=event.node,
        incarnation=event.incarnation,
        capacity=event.capacity,
        levels=event.levels,
        gpus=event.gpus,
        images=event.images,
        status="up",
        unreachable_since_ns=0,
        zombies=zombies,
        rack=event.rack,
        switch=event.switch,
        cpu_model=event.cpu_model if state.elastic else "",
        isa=event.isa if state.elastic else "",
        address=event.address,
        fetches_images=event.fetches_images,
        gpu_levels=event.gpu_levels,
    )


def _on_node_unreachable(state: State, event: e.NodeUnreachable, _at: str) -> None:
    node = state.nodes.get(event.node)
    if node is not None and node.incarnation == event.incarnation and node.status == "up":
        node.status = "unreachable"
        # Its writer's clock may be behind the scheduler's time, in which the bound is counted.
        node.unreachable_since_ns = max(event.at_ns, state.header.now_ns)
        state.touch(f"node/{node.name}")


def _on_node_reachable(state: State, event: e.NodeReachable, _at: str) -> None:
    node = state.nodes.get(event.node)
    if node is not None and node.incarnation == event.incarnation and node.status != "up":
        node.status = "up"
        node.unreachable_since_ns = 0
        state.touch(f"node/{node.name}")


def _on_node_lost(state: State, event: e.NodeLost, _at: str) -> None:
    node = state.nodes.get(event.node)
    if node is None or node.incarnation != event.incarnation or node.status == "lost":
        return
    node.status = "lost"
    if state.elastic and not node.unreachable_since_ns:
        node.unreachable_since_ns = max(event.at_ns, state.header.now_ns)
    for job in state.seats.on(node.name):
        for member in job.members:
            if member.node == node.name and member.active:
                node.zombies.append(e.HeldSandbox(job=job.id, attempt=job.attempt, rank=member.rank))
                counting.lose_member(state, job, member, "its node was lost", event.at_ns)
    state.touch(f"node/{node.name}")


def _on_node_cordoned(state: State, event: e.NodeCordoned, _at: str) -> None:
    node = state.nodes.get(event.node)
    if node is not None and node.incarnation == event.incarnation and not node.cordoned:
        node.cordoned = True
        state.touch(f"node/{node.name}")


def _on_node_forgotten(state: State, event: e.NodeForgotten, _at: str) -> None:
    node = state.nodes.get(event.node)
    if node is not None and node.incarnation == event.incarnation and node.status == "lost":
        state.forget_node(node)
        note_change(state, event.at_ns)


def _on_image_prefetch_hinted(state: State, event: e.ImagePrefetchHinted, _at: str) -> None:
    """Remember it, so that it is not said again with every pass, until the agent joins again or others push it out."""
    node = state.nodes.get(event.node)
    if node is not None and event.image not in node.hinted:
        node.hinted = [*node.hinted, event.image][-HINTS_KEPT:]
        state.touch(f"node/{node.name}")


def _on_image_cached(state: State, event: e.ImageCached, _at: str) -> None:
    if (node := _joined_as(state, event)) is None:
        return
    node.images = {**node.images, event.image: event.digest}
    _have_or_miss(state, node, {event.image, event.digest})
    node.unavailable = [image for image in node.unavailable if image not in (event.image, event.digest)]


def _on_image_evicted(state: State, event: e.ImageEvicted, _at: str) -> None:
    node = _joined_as(state, event)
    if node is None or node.images.get(event.image) != event.digest:
        return
    images = node.images
    node.images = {name: digest for name, digest in images.items() if name != event.image}
    if has_less_images(node, images, node.unavailable):
        note_change(state, event.at_ns)
    state.touch(f"node/{node.name}")


def _on_image_unavailable(state: State, event: e.ImageUnavailable, _at: str) -> None:
    if (node := _joined_as(state, event)) is None:
        return
    if event.image not in node.unavailable:
        note_change(state, event.at_ns)
    node.unavailable = [*(image for image in node.unavailable if image != event.image), event.image][-HINTS_KEPT:]
    _have_or_miss(state, node, {event.image})


def _joined_as(state: State, event: e.ImageCached | e.ImageEvicted | e.ImageUnavailable) -> Node | None:
    """Return the node if its agent is the one that says so."""
    node = state.nodes.get(event.node)
    return node if node is not None and node.incarnation == event.incarnation else None


def _have_or_miss(state: State, node: Node, images: set[str]) -> None:
    """What a node has or cannot get is no hint any more."""
    node.hinted = [image for image in node.hinted if image not in images]
    state.touch(f"node/{node.name}")


def _on_node_images_changed(state: State, event: e.NodeImagesChanged, _at: str) -> None:
    """Take over what the node has; what it has or cannot get is no hint any more."""
    node = state.nodes.get(event.node)
    if node is None or node.incarnation != event.incarnation:
        return
    images, unavailable = node.images, node.unavailable
    node.images = event.images
    node.unavailable = list(event.unavailable[-HINTS_KEPT:])
    if has_less_images(node, images, unavailable):
        note_change(state, event.at_ns)
    there = {*event.images, *event.images.values(), *event.unavailable}
    node.hinted = [image for image in node.hinted if image not in there]
    state.touch(f"node/{node.name}")


_RULES: dict[type[e.Event], Callable[[State, Any, str], None]] = {
    e.GenerationOpened: _on_generation_opened,
    e.LeaderElected: _on_leader_elected,
    e.PolicyChanged: _on_policy_changed,
    e.DecisionPass: _on_decision_pass,
    e.NodeJoined: _on_node_joined,
    e.NodeImagesChanged: _on_node_images_changed,
    e.ImageCached: _on_image_cached,
    e.ImageEvicted: _on_image_evicted,
    e.ImageUnavailable: _on_image_unavailable,
    e.NodeUnreachable: _on_node_unreachable,
    e.NodeReachable: _on_node_reachable,
    e.NodeLost: _on_node_lost,
    e.NodeCordoned: _on_node_cordoned,
    e.NodeForgotten: _on_node_forgotten,
    e.ImagePrefetchHinted: _on_image_prefetch_hinted,
    **lifecycle.RULES,
    **operations.RULES,
}
