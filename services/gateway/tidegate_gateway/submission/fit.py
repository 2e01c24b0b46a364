"""Judges a job against the known cluster and its tenant: what no known node could ever run is refused at once.

Pure. Where no node is known yet, nothing is said about nodes: the scheduler decides when one joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, member_floor, phase_need

from tidegate_gateway.submission.nodes import (
    Wanted,
    devices,
    devices_with,
    has_image,
    members_in_one_domain,
    members_on,
    members_on_one_model,
    members_together,
    memory_of_each,
    passes_gpus,
)
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
    models = values.get("gpu_models", None if "gpu_models" in given else ())
    components: tuple[Component, ...] | None = values.get("components")
    alone_fine = _judge_offers(level, image, models, known, problems)
    if components is None:
        return
    spec = JobSpec(name="", tenant="", submitter="", components=components, borrows=bool(values.get("borrows")))
    # One that borrows is placed by its default phase, but what no node has, no other phase can ever be granted.
    needs = [phase_need(spec, phase) for phase in spec.phases] if spec.borrows else [member_floor(spec)]
    alone_fine = _judge_gpu_level(level, needs, known, problems) and alone_fine
    sizes_fine = [_judge_size(need, models or (), known, problems) for need in needs]
    if not (alone_fine and all(sizes_fine)) or level is None or image is None or models is None:
        return
    wanted = Wanted(level, image, member_floor(spec), models)
    each_phase = [Wanted(level, image, need, models) for need in needs]
    if not all(any(members_on(node, each, 1) for node in known) for each in (wanted, *each_phase)):
        problems.add(
            "$",
            f"no single known node offers the level {level}, the image and the room for one member together",
            "a combination that one node offers; see GET /v1/nodes",
        )
        return
    _judge_gang(values, given, wanted, known, problems)


def _judge_offers(
    level: str | None, image: str | None, models: tuple[str, ...] | None, known: Sequence[Node], problems: Problems
) -> bool:
    """Note a level, an image or models of GPUs that no known node has."""
    levels = {each for node in known for each in node.levels}
    images = {each for node in known for each in node.images}
    fine = True
    if level is not None and level not in levels:
        problems.add("isolation", f"no known node offers the level {level}", "one of " + listed_names(levels))
        fine = False
    if image is not None and not any(has_image(node, image) for node in known):
        problems.add("image", "no known node offers this image", "one of " + listed_names(images))
        fine = False
    if models and not any(devices(node, models) for node in known):
        there = {gpu.model for node in known for gpu in node.gpus}
        accepted = "some of " + listed_names(there) if there else "no gpu_models: no known node names a GPU"
        problems.add("gpu_models", "no known node has a GPU of these models", accepted)
        fine = False
    return fine


def _judge_gpu_level(level: str | None, needs: Sequence[Resources], known: Sequence[Node], problems: Problems) -> bool:
    """Note a level at which nodes offer no GPU to a job that needs one."""
    if not any(need.gpus or need.gpu_millis for need in needs):
        return True
    passing = {each for node in known if node.capacity.gpus for each in node.levels if passes_gpus(node, each)}
    offered = {each for node in known for each in node.levels}
    if level is None or level in passing or level not in offered or not passing:
        return True
    problems.add("isolation", f"no known node passes GPUs at the level {level}", "one of " + listed_names(passing))
    return False


def _judge_gang(
    values: dict[str, Any], given: Iterable[str], wanted: Wanted, known: Sequence[Node], problems: Problems
) -> None:
    """Note a gang that is larger than all nodes that may hold it: below one switch (or in one rack) where it is
    intensive, of one CPU model where it is strict."""
    size = values.get("gang_size", None if "gang_size" in given else 1)
    communication = values.get("communication", None if "communication" in given else "loose")
    domain = values.get("widest_domain", None if "widest_domain" in given else "switch")
    if size is None or communication is None or domain is None:
        return
    if (room := members_together(known, wanted, size)) < size:
        problems.add(
            "gang_size",
            f"all known nodes together could hold {room} of its {size} members, were they empty",
            f"gang_size of {room} or less, or smaller members",
        )
    elif communication == "intensive" and (room := members_in_one_domain(known, wanted, size, domain)) < size:
        wider = "widest_domain: rack, or " if domain == "switch" else ""
        problems.add(
            "gang_size",
            f"no {domain} has the nodes for it: the best could hold {room} of its {size} members, were its nodes empty",
            f"gang_size of {room} or less, or {wider}communication: loose",
        )
    elif values.get("determinism") == "strict":
        room = members_on_one_model(known, wanted, size, domain if communication == "intensive" else None)
        if room < size:
            problems.add(
                "gang_size",
                f"a strict gang runs on nodes of one CPU model: the best could hold {room} of its {size} members",
                f"gang_size of {room} or less, or determinism: relaxed",
            )


def _judge_size(floor: Resources, models: tuple[str, ...], known: Sequence[Node], problems: Problems) -> bool:
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
    count = floor.gpus or (1 if floor.gpu_millis else 0)  # a share needs one device that is large enough
    if count == 0:
        return fine
    most = max(devices_with(node, 0, models) for node in known)
    if count > most:
        problems.add(
            path,
            f"one member needs {count} GPUs, and the largest known node has {most}{_of(models)}",
            f"gpus of {most} or less" if most else f"no GPUs: no known node has one{_of(models)}",
        )
        return False
    if count > max(devices_with(node, floor.gpu_memory_mib, models) for node in known):
        largest = max((memory_of_each(node, count, models) for node in known), default=0)
        problems.add(
            path,
            f"no known node has {count} GPUs{_of(models)} with {floor.gpu_memory_mib} MiB each",
            f"gpu_memory_mib of {largest} or less with {count} GPUs",
        )
        return False
    return fine


def _of(models: tuple[str, ...]) -> str:
    return " of the accepted models" if models else ""
