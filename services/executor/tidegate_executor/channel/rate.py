"""How many messages of a kind may come: token buckets, pure (time is an argument).

What becomes durable is bounded per replica, however many connections its processes open; reports per connection.
"""

from tidegate import protocol


class Bucket:
    """`per_second` tokens flow in, up to `burst`."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens = burst
        self._filled_at: float | None = None

    def take(self, now: float) -> int:
        """Take a token and return 0, or return after how many milliseconds there will be one."""
        if self._filled_at is not None:
            flowed = max(0.0, now - self._filled_at) * self._per_second
            self._tokens = min(self._burst, self._tokens + flowed)
        self._filled_at = now
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return 0
        return 1 + int((1.0 - self._tokens) / self._per_second * 1000)


class ReplicaRates:
    """The buckets that all connections of one replica share."""

    def __init__(self) -> None:
        self.control = Bucket(protocol.CONTROLS_PER_SECOND, protocol.CONTROLS_BURST)
        self.phase = Bucket(protocol.PHASES_PER_SECOND, protocol.PHASES_BURST)
        self.ask = Bucket(protocol.ASKS_PER_SECOND, protocol.ASKS_BURST)
        self.publish = Bucket(protocol.PUBLISHES_PER_SECOND, protocol.PUBLISHES_BURST)


class Rates:
    """The buckets of one connection, by kind of message."""

    def __init__(self, replica: ReplicaRates) -> None:
        self._buckets = {
            "phase": replica.phase,
            "ask": replica.ask,
            "publish": replica.publish,
            "report": Bucket(protocol.REPORTS_PER_SECOND, protocol.REPORTS_BURST),
        }
        self._control = replica.control

    def take(self, kind: str, now: float) -> int:
        """Take a token for a message of this kind: 0, or the milliseconds until one is there."""
        return self._buckets.get(kind, self._control).take(now)
