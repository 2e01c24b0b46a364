"""Orders and heartbeats on the wire, and the clock that tests turn by hand."""

from __future__ import annotations

import msgspec
import pytest
from tidegate_events import orders
from tidegate_events.clock import ManualClock, SystemClock
from tidegate_events.events import Quota
from tidegate_events.orders import Heartbeat, NodeOrders, SandboxOrder

from tests.events.examples import SPEC

ORDERS = NodeOrders(
    node="n1",
    incarnation=3,
    epoch=7,
    at_seq=48211,
    sandboxes=(
        SandboxOrder(
            job="j-1",
            tenant="lab",
            attempt=1,
            rank=0,
            desired="suspend",
            spec=SPEC,
            quotas=(Quota(component="sim", cpu_millis=1, memory_mib=2),),
            deadline_ns=5,
        ),
    ),
)


def test_orders_come_back_equal() -> None:
    assert orders.decode_orders(orders.encode(ORDERS)) == ORDERS


def test_heartbeats_come_back_equal() -> None:
    beat = Heartbeat(node="n1", incarnation=3, at_ns=9)
    assert orders.decode_heartbeat(orders.encode(beat)) == beat


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", orders.encode(ORDERS).replace(b'"suspend"', b'"explode"')])
def test_what_is_no_order_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        orders.decode_orders(data)
    with pytest.raises(msgspec.MsgspecError):
        orders.decode_heartbeat(data)


def test_a_manual_clock_moves_only_when_told_and_never_back() -> None:
    clock = ManualClock(10)
    assert clock.now_ns() == clock.now_ns() == 10
    clock.advance(1.5)
    assert clock.now_ns() == 1_500_000_010
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


def test_the_systems_clock_is_unix_time_in_nanoseconds() -> None:
    assert SystemClock().now_ns() > 1_700_000_000_000_000_000
