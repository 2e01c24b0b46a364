"""What an agent would say of its images, by the code that agents say it with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from tidegate_executor.image_news import Images, since

from tests.support.cluster import Cluster


def say_images(
    cluster: Cluster, node: str, images: Mapping[str, str], unavailable: Sequence[str] = (), incarnation: int = 1
) -> None:
    """Have the node's agent tell the difference of what the scheduler knows and these: all it has, and cannot have."""
    known = cluster.state.nodes.get(node)  # None where it has not joined, or is forgotten: what it says then counts not
    told = Images(digests=known.images if known else {}, unavailable=tuple(known.unavailable) if known else ())
    now = Images(digests=images, unavailable=tuple(unavailable))
    for number, event in enumerate(since(told, now, (node, incarnation, cluster.now))):
        named = msgspec.structs.replace(event, id=f"images-{node}-{len(cluster.frames)}-{number}")
        cluster.append("node", node, named)
