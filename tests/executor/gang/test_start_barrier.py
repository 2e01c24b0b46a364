"""A gang begins when every member stands, whatever is lost, repeated or said late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tidegate_events.orders import GangPlace
from tidegate_executor.gang.start_barrier import StartBarrier

NODES = ("a", "b", "c")
SIZES = {"a": 2, "b": 1, "c": 2}


def barriers() -> dict[str, StartBarrier]:
    return {node: StartBarrier(node, GangPlace(nodes=NODES, local_size=SIZES[node])) for node in NODES}


def test_on_one_node_it_waits_for_the_members_there() -> None:
    barrier = StartBarrier("a", GangPlace(nodes=("a",), local_size=2))
    barrier.stands(0)
    barrier.stands(0)
    assert not barrier.open
    barrier.stands(1)
    assert barrier.open


def test_only_the_leading_nodes_word_opens_the_others() -> None:
    barrier = StartBarrier("b", GangPlace(nodes=NODES, local_size=1))
    barrier.stands(2)
    barrier.on_ready("c")
    assert barrier.ready
    assert not barrier.open
    assert barrier.missing == ["a"]
    barrier.on_go()
    assert barrier.open


def test_an_agent_that_finds_a_member_begun_holds_nobody_back() -> None:
    barrier = StartBarrier("a", GangPlace(nodes=NODES, local_size=2))
    barrier.has_begun()
    assert barrier.open
    assert barrier.ready
    assert barrier.missing == []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("stands"), st.sampled_from([("a", 0), ("a", 1), ("b", 2), ("c", 3), ("c", 4)])),
        st.tuples(st.just("ready"), st.sampled_from(NODES[1:])),
        st.tuples(st.just("go"), st.sampled_from(NODES[1:])),
    ),
    max_size=60,
)


@given(steps=STEPS)
def test_nobody_begins_before_the_last_one_stands(steps: list[tuple[str, object]]) -> None:
    """Messages pass, or are lost, or come again: a step that its sender could not say yet is one that was lost."""
    all_of = barriers()
    standing = set()
    for step, what in steps:
        if step == "stands":
            node, rank = what  # type: ignore[misc]
            all_of[node].stands(rank)
            standing.add(rank)
        elif step == "ready" and all_of[what].ready:  # type: ignore[index]
            all_of["a"].on_ready(what)  # type: ignore[arg-type]
        elif step == "go" and all_of["a"].open:
            all_of[what].on_go()  # type: ignore[index]
        if any(barrier.open for barrier in all_of.values()):
            assert standing == {0, 1, 2, 3, 4}
