"""The nodes of a simulation: who is there, what they say and when it is heard, their failures, and their images.

What a node says while it is away is heard when it is back.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec
from tidegate_events import events as e

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.simulator.agenda import Agenda
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.scribe import Scribe
from tidegate_scheduler.simulator.tally import Tally
from tidegate_scheduler.simulator.work import MILLI_NS

DAY_MS = 24 * 3600 * 1000


class NodeModel(msgspec.Struct):
    """A node: as it joined first, whether it runs, whether it is heard, and what it said that was not.

    `pulls` are the images that it is fetching, with when each is there.
    """

    joined: e.NodeJoined
    images: dict[str, str]
    alive: bool = True
    heard: bool = True
    unheard: list[e.AnyEvent] = msgspec.field(default_factory=list)
    pulls: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def takes_orders(self) -> bool:
        """Say whether what is decided reaches it."""
        return self.alive and self.heard

    def has(self, image: str) -> bool:
        """Say whether the image is there, by its name or its digest."""
        return image in self.images or image in self.images.values()


class Nodes:
    """All nodes by name. `crashes` and `returns` are told of a node whose sandboxes are gone, and that it takes orders.

    Failures come from one generator for each node, so they are the same whatever is decided.
    """

    def __init__(self, scribe: Scribe, agenda: Agenda, tally: Tally, costs: Costs, seed: int) -> None:
        self.scribe = scribe
        self.by_name: dict[str, NodeModel] = {}
        self.crashes: Callable[[str, int], None] = _nobody
        self.returns: Callable[[str, int], None] = _nobody
        self._agenda = agenda
        self._tally = tally
        self._costs = costs
        self._seed = seed

    def say(self, node: str, *events: e.AnyEvent) -> None:
        """Let a node say something, which is heard now or when the node is back."""
        model = self.by_name[node]
        if model.takes_orders:
            self.scribe.node_says(node, *events)
        else:
            model.unheard.extend(events)

    # ---- they come and go ----

    def join(self, event: e.NodeJoined) -> None:
        """A node is there."""
        self.scribe.node_says(event.node, event)
        self.know(event)

    def know(self, event: e.NodeJoined, *, heard: bool = True) -> None:
        """Take note of a node of which the state knows already."""
        model = NodeModel(event, dict(event.images), heard=heard)
        self.by_name[event.node] = model
        self._there(model)
        if rate := self._costs.node_failures_per_day_millis:
            from_ns = max(event.at_ns, self.scribe.state.header.now_ns)
            self._fail_next(model, Random(f"{self._seed}/{event.node}"), from_ns, rate)

    def _there(self, model: NodeModel) -> None:
        gpus_millis, cpu_millis = len(model.joined.gpus) * WHOLE_MILLIS, model.joined.capacity.cpu_millis
        self._tally.node_there(model.joined.node, gpus_millis, cpu_millis)

    def _fail_next(self, model: NodeModel, random: Random, from_ns: int, rate_millis: int) -> None:
        after_ms = int(random.expovariate(rate_millis / (1000 * DAY_MS)))

        def fail(now_ns: int) -> None:
            if model.alive:
                self.fail(model.joined.node, now_ns)
                back_ns = now_ns + self._costs.node_repair_seconds * SECOND_NS
                self._agenda.at(back_ns, lambda at_ns: self.repair(model.joined.node, at_ns), background=True)
            self._fail_next(model, random, now_ns + self._costs.node_repair_seconds * SECOND_NS, rate_millis)

        self._agenda.at(from_ns + after_ms * MILLI_NS, fail, background=True)

    def fail(self, node: str, now_ns: int) -> None:
        """A node is gone, with all that runs there; nobody knows before it has been silent for a while."""
        model = self.by_name[node]
        self.die(node, now_ns)

        def silent(at_ns: int) -> None:
            known = self.scribe.state.nodes.get(node)
            if not model.alive and known is not None:
                self._away(node, at_ns)

        self._agenda.at(now_ns + self._costs.node_silence_seconds * SECOND_NS, silent, background=True)

    def die(self, node: str, now_ns: int) -> None:
        """A node is gone, with all that runs there; whoever knows of it knows already."""
        model = self.by_name[node]
        model.alive = False
        self._tally.node_gone(node)
        self.crashes(node, now_ns)

    def repair(self, node: str, now_ns: int) -> None:
        """A node that failed is back, and holds nothing."""
        model = self.by_name[node]
        if model.alive:
            return
        self._rejoin(model, (), now_ns)

    # ---- what a recording says of them ----

    def unreachable(self, event: e.NodeUnreachable, now_ns: int, *, dead: bool) -> None:
        """A node is not heard any more; what runs there goes on, unless it is dead."""
        model = self.by_name.get(event.node)
        if model is None or not model.takes_orders:
            return
        model.heard = False
        self._away(event.node, now_ns)
        if dead:
            self.die(event.node, now_ns)

    def reachable(self, event: e.NodeReachable, now_ns: int) -> None:
        """A node is heard again, and what it said meanwhile."""
        model = self.by_name.get(event.node)
        known = self.scribe.state.nodes.get(event.node)
        if model is None or known is None or model.heard or not model.alive:
            return
        said = msgspec.structs.replace(event, at_ns=now_ns, incarnation=known.incarnation)
        self.scribe.recorded(said)
        self._heard(model, now_ns)

    def joined(self, event: e.NodeJoined, held: tuple[e.HeldSandbox, ...], now_ns: int) -> None:
        """A node's agent joins, perhaps again; `held` is what runs there in the simulation."""
        model = self.by_name.get(event.node)
        if model is None:
            self.join(event)
            return
        model.joined, model.images = event, dict(event.images)
        self._rejoin(model, held, now_ns)

    def _rejoin(self, model: NodeModel, held: tuple[e.HeldSandbox, ...], now_ns: int) -> None:
        known = self.scribe.state.nodes.get(model.joined.node)
        incarnation = max(model.joined.incarnation, known.incarnation + 1 if known is not None else 1)
        back = msgspec.structs.replace(
            model.joined,
            id=self.scribe.next_id(),
            at_ns=now_ns,
            incarnation=incarnation,
            images=dict(model.images),
            sandboxes=held,
        )
        model.alive = True
        self._there(model)
        self.scribe.node_says(model.joined.node, back)
        self._heard(model, now_ns)

    def _away(self, node: str, now_ns: int) -> None:
        known = self.scribe.state.nodes.get(node)
        if known is not None:
            silent = e.NodeUnreachable(id=self.scribe.next_id(), at_ns=now_ns, node=node, incarnation=known.incarnation)
            self.scribe.recorded(silent)

    def _heard(self, model: NodeModel, now_ns: int) -> None:
        """Hear what a node said while it was away; it ends what belongs to nobody, and takes orders again."""
        node, model.heard = model.joined.node, True
        unheard, model.unheard = model.unheard, []
        if unheard:
            self.scribe.node_says(node, *unheard)
        self.bury(node, now_ns)
        self.returns(node, now_ns)

    def bury(self, node: str, now_ns: int) -> None:
        """Have a node end the sandboxes that belong to no attempt."""
        known = self.scribe.state.nodes.get(node)
        for zombie in list(known.zombies) if known is not None else ():
            spec = self.scribe.state.specs.get(zombie.job)
            exited = e.SandboxExited(
                id=self.scribe.next_id(),
                at_ns=now_ns,
                tenant=spec.tenant if spec is not None else "",
                job=zombie.job,
                attempt=zombie.attempt,
                rank=zombie.rank,
                node=node,
                outcome="stopped",
            )
            self.scribe.node_says(node, exited)

    # ---- images ----

    def has_image_ns(self, node: str, image: str, now_ns: int) -> int | None:
        """Return when the image is there, if it is fetched from now on at the latest; None where it cannot be got."""
        model = self.by_name[node]
        if model.has(image):
            return now_ns
        if not model.joined.fetches_images:
            return None
        return model.pulls.get(image, now_ns + self._costs.image_pull_seconds * SECOND_NS)

    def pull(self, node: str, image: str, now_ns: int) -> None:
        """Have the node get an image, and say so when it is there."""
        model = self.by_name[node]
        there_ns = self.has_image_ns(node, image, now_ns)
        if there_ns is None or image in model.pulls or model.has(image):
            return
        model.pulls[image] = there_ns

        def pulled(at_ns: int) -> None:
            del model.pulls[image]
            known = self.scribe.state.nodes.get(node)
            if known is not None and model.alive:
                model.images[image] = image
                cached = e.ImageCached(
                    id=self.scribe.next_id(),
                    at_ns=at_ns,
                    node=node,
                    incarnation=known.incarnation,
                    image=image,
                    digest=image,
                )
                self.say(node, cached)

        self._agenda.at(there_ns, pulled)


def _nobody(_node: str, _now_ns: int) -> None:
    """Nobody is told."""
