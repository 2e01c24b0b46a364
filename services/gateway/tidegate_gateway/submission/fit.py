"""Judges a job against the known cluster and its tenant: what no known node could ever run is refused at once.

Pure. Where no node is known yet, nothing is said about nodes: the scheduler decides when one joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, member_floor

from tidegate_gateway.submission.problems import Problems, listed_names
from tidegate_gateway.tenants import Tenants
from tidegate_gateway.view.model import Node

DEFAULT_ISOLATION = "trusted"
DEFAULT_IMAGE = "host"


def judge_tenant(values: dict[str, Any], tenants: Tenants, problems: Problems) -> None:
    """Note a tenant that may not submit, or not with this priority, and who does not act for it."""
    name = values.get("tenant")
    if name is None:
        return
    tenant = tenants.of(name)
    if tenant is None:
        problems.add("tenant", "may not submit here", "one of " + listed_names(tenants.tenants))
        return
    if not tenants.acts_for(values.get("submitter", ""), name):
        members = listed_names(tenant.members or ())
        problem, accepted = "does not act for this tenant", f"one of {members}, or an operator"
        problems.add("submitter", problem, accepted if members else "an operator")
    priority = values.get("priority", 0)
    if priority > tenant.max_priority:
        problems.add(
            "priority", f"{priority} is more than the tenant may use", f"0 to {tenant.max_priority} for this tenant"
        )


def judge_cluster(values: dict[str, Any], given: Iterable[str], nodes: Iterable[Node], problems: Problems) -> None:
    """Note what no known node offers; `given` are the fields of the submission (one that is bad is not judged)."""
    known = [node for node in nodes if node.state != "lost"]
    if not known:
        return
    level = values.get("isolation", None if "isolation" in given else DEFAULT_ISOLATION)
    image = values.get("image", None if "image" in given else DEFAULT_IMAGE)
    components: tuple[Component, ...] | None = values.get("components")
    levels = {each for node in known for each in node.levels}
    images = {each for node in known for each in node.images}
    alone_fine = True
    if level is not None and level not in levels:
        problems.add("isolation", f"no known node offers the level {level}", "one of " + listed_names(levels))
        alone_fine = False
    if image is not None and not any(_has_image(node, image) for node in known):
        problems.add("image", "no known node offers this image", "one of " + listed_names(images))
        alone_fine = False
    if components is None:
        return
    floor = member_floor(JobSpec(name="", tenant="", submitter="", components=components))
    alone_fine = _judge_size(floor, known, problems) and alone_fine
    if alone_fine and level and image and not any(_takes(node, floor, level, image) for node in known):
        problems.add(
            "$",
            f"no single known node offers the level {level}, the image and the room for one member together",
            "a combination that one node offers; see GET /v1/nodes",
        )


def _judge_size(floor: Resources, known: Sequence[Node], problems: Problems) -> bool:
    """Note each amount of one member that is larger than any known node has."""
    path = "components"
    fine = True
    for name in ("cpu_millis", "memory_mib"):
        need, largest = getattr(floor, name), max(getattr(node.capacity, name) for node in known)
        if need > largest:
            problems.add(
                path,
                f"one member needs {name} {need} at least, summed over components and replicas, "
                f"and the largest known node has {largest}",
                f"{name} of {largest} or less",
            )
            fine = False
    if floor.gpus == 0:
        return fine
    most = max(_gpus_with(node, 0) for node in known)
    if floor.gpus > most:
        problems.add(
            path,
            f"one member needs {floor.gpus} GPUs, and the largest known node has {most}",
            f"gpus of {most} or less",
        )
        return False
    if floor.gpus > max(_gpus_with(node, floor.gpu_memory_mib) for node in known):
        largest = max((_gpu_memory(node, floor.gpus) for node in known), default=0)
        problems.add(
            path,
            f"no known node has {floor.gpus} GPUs with {floor.gpu_memory_mib} MiB each",
            f"gpu_memory_mib of {largest} or less with {floor.gpus} GPUs",
        )
        return False
    return fine


def _takes(node: Node, floor: Resources, level: str, image: str) -> bool:
    return (
        level in node.levels
        and _has_image(node, image)
        and floor.cpu_millis <= node.capacity.cpu_millis
        and floor.memory_mib <= node.capacity.memory_mib
        and floor.gpus <= _gpus_with(node, floor.gpu_memory_mib)
    )


def _has_image(node: Node, image: str) -> bool:
    """Say whether the node has an image of this name or of this digest."""
    return image in node.images or image in node.images.values()


def _memories(node: Node) -> list[int]:
    """Return the memory of each GPU of a node, in MiB."""
    return [gpu.memory_mib for gpu in node.gpus] or [node.capacity.gpu_memory_mib] * node.capacity.gpus


def _gpus_with(node: Node, memory_mib: int) -> int:
    return sum(memory >= memory_mib for memory in _memories(node))


def _gpu_memory(node: Node, count: int) -> int:
    """Return the most memory that each of `count` GPUs of the node has at least; 0 where there are fewer."""
    memories = sorted(_memories(node), reverse=True)
    return memories[count - 1] if len(memories) >= count else 0
