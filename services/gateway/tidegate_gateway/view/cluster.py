"""Folds what happens to nodes: which there are, and which sandboxes each still holds."""

from __future__ import annotations

from collections.abc import Callable

from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import member_floor

from tidegate_gateway.view.model import Drain, Exit, Hold, Job, Member, Node

Nodes = dict[str, Node]
JobsOn = Callable[[str], list[Job]]
"""Returns the jobs whose current attempt has a member on the node of that name."""

_IMAGES = e.NodeImagesChanged | e.ImageCached | e.ImageEvicted
_OF_INCARNATION = _IMAGES | e.NodeUnreachable | e.NodeReachable | e.NodeLost | e.NodeCordoned | e.NodeForgotten


def on_node_event(nodes: Nodes, jobs_on: JobsOn, event: e.Event) -> bool:
    """Fold an event about a node; say whether it counted."""
    if isinstance(event, e.NodeJoined):
        return _on_joined(nodes, jobs_on, event)
    node = nodes.get(getattr(event, "node", ""))
    if node is None:
        return False
    if isinstance(event, e.NodeDrainRequested | e.NodeResumeRequested | e.ImagePrefetchHinted):
        return _on_word(node, event)
    if isinstance(event, e.NodeForgetRequested):
        return _forget(nodes, node)
    return _on_incarnation(nodes, node, jobs_on, event)


def _on_incarnation(nodes: Nodes, node: Node, jobs_on: JobsOn, event: e.Event) -> bool:
    """Fold what was decided about the node as its agent had joined last."""
    if not isinstance(event, _OF_INCARNATION) or node.incarnation != event.incarnation:
        return False
    if isinstance(event, _IMAGES):
        return _on_images(node, event)
    if isinstance(event, e.NodeLost):
        return _on_lost(node, jobs_on(node.name), event.at_ns)
    if isinstance(event, e.NodeForgotten):
        return _forget(nodes, node)
    return _on_cordoned(node, event) if isinstance(event, e.NodeCordoned) else _on_reach(node, event)


def _on_images(node: Node, event: e.NodeImagesChanged | e.ImageCached | e.ImageEvicted) -> bool:
    before = node.images
    if isinstance(event, e.NodeImagesChanged):
        node.images = event.images
    elif isinstance(event, e.ImageCached):
        node.images = {**before, event.image: event.digest}
    elif before.get(event.image) == event.digest:
        node.images = {name: digest for name, digest in before.items() if name != event.image}
    return node.images != before or isinstance(event, e.NodeImagesChanged)


def _on_reach(node: Node, event: e.NodeUnreachable | e.NodeReachable) -> bool:
    if isinstance(event, e.NodeUnreachable):
        counts, state = node.state == "reachable", "unreachable"
    else:
        counts, state = node.state != "reachable", "reachable"
    if counts:
        node.state = "unreachable" if state == "unreachable" else "reachable"
        node.state_since_ns = event.at_ns
    return counts


def can_take(nodes: Nodes, event: e.JobPlaced) -> bool:
    """Say whether every node of a placement is there, in the incarnation that the decision knew."""
    for member in event.members:
        node = nodes.get(member.node)
        if node is None or node.incarnation != member.incarnation or node.state != "reachable":
            return False
    return True


def hold(nodes: Nodes, job: Job) -> None:
    """Note on its nodes what the members of the job's newest attempt hold."""
    if job.latest is None:
        return
    for member in job.latest.members:
        node = nodes.get(member.placement.node)
        if node is not None and member.active:
            key = (job.id, job.attempt, member.placement.rank)
            node.holds[key] = Hold(job.tenant, member.sandbox, amount_held(job, member))


def on_job_event(nodes: Nodes, event: e.JobEvent) -> None:
    """Note what a node said of a sandbox, whatever it means for the job: room is free when the sandbox is gone."""
    if not isinstance(event, e.SandboxStarted | e.SandboxExited | e.PlacementRejected):
        return
    node = nodes.get(event.node)
    if node is None:
        return
    key = (event.job, event.attempt, event.rank)
    if not isinstance(event, e.SandboxStarted):
        node.holds.pop(key, None)
    elif key in node.holds:
        node.holds[key].sandbox = "running"


