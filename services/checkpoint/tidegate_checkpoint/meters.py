"""What the upkeep of the tiers counts, for Prometheus; docs/reference/checkpoint-tiers.md says what each means."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

ADDRESS = "127.0.0.1"


class Meters:
    """The counters of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, said: str, *labels: str) -> Counter:
            return Counter(f"tidegate_tier_{name}", said, labels, registry=self.registry)

        self.promoted = counter("promoted", "Checkpoints brought into a tier.", "tier")
        self.promoted_packs = counter("promoted_packs", "Packs sent for that.", "tier")
        self.promotions_failed = counter("promotions_failed", "Tries to promote that failed.", "tier")
        self.moved_bytes = counter("moved_bytes", "Bytes read to move or compare.")
        self.collections = counter("collections", "Passes over one job's objects in a tier.", "tier")
        self.repacked = counter("repacked_packs", "Packs, mostly dead, whose living chunks were written again.", "tier")
        self.repacked_bytes = counter("repacked_freed_bytes", "Bytes that can be freed by that.", "tier")
        self.retired = counter("retired", "Checkpoints whose name was removed by a policy.", "tier")
        self.quarantined = counter("quarantined", "Objects set apart because nothing needs them.", "tier")
        self.returned = counter("returned", "Objects that were needed again, and moved back.", "tier")
        self.deleted_bytes = counter("deleted_bytes", "Bytes of objects deleted for good.", "tier")
        self.scrubs = counter("scrubs", "Passes that read a job back in a tier.", "tier")
        self.scrubbed_packs = counter("scrubbed_packs", "Packs compared by scrubs.", "tier")
        self.damages = counter("damages", "Damaged objects that scrubs found.", "tier", "repaired")
        self.evicted = counter("evicted", "Checkpoints that left the hot tier to make room.")
        self.upkeep_failed = counter("upkeep_failed", "Passes of upkeep that a tier's trouble ended.", "task")
        self.waiting = Gauge("tidegate_tier_waiting", "Checkpoints still to be promoted.", registry=self.registry)
        self.unread_seconds = Gauge(
            "tidegate_tier_unread_seconds",
            "How long the job that waits longest was not read back.",
            ["tier"],
            registry=self.registry,
        )
        self.hot_used = Gauge("tidegate_tier_hot_used_bytes", "Bytes in the hot tier.", registry=self.registry)

    def serve(self, port: int) -> None:
        """Answer Prometheus on this machine."""
        start_http_server(port, ADDRESS, self.registry)