def _on_joined(nodes: Nodes, jobs_on: JobsOn, event: e.NodeJoined) -> bool:
    known = nodes.get(event.node)
    if known is not None and event.incarnation <= known.incarnation:
        return False
    held = {(sandbox.job, sandbox.attempt, sandbox.rank) for sandbox in event.sandboxes}
    node = Node(
        name=event.node,
        incarnation=event.incarnation,
        capacity=event.capacity,
        levels=event.levels,
        images=event.images,
        gpus=event.gpus,
        cpu_model=event.cpu_model,
        isa=event.isa,
        joined_at_ns=event.at_ns,
        state_since_ns=event.at_ns,
        rack=event.rack,
        switch=event.switch,
        gpu_levels=event.gpu_levels,
    )
    if known is not None:
        # What was asked of the node holds also when its agent starts anew.
        node.drain, node.resumed = known.drain, known.resumed
        node.cordoned, node.cordoned_ns = known.cordoned, known.cordoned_ns
    nodes[event.node] = node
    for job, member in _members_on(jobs_on(event.node), event.node):
        key = (job.id, job.attempt, member.placement.rank)
        if key not in held and member.sandbox == "running":
            _lose(job, member, "the node came back without it")
        else:
            node.holds[key] = Hold(job.tenant, member.sandbox, amount_held(job, member))
    before = known.holds if known is not None else {}
    for key in held - set(node.holds):
        # It runs there but belongs to no current attempt; how much it uses is known only from before.
        node.holds[key] = before.get(key, Hold("", "running", Resources()))
    return True


def _on_word(node: Node, event: e.NodeDrainRequested | e.NodeResumeRequested | e.ImagePrefetchHinted) -> bool:
    if isinstance(event, e.NodeDrainRequested):
        node.drain = Drain(event.deadline_ns, event.actor, event.note, event.at_ns)
        node.resumed = False
    elif isinstance(event, e.NodeResumeRequested):
        node.drain, node.cordoned, node.cordoned_ns, node.resumed = None, (), 0, True
    return True


def _on_cordoned(node: Node, event: e.NodeCordoned) -> bool:
    if node.cordoned:
        return False
    node.cordoned = event.reasons or (e.Reason(code="NodeCordoned"),)
    node.cordoned_ns, node.resumed = event.at_ns, False
    return True


def _on_lost(node: Node, jobs: list[Job], at_ns: int) -> bool:
    if node.state == "lost":
        return False
    node.state = "lost"
    node.state_since_ns = at_ns
    for job, member in _members_on(jobs, node.name):
        _lose(job, member, "its node was lost")
    for held in node.holds.values():
        held.sandbox = "lost"
    return True


def _forget(nodes: Nodes, node: Node) -> bool:
    """Keep nothing of a node, if it is lost."""
    if node.state != "lost":
        return False
    del nodes[node.name]
    return True


def _members_on(jobs: list[Job], node: str) -> list[tuple[Job, Member]]:
    """Return the active members of current attempts on a node."""
    return [
        (job, member)
        for job in jobs
        if job.latest is not None
        for member in job.latest.members
        if member.placement.node == node and member.active
    ]


def _lose(job: Job, member: Member, why: str) -> None:
    member.sandbox = "lost"
    member.exit = Exit("lost", detail=why)
    job.revision += 1


def amount_held(job: Job, member: Member) -> Resources:
    """Return what a member holds by its desired quotas, which are per replica."""
    share_millis = member_floor(job.spec).gpu_millis
    whole = 0 if share_millis else len(member.placement.gpu_indices)
    total = Resources(gpus=whole, gpu_millis=share_millis)
    for quota in member.desired.values():
        total = total.plus(Resources(quota.cpu_millis, quota.memory_mib).times(replicas_of(job, quota)))
    return total


def replicas_of(job: Job, quota: e.Quota) -> int:
    """Return how many replicas of a component a quota is for."""
    if quota.replicas is not None:
        return quota.replicas
    return next((each.replicas for each in job.spec.components if each.name == quota.component), 1)
